"""Cards as a browser shows them: screenshots in light and dark, taken in headless Chromium."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
COMMITTED = ROOT / "docs" / "pictures"
AGAIN = "take the screenshots again: make docs && python docs/pictures.py --screens"


@pytest.fixture(scope="module")
def pictures():
    pytest.importorskip("PIL")
    return runpy.run_path(str(ROOT / "docs" / "pictures.py"), run_name="pictures")


@pytest.mark.long
def test_cards_are_light_and_dark_in_chromium(tmp_path, pictures):
    image = pytest.importorskip("matplotlib.image")
    if pictures["chromium"]() is None:
        assert not os.environ.get("CI"), "Chromium is missing: apt-get install chromium"
        pytest.skip("Chromium is not installed: apt-get install chromium")
    taken = pictures["take_screens"](tmp_path)
    names = ("plan", "census", "report")
    assert [p.name for p in taken] == [f"{n}-{m}.png" for n in names for m in ("light", "dark")]
    for light, dark in zip(taken[::2], taken[1::2], strict=True):
        bright, dim = (image.imread(path)[..., :3] for path in (light, dark))
        assert bright.shape == dim.shape, light.name
        assert min(bright.shape[:2]) > 300
        assert np.median(bright) > 0.9
        assert np.median(dim) < 0.2
        for pixels in (bright, dim):
            # A page that is blank, or text without contrast, has few shades.
            assert pixels.max() - pixels.min() > 0.8
            assert len(np.unique((pixels * 255).astype(int).reshape(-1, 3), axis=0)) > 50
    for path in taken:
        assert pictures["words_in"](COMMITTED / path.name) == pictures["words_in"](path), AGAIN
        assert pictures["difference"](COMMITTED / path.name, path) < pictures["ALIKE"], AGAIN


def test_the_committed_plan_is_that_of_today(tmp_path, pictures):
    pytest.importorskip("matplotlib")
    name, html = next(pictures["cards"](tmp_path))
    words = pictures["words"](html)
    assert name == "plan"
    assert "files at most" in words
    for mode in ("light", "dark"):
        assert pictures["words_in"](COMMITTED / f"plan-{mode}.png") == words, AGAIN


def test_words_do_not_depend_on_a_run(pictures):
    told = "<p>{} of 12 MB in {}</p><svg><text>{}</text></svg><ul class='sw-notes'>{}</ul>"
    words = pictures["words"]
    assert words(told.format("24 MB", "1.28 s", "0.5", "larger shards")) == "# of # in #"
    assert words(told.format("1 GB", "3 min", "7", "")) == "# of # in #"
    assert words(told.format("1 GB", "3 min", "7", "")) != words("<p>1 GB of 12 MB were lost</p>")


def test_another_mode_makes_a_difference(pictures):
    for name in ("quickstart", "plan", "census", "report"):
        light, dark = (COMMITTED / f"{name}-{mode}.png" for mode in ("light", "dark"))
        assert pictures["difference"](light, light) == 0
        assert pictures["difference"](light, dark) > 10 * pictures["ALIKE"]


def test_the_gallery_shows_all_screenshots():
    text = (ROOT / "docs" / "gallery.md").read_text()
    for name in ("quickstart", "plan", "census", "report"):
        for mode in ("light", "dark"):
            path = COMMITTED / f"{name}-{mode}.png"
            assert path.read_bytes().startswith(b"\x89PNG")
            assert path.stat().st_size < 200_000
            assert f"](pictures/{path.name}#only-{mode})" in text
