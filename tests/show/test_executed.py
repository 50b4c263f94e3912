"""A notebook that nbconvert executes: what its outputs hold."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbconvert = pytest.importorskip("nbconvert")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parent.parent.parent
REPORT = ROOT / "build" / "site-report"
STYLE = ROOT / "shardwrite" / "show" / "templates" / "style.css.j2"
CELLS = {
    "setup": "import dask.array as da, shardwrite, sys\nx = da.ones((256, 256), chunks=64)",
    "plan": "shardwrite.plan(x, shards=64, chunks=16, dimension_names=['lat', 'lon'])",
    "write": (
        "result = x.to_sharded_zarr('x.zarr', shards=64, chunks=16, progress=True)\n"
        "print('written')"
    ),
    "result": "result",
    "again": "x.to_sharded_zarr('x.zarr', shards=64, chunks=16, progress=True);",
    "client": (
        "from distributed import Client\n"
        "with Client(n_workers=1, processes=False, dashboard_address=':0'):\n"
        "    x.to_sharded_zarr('y.zarr', shards=64, chunks=16, progress=True)"
    ),
    "report": "shardwrite.verify('x.zarr')",
    "census": "shardwrite.census('x.zarr')",
    "array": "shardwrite.open_sharded('x.zarr')",
    "failure": (
        "bad = x.map_blocks(lambda b: 1 / 0, dtype='f8', meta=x._meta)\n"
        "try:\n"
        "    bad.to_sharded_zarr('z.zarr', shards=64, chunks=16, progress=True)\n"
        "except ZeroDivisionError:\n"
        "    pass"
    ),
}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The notebook after it has run."""
    folder = tmp_path_factory.mktemp("notebook")
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(name, str(folder / name))
        run = nbconvert.preprocessors.ExecutePreprocessor(timeout=300, kernel_name="python3")
        run.preprocess(book, {"metadata": {"path": str(folder)}})
    return book


@pytest.fixture(scope="module")
def executed(book):
    """Outputs of each cell, and the page that nbconvert makes."""
    page, _ = nbconvert.HTMLExporter().from_notebook_node(book)
    outputs = {name: cell.outputs for name, cell in zip(CELLS, book.cells, strict=True)}
    return outputs, page


def data(outputs, kind="text/html"):
    return [out.data[kind] for out in outputs if "data" in out]


@pytest.mark.long
def test_cards(executed):
    outputs, page = executed
    assert not outputs["setup"]
    for name in ("plan", "result", "report", "census", "array"):
        (html,) = data(outputs[name])
        (text,) = data(outputs[name], "text/plain")
        assert html.startswith('<section class="shardwrite')
        assert "<script" not in html
        assert re.fullmatch(r"<\w+.*>", text), "one line for those who see no HTML"
        title = re.search(r'aria-label="\w+"', html)[0]
        assert title in page
    assert "files at most" in page
    assert ".shardwrite.sw-box{" in page


@pytest.mark.long
@pytest.mark.parametrize("name", ["write", "client"])
def test_the_last_state_of_the_bar_stays_in_the_output(executed, name):
    outputs, page = executed
    (html,) = data(outputs[name])
    (text,) = data(outputs[name], "text/plain")
    assert "width:100.0%" in html
    assert re.fullmatch(r"writing: done: 524 kB in [\d.]+ m?s, .*/s", text)
    assert "<script" not in html
    assert text.removeprefix("writing: ") in page


@pytest.mark.long
def test_text_stands_beside_the_bar_and_below_it(executed):
    outputs, _ = executed
    assert [out.output_type for out in outputs["write"]] == ["display_data", "stream"]
    assert outputs["write"][1].text == "written\n"


@pytest.mark.long
def test_a_run_that_has_nothing_to_do_or_fails_says_so(executed):
    outputs, _ = executed
    (text,) = data(outputs["again"], "text/plain")
    assert text == "writing: done; nothing was left to do"
    (text,) = data(outputs["failure"], "text/plain")
    assert text.startswith("writing: stopped at 0%: 0 B of 524 kB")


def colours(mode):
    """Colours of a theme, as the style sheet of cards has them: red, green and blue by name."""
    style = STYLE.read_text()
    macro = style.split(f"macro {mode}()")[1].split("endmacro")[0]
    found = re.findall(r"--sw-([a-z-]+):#(..)(..)(..);", macro)
    return {name: [int(part, 16) for part in parts] for name, *parts in found}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_page_is_light_and_dark_in_chromium(book, tmp_path, mode):
    image = pytest.importorskip("matplotlib.image")
    np = pytest.importorskip("numpy")
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"), run_name="pictures")
    if pictures["chromium"]() is None:
        assert not os.environ.get("CI"), "Chromium is missing: apt-get install chromium"
        pytest.skip("Chromium is not installed: apt-get install chromium")
    html, _ = nbconvert.HTMLExporter(theme=mode).from_notebook_node(book)
    page = tmp_path / "notebook.html"
    page.write_text(html)
    REPORT.mkdir(parents=True, exist_ok=True)
    picture = REPORT / f"notebook-{mode}.png"
    pictures["shoot"](page, picture, is_dark=mode == "dark", window=(1000, 3600))
    pixels = (image.imread(picture)[..., :3] * 255).round().astype(int)
    known = colours(mode)

    def count(name):
        return int((np.abs(pixels - known[name]).max(axis=2) <= 2).sum())

    bright = float(pixels.mean())
    assert bright > 200 if mode == "light" else bright < 80
    if mode == "dark":  # in light mode, cards and page have the same ground
        ground = np.abs(pixels - known["ground"]).max(axis=2) <= 2
        columns = np.flatnonzero(ground.sum(axis=0) > 400)  # those that cards reach
        rows = ground[:, columns[0] : columns[0] + 5].all(axis=1)  # those that lie in cards
        inside = pixels[rows, columns[0] : columns[-1]]
        assert rows.sum() > 400
        assert (inside == pixels[0, 0]).all(axis=2).mean() < 0.01, "rows of tables have it, too"
    assert count("ground") > 200_000, "cards have the ground of the theme"
    assert count("text") > 500
    assert count("done") > 3_000, "two bars that are full"
    assert count("bad") > 50, "the run that failed is told in red"
    assert count("array") > 5_000, "the grid of the plan"
