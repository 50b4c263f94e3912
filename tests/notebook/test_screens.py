"""Cards as a browser shows them: screenshots in light and dark, taken in headless Chromium."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.long
def test_cards_are_light_and_dark_in_chromium(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"), run_name="pictures")
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


def test_the_gallery_shows_all_screenshots():
    text = (ROOT / "docs" / "gallery.md").read_text()
    for name in ("quickstart", "plan", "census", "report"):
        for mode in ("light", "dark"):
            path = ROOT / "docs" / "pictures" / f"{name}-{mode}.png"
            assert path.read_bytes().startswith(b"\x89PNG")
            assert path.stat().st_size < 200_000
            assert f"](pictures/{path.name}#only-{mode})" in text
