"""Draw the overview and the chart of the README and the site: ``python docs/pictures.py``.

So are the reads of three designs. All are text, so they are committed and compared in the tests.
The chart shows what the files in `docs/figures` say. The pictures of the gallery come from
real arrays, and `make docs` draws them anew. Screenshots of cards are committed, too, because they
need Chromium: ``python docs/pictures.py --screens`` takes them again, in light and dark. The page
with the quick start is that of ``build/site``, so run `make docs` first. Each screenshot holds the
words that were on the page when it was taken, and the tests compare them with those of today. The
picture of Neuroglancer is what ``tests/conformance/test_neuroglancer.py`` leaves in
``build/site-report``.
"""

from __future__ import annotations

import csv
import importlib
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any

PICTURES = Path(__file__).resolve().parent / "pictures"
SITE = Path(__file__).resolve().parent.parent / "build" / "site"
_SIDE = 192
_TOP = 56
_LEFTS = (24, 312, 600)
_SMALL_SIDE, _SMALL_LEFTS = 150, (6, 216, 426)  # of the overview, which phones show, too
_STYLE = """
  text { font: 15px sans-serif; fill: #24292f }
  .small { font-size: 12.5px; fill: #57606a }
  .line { stroke: #57606a; stroke-width: 1; fill: none }
  .slab { fill: #0072b2; fill-opacity: .22 }
  .shard { fill: #e69f00; fill-opacity: .28 }
  .chunk { fill: #009e73; fill-opacity: .25 }
  .read { fill: #009e73; fill-opacity: .9 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9da7b3 }
    .line { stroke: #9da7b3 }
  }"""


_LARGER = """
  text { font-size: 17px }
  .small { font-size: 14.5px }"""


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"/>'
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="line"/>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{styled}>{text}</text>'


def _arrow(x: float) -> str:
    y = _TOP + _SMALL_SIDE / 2
    return f'<path class="line" d="M{x:g} {y:g} h36 m-9 -6 l9 6 l-9 6"/>'


def overview() -> str:
    """Draw source chunks, shards and inner chunks beside each other, as SVG."""
    side = _SMALL_SIDE
    first, second, third = _SMALL_LEFTS
    parts = [_text(first, 24, "Your chunks"), _text(first, 44, "any size: 15 slabs", "small")]
    parts += [_rect(first, _TOP + k * side / 15, side, side / 15 - 2, "slab") for k in range(15)]
    parts += [_arrow(first + side + 12), _text(second, 24, "Shards")]
    parts += [_text(second, 44, "4 files, written once", "small")]
    half = side / 2
    parts += [
        _rect(second + column * half, _TOP + row * half, half - 4, half - 4, "shard")
        for row in range(2)
        for column in range(2)
    ]
    parts += [_arrow(second + side + 12), _text(third, 24, "Inner chunks")]
    parts += [_text(third, 44, "a reader fetches one", "small")]
    quarter = side / 4
    parts += [
        _rect(
            third + column * quarter,
            _TOP + row * quarter,
            quarter - 3,
            quarter - 3,
            "read" if (row, column) == (1, 2) else "chunk",
        )
        for row in range(4)
        for column in range(4)
    ]
    body = "\n".join(parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 584 214" width="584" height="214" '
        'role="img" aria-label="Chunks of any size become four shards of small inner chunks">\n'
        f"<style>{_STYLE}{_LARGER}\n</style>\n{body}\n</svg>\n"
    )


FIGURES = Path(__file__).resolve().parent / "figures"


@dataclass(frozen=True, slots=True)
class Job:
    """One group of bars in the chart, drawn if its measurement is stored.

    Attributes
    ----------
    of, case : str
        The measurement, a file in `FIGURES`, and which of its cases.
    title : str
        What is written.
    contestants : tuple of str
        Who writes it.
    """

    of: str
    case: str
    title: str
    contestants: tuple[str, ...]


_PEERS = ("shardwrite", "dask+zarr-python", "dask+zarrs", "tensorstore")
_JOBS = (
    Job("side-by-side", "small-blocks", "1 GiB: dask chunks of 64³ become shards of 256³", _PEERS),
    Job("side-by-side", "slabs", "1 GiB: slices become shards of 256³", _PEERS),
    Job(
        "datasets",
        "one-step-zstd",
        "1 GB: an xarray dataset in single steps becomes shards of 48",
        ("shardwrite", "xarray", "xarray-zarrs"),
    ),
)
_DECODED_MB = 2**30 / 1e6  # of each job whose seconds are not stored
_BAR, _STEP = 16, 22
_PANELS = ((140, 120, "seconds"), (330, 120, "memory, MiB"))  # left side, width, unit
_STYLE_OF_CHART = """
  text { font: 13px sans-serif; fill: #24292f }
  .page { fill: #ffffff; stroke: #d0d7de }
  .title { font-weight: bold }
  .unit { font-size: 12px; fill: #57606a }
  .ours { fill: #0072b2 }
  .other { fill: #9aa4ae }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .page { fill: #0d1117; stroke: #30363d }
    .unit { fill: #9da7b3 }
    .ours { fill: #56b4e9 }
    .other { fill: #6e7781 }
  }"""


def measured(numbers: str, job: Job) -> dict[str, tuple[float, float]]:
    """Seconds and MiB of each contestant, medians of the repeats.

    Parameters
    ----------
    numbers : str
        The CSV file of the measurement.
    job : Job
        One of its cases.
    """
    lines = csv.DictReader(line for line in numbers.splitlines() if not line.startswith("#"))
    values: dict[tuple[str, str], list[float]] = {}
    for row in lines:
        if row["case"] == job.case:
            values.setdefault((row["by"], row["quantity"]), []).append(float(row["value"]))
    of = {key: median(repeats) for key, repeats in values.items()}
    return {
        name: (
            of.get((name, "seconds")) or _DECODED_MB / of[name, "MB/s"],
            of[name, "MiB above idle"],
        )
        for name in job.contestants
    }


def chart(figures: Path) -> str:
    """Draw how long the jobs take and how much memory they need, as SVG.

    Parameters
    ----------
    figures : Path
        Directory of the CSV files. A job whose file is missing is left out.
    """
    files = {job.of: figures / f"{job.of}.csv" for job in _JOBS}
    numbers = {name: path.read_text() for name, path in files.items() if path.exists()}
    width, top, parts = 520, 24, []
    for job in _JOBS:
        if job.of not in numbers:
            continue
        values = measured(numbers[job.of], job)
        parts.append(_text(14, top, job.title, "title"))
        for left, _, unit in _PANELS:
            parts.append(_text(left, top + 20, unit, "unit"))
        for row, name in enumerate(job.contestants):
            y = top + 28 + row * _STEP
            parts.append(_text(14, y + 13, name.replace("+", " + ")))
            kind = "ours" if name == "shardwrite" else "other"
            for panel, (left, room, _) in enumerate(_PANELS):
                value = values[name][panel]
                length = room * value / max(of_all[panel] for of_all in values.values())
                bar = f'width="{length:.1f}" height="{_BAR}" class="{kind}"'
                parts.append(f'<rect x="{left}" y="{y}" {bar}/>')
                shown = f"{value:.0f}" if panel else f"{value:.1f}"
                parts.append(_text(left + length + 5, y + 13, shown))
        top += 62 + len(job.contestants) * _STEP
    height = top - 18
    page = f'<rect class="page" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    body = "\n".join([page, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="Seconds and memory of some jobs">\n'
        f"<style>{_STYLE_OF_CHART}\n</style>\n{body}\n</svg>\n"
    )


_DESIGNS: tuple[tuple[str, tuple[int, ...], str, str, tuple[int, int]], ...] = (
    ("viewer", (1000, 2048, 2048), "uint16", "lustre", (1, 2)),
    ("timeseries", (8760, 721, 1440), "float32", "s3", (0, 2)),
    ("ml", (20_000, 20_000, 20_000), "uint8", "lustre", (1, 2)),
)
"""Purpose, shape, data type and storage of arrays, and the axes that are drawn of a shard."""


def reads() -> str:
    """Draw what one read takes of a shard in three designs, as SVG."""
    import numpy as np

    import shardwrite
    from shardwrite.results import human

    parts = []
    for left, (purpose, shape, dtype, store, axes) in zip(_LEFTS, _DESIGNS, strict=True):
        designed = shardwrite.design(
            shape, dtype=dtype, purpose=purpose, store=store, memory_limit="1TB"
        )
        best = designed.best
        cost = best.reads[0]
        parts += [_text(left, 28, f"--for {purpose}"), _text(left, 46, cost.name, "small")]
        height, width = (best.shards[axis] for axis in axes)
        scale = _SIDE / max(height, width)
        rows, columns = (best.chunks[axis] for axis in axes)
        box = [min(cost.shape[axis], best.shards[axis]) for axis in axes]
        parts += [
            _rect(
                left + x * scale,
                _TOP + y * scale,
                columns * scale,
                rows * scale,
                "read" if y < box[0] and x < box[1] else "chunk",
            )
            for y in range(0, height, rows)
            for x in range(0, width, columns)
        ]
        told = f"{cost.n_requests:,.0f} requests, {human(cost.nbytes)}"
        asked = human(np.dtype(dtype).itemsize * math.prod(cost.shape))
        parts += [
            _text(left, _TOP + _SIDE + 24, told),
            _text(left, _TOP + _SIDE + 44, f"for {asked} of values", "small"),
        ]
    body = "\n".join(parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 312" width="840" height="312" '
        'role="img" aria-label="Inner chunks of a shard that a plane, a series and a patch take">\n'
        f"<style>{_STYLE}\n</style>\n{body}\n</svg>\n"
    )


CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
_WINDOW, _WINDOW_OF_PAGES = (880, 1600), (1280, 800)
_TIMEOUT_SECONDS = 120
_DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
_WORDS = "Words"  # the field of a PNG file that holds them
# Digests, and numbers with their units.
_VALUE = re.compile(r"\b[0-9a-f]{64}\b|\d[\d.,:]*(?: (?:[kMGT]?B|[mµ]?s|min|h)(?:/s)?\b|%)?")
_SECTIONS_SHOWN = 3  # on a screenshot of a page: its head, and two sections
ALIKE = 0.05  # difference of two pictures of the same thing, at most
_CELLS = 8  # along each side of a picture that is compared coarsely


def chromium() -> str | None:
    """Path of the browser that takes screenshots; None if there is none."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def _slowly(block: Any, block_info: Any = None) -> Any:
    """A block of a slow source, so that the report of a run has something to show."""
    number = sum(block_info[None]["chunk-location"]) if block_info else 0
    time.sleep(0.1 + 0.05 * (number % 3))
    return block


def cards(work: Path) -> Iterator[tuple[str, str]]:
    """Make a plan, a census and a report of real arrays; names and HTML pages.

    Parameters
    ----------
    work : Path
        Directory for the arrays.
    """
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    import shardwrite
    from shardwrite.show.html import page_html
    from shardwrite.show.page import html as census_html
    from shardwrite.show.report import html as report_html

    x = da.random.default_rng(0).integers(0, 4000, (4000, 3000), dtype="uint16", chunks=500)
    names = ["y", "x"]
    with dask.config.set(num_workers=2):
        plan = shardwrite.plan(
            x, shards=500, chunks=100, dimension_names=names, memory_limit="8 GB"
        )
    yield "plan", page_html("plan", plan._repr_html_())
    inside = da.indices(x.shape, chunks=500).sum(axis=0) < 4600
    sparse = da.where(inside, x, 0).astype("uint16")
    shardwrite.to_sharded_zarr(sparse, work / "sparse.zarr", shards=250, chunks=50)
    lost = next((work / "sparse.zarr" / "c" / "2").iterdir())
    lost.unlink()
    census = shardwrite.census(work / "sparse.zarr")
    yield "census", census_html(replace(census, path="sparse.zarr"))
    slow = x.map_blocks(_slowly, dtype=x.dtype, name="slow")
    with (
        LocalCluster(n_workers=3, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(3)
        for module in ("dask.array", "shardwrite.write.tasks"):  # imports take memory and time
            client.run(importlib.import_module, module)
        slow.to_sharded_zarr(work / "volume.zarr", shards=250, chunks=50, keep_report=True)
    report = shardwrite.report(work / "volume.zarr")
    yield "report", report_html(replace(report, path="volume.zarr"))


class _Words(HTMLParser):
    """Collects the text of a page, without style, charts, and advice, which depends on a run."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._inside = ""  # the element that is left out

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_advice = ("class", "sw-notes") in attrs
        if not self._inside and (tag in ("script", "style", "svg", "title") or is_advice):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.pieces.append(data)


def words(html: str) -> str:
    """Collect the words of a page in one line, with ``#`` for each number that it shows."""
    parser = _Words()
    parser.feed(html)
    return _VALUE.sub("#", " ".join(" ".join(parser.pieces).split()))


def words_in(picture: Path) -> str:
    """Read the words that a screenshot holds; an empty text if it holds none."""
    from PIL import Image

    with Image.open(picture) as opened:
        return str(opened.info.get(_WORDS, ""))


def _note(picture: Path, text: str) -> None:
    """Put words into a screenshot."""
    from PIL import Image, PngImagePlugin

    known = PngImagePlugin.PngInfo()
    known.add_text(_WORDS, text)
    with Image.open(picture) as opened:
        opened.load()
    opened.convert("RGB").save(picture, pnginfo=known, optimize=True)


def difference(first: Path, second: Path) -> float:
    """Compare two pictures coarsely: 0 if they look the same, 1 if one is black and one is white.

    Small shifts, another font, and other numbers matter little.
    """
    import numpy as np
    from PIL import Image

    cells = []
    for path in (first, second):
        with Image.open(path) as opened:
            small = opened.convert("RGB").resize((_CELLS, _CELLS), Image.Resampling.BOX)
        cells.append(np.asarray(small, dtype=float) / 255)
    return float(np.abs(cells[0] - cells[1]).mean())


def shoot(page: Path, picture: Path, *, is_dark: bool, window: tuple[int, int] = _WINDOW) -> None:
    """Take a screenshot of a page in headless Chromium.

    The empty part around a card is cut off. If `window` is given, all of it is kept.

    Parameters
    ----------
    page : Path
        The HTML page.
    picture : Path
        PNG file to write.
    is_dark : bool
        Whether the browser announces dark mode.
    window : (int, int)
        Width and height of the browser's window, in pixels.

    Raises
    ------
    RuntimeError
        If the browser took no screenshot.
    """
    import numpy as np
    from matplotlib import image

    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory() as profile:
        width, height = window
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        command += [*(_DARK if is_dark else ()), f"--screenshot={picture}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if not picture.exists():
        raise RuntimeError(done.stderr)
    if window != _WINDOW:
        return
    pixels = image.imread(picture)
    is_empty = (pixels == pixels[-1, 0]).all(axis=2)
    rows, columns = np.flatnonzero(~is_empty.all(axis=1)), np.flatnonzero(~is_empty.all(axis=0))
    top, bottom, left, right = rows[0], rows[-1], columns[0], columns[-1]
    image.imsave(picture, pixels[max(0, top - 8) : bottom + 9, max(0, left - 8) : right + 9])


def take_screens(folder: Path) -> list[Path]:
    """Take the screenshots of all cards, in light and dark, and return their paths.

    Parameters
    ----------
    folder : Path
        Directory for the PNG files.
    """
    taken = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, html in cards(Path(scratch)):
            page = Path(scratch, f"{name}.html")
            page.write_text(html)
            for mode in ("light", "dark"):
                taken.append(folder / f"{name}-{mode}.png")
                shoot(page, taken[-1], is_dark=mode == "dark")
                _note(taken[-1], words(html))
    return taken


def words_at_the_top(html: str) -> str:
    """Collect the words of a page of the site as far as a screenshot shows it."""
    return words("<h2".join(html.split("<h2")[:_SECTIONS_SHOWN]))


def take_pages(site: Path, folder: Path) -> list[Path]:
    """Take screenshots of the page with the quick start, in light and dark, and return their paths.

    Parameters
    ----------
    site : Path
        The site that `make docs` has built.
    folder : Path
        Directory for the PNG files.
    """
    taken = []
    for mode in ("light", "dark"):
        taken.append(folder / f"quickstart-{mode}.png")
        page = site / "quickstart.html"
        shoot(page, taken[-1], is_dark=mode == "dark", window=_WINDOW_OF_PAGES)
        _note(taken[-1], words_at_the_top(page.read_text()))
    return taken


if __name__ == "__main__":
    if "--screens" in sys.argv:
        take_screens(PICTURES)
        take_pages(SITE, PICTURES)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "overview.svg").write_text(overview())
    (PICTURES / "chart.svg").write_text(chart(FIGURES))
    (PICTURES / "reads.svg").write_text(reads())
