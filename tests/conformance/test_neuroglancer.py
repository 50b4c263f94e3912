"""The viewer of Neuroglancer itself shows volumes that shardwrite writes, pixel by pixel.

The viewer comes with the Python package `neuroglancer`, and runs in Chromium without a graphics
card. Its screenshot is left in ``build/site-report``; the one in the documentation is a copy.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import re
import shutil
import threading
import time
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import dask.array as da
import numpy as np
import pytest

import shardwrite

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
SHOT = ROOT / "build" / "site-report" / "neuroglancer.png"
IN_DOCS = ROOT / "docs" / "pictures" / "neuroglancer.png"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
SECONDS = 60  # for what the browser does by itself
WINDOW = (800, 470)
SHAPE = (24, 96, 96)
POSITION = (48, 48, 11.5)
PER_PIXEL = 0.25  # voxels
READY = """
const loaded = [...viewer.layerManager.managedLayers].every(one => one.isReady());
return loaded && viewer.isReady() && viewer.display.panels.size === 2;
"""
PANELS = """
const from = (start, n) => Array.from({length: n}, (_, i) => start + i);
const all = [...viewer.display.panels].map(panel => {
  const [left, top] = [panel.canvasRelativeClippedLeft, panel.canvasRelativeClippedTop];
  const {logicalWidth: width, logicalHeight: height} = panel.renderViewport;
  const isFree = (x, y) => document.elementFromPoint(x + 0.5, y + 0.5) === panel.element;
  const [columns, rows] = [from(left, width), from(top, height)];
  return {
    centre: [left + width / 2, top + height / 2],
    columns: columns,
    rows: rows,
    free: rows.map(y => columns.map(x => isFree(x, y))),
  };
});
return all.sort((one, other) => one.columns[0] - other.columns[0]);
"""
COLOURS = """
const [{layer}] = viewer.layerManager.managedLayers.filter(one => one.name === 'cells');
const hash = layer.displayState.segmentationColorGroupState.value.segmentColorHash;
const of = id => [...hash.compute(new Float32Array(3), BigInt(id))];
return Object.fromEntries(arguments[0].map(id => [id, of(id)]));
"""


def tissue():
    """An image and the labels of its cells, of shape (z, y, x). Outside of the cells is label 0."""
    rng = np.random.default_rng(5)
    points = rng.uniform(0, 1, (100, 3)) * SHAPE
    places = np.indices(SHAPE, np.float32) + 0.5
    distances = np.stack(
        [
            np.hypot(
                np.hypot(*(places[1:] - point[1:, None, None, None])), 4 * (places[0] - point[0])
            )
            for point in points.astype(np.float32)
        ]
    )
    near = np.sort(distances, axis=0)[:2]
    wall = np.clip((near[1] - near[0]) / 5, 0, 1)
    inside = np.hypot(*(places[1:] - 48)) < 45
    image = np.where(inside, 50 + 150 * wall, 30) + rng.normal(0, 12, SHAPE)
    ids = rng.integers(1, 2**63, len(points), dtype="uint64")
    labels = np.where(inside, ids[np.argmin(distances, axis=0)], np.uint64(0))
    return np.clip(image, 0, 255).astype("uint8"), labels


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Directory with both volumes, and their values."""
    root = tmp_path_factory.mktemp("volumes")
    image, labels = tissue()
    same = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": (16, 32, 8), "shard_nbytes": "64kB"}
    written = [
        shardwrite.to_precomputed(da.from_array(image, chunks=17), root / "image", **same),
        shardwrite.to_precomputed(
            da.from_array(labels, chunks=17),
            root / "cells",
            type="segmentation",
            encoding="compressed_segmentation",
            **same,
        ),
    ]
    assert min(one.n_shards for one in written) > 4
    return root, image, labels


class Serving(http.server.BaseHTTPRequestHandler):
    """Serves the viewer, and ranges of the volumes. The viewer also wants a stream of events."""

    protocol_version = "HTTP/1.1"
    roots: dict[str, Path]
    is_over: threading.Event
    ranges: list[tuple[str, str]]

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/events/"):
            self.answer(200, None, "text/event-stream")
            self.is_over.wait()
            return
        first, _, key = path.removeprefix("/v").lstrip("/").partition("/")
        file = self.roots.get(first, Path()) / (key or "index.html")
        if first not in self.roots or not file.is_file():
            self.answer(404, b"")
            return
        kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
        kind = kinds.get(file.suffix, "application/octet-stream")
        body = file.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            self.answer(200, body, kind)
            return
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(body))
        self.ranges.append((key, wanted[0]))
        self.answer(206, body[start:end], kind, f"bytes {start}-{end - 1}/{len(body)}")

    def answer(self, status, body, kind="text/plain", content_range=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Access-Control-Allow-Origin", "*")
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body or b"")
        self.wfile.flush()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def served(volumes):
    """Address of a server of the viewer and of the volumes, and the ranges that it was asked for."""
    found = importlib.util.find_spec("neuroglancer")
    if found is None:
        pytest.skip("neuroglancer is not installed")
    client = Path(found.origin).parent / "static" / "client"
    more = {
        "roots": {"viewer": client, "data": volumes[0]},
        "is_over": threading.Event(),
        "ranges": [],
    }
    handler = type("Handler", (Serving,), more)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.ranges
        handler.is_over.set()
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    if BROWSER is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root may not have one
        "--disable-dev-shm-usage",
        "--use-angle=swiftshader",  # draws on processors
        "--enable-unsafe-swiftshader",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(SECONDS)
    size = {"width": WINDOW[0], "height": WINDOW[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield driver
    driver.quit()


def state_of(address):
    """State of the viewer: the image to the left, and the cells to the right."""

    def panel(layer):
        return {"type": "viewer", "layers": [layer], "layout": "xy"}

    grey = "void main() { emitGrayscale(toNormalized(getDataValue())); }"
    return {
        "dimensions": {"x": [4e-9, "m"], "y": [4e-9, "m"], "z": [4e-8, "m"]},
        "position": POSITION,
        "crossSectionScale": PER_PIXEL,
        "crossSectionBackgroundColor": "#000000",
        "showAxisLines": False,
        "showScaleBar": False,
        "showDefaultAnnotations": False,
        "layers": [
            {
                "type": "image",
                "name": "image",
                "source": f"precomputed://{address}/data/image",
                "shader": grey,
            },
            {
                "type": "segmentation",
                "name": "cells",
                "source": f"precomputed://{address}/data/cells",
                "selectedAlpha": 1,
                "notSelectedAlpha": 1,
            },
        ],
        "layout": {"type": "row", "children": [panel("image"), panel("cells")]},
    }


def differing(pixels, panel, expected):
    """Number of pixels of a panel that are compared, and of those that have another colour.

    `expected` has the shape (y, x, 3). A pixel is compared if it shows a voxel, and no control of
    the viewer lies over it.
    """
    rows, columns = (
        middle + (np.asarray(panel[name]) + 0.5 - centre) * PER_PIXEL
        for name, middle, centre in zip(
            ("rows", "columns"), POSITION[1::-1], panel["centre"][::-1], strict=True
        )
    )
    ys, xs = np.floor(rows).astype(int), np.floor(columns).astype(int)
    is_free = np.asarray(panel["free"])
    is_free &= np.outer((ys >= 0) & (ys < SHAPE[1]), (xs >= 0) & (xs < SHAPE[2]))
    here = expected[np.clip(ys, 0, SHAPE[1] - 1)[:, None], np.clip(xs, 0, SHAPE[2] - 1)]
    shown = pixels[np.ix_(panel["rows"], panel["columns"])]
    is_other = (abs(shown.astype(int) - here) > 1).any(axis=2)  # one is a difference of rounding
    return int(is_free.sum()), int((is_free & is_other).sum())


def colours_of(browser, labels):
    """Colours that the viewer gives to the labels of the plane that is shown, from 0 to 255."""
    ids = [one for one in np.unique(labels).tolist() if one]
    found = browser.execute_script(COLOURS, [str(one) for one in ids])
    colours = {one: np.rint(255 * np.array(found[str(one)])).astype(int) for one in ids}
    assert len({tuple(one) for one in colours.values()}) == len(ids) > 20
    return colours


def pixels_of(file):
    from PIL import Image

    return np.asarray(Image.open(file).convert("RGB")).astype(int)


def test_the_viewer_shows_every_voxel(volumes, served, browser):
    from selenium.webdriver.support.ui import WebDriverWait

    address, ranges = served
    image, labels = (values[int(POSITION[2])] for values in volumes[1:])
    browser.get(f"{address}/v/viewer/#!{quote(json.dumps(state_of(address)))}")
    WebDriverWait(browser, SECONDS).until(lambda b: b.execute_script(READY))
    colours = colours_of(browser, labels)
    cells = np.zeros((*labels.shape, 3), int)
    for one, colour in colours.items():
        cells[labels == one] = colour
    expected = np.repeat(image[..., None], 3, axis=2), cells
    panels = browser.execute_script(PANELS)
    SHOT.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + SECONDS
    while True:  # what is loaded is drawn a little later
        browser.save_screenshot(str(SHOT))
        pixels = pixels_of(SHOT)
        found = [differing(pixels, *both) for both in zip(panels, expected, strict=True)]
        if not any(n_others for _, n_others in found) or time.monotonic() > until:
            break
    assert pixels.shape == (*WINDOW[::-1], 3)
    assert [n_others for _, n_others in found] == [0, 0]
    assert min(n_pixels for n_pixels, _ in found) > 100_000
    for panel, colour in zip(panels, expected, strict=True):
        assert differing(pixels, panel, colour[:, ::-1])[1] > 50_000  # mirrored
    read = {key for key, _ in ranges}
    assert all(key.endswith(".shard") for key in read)
    assert {key.partition("/")[0] for key in read} == {"image", "cells"}
    in_docs = pixels_of(IN_DOCS)
    assert in_docs.shape == pixels.shape
    for colour in colours.values():  # a younger viewer may place its controls elsewhere
        here, there = ((one == colour).all(axis=2).sum() for one in (pixels, in_docs))
        assert abs(here - there) <= 20 + here // 10
