"""Pictures of the shard grid: folding against brute force; text, HTML and PNG read back."""

from __future__ import annotations

import io
import itertools
import json
import math
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rich.console import Console

from shardwrite.errors import SpecError
from shardwrite.read.census import STATES, Census, ShardState
from shardwrite.show.fold import GAP, PALETTE, SIZE_COLOURS, fold
from shardwrite.show.page import html
from shardwrite.show.png import write_png
from shardwrite.show.terminal import terminal_picture

WORST_FIRST = [
    ShardState.BAD,
    ShardState.MISSING,
    ShardState.PENDING,
    ShardState.WRITTEN,
    ShardState.EMPTY,
]
GRIDS = hnp.arrays(
    np.uint8,
    hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6),
    elements=st.integers(0, 4),
)
SMALL = np.array([[1, 1, 2, 0], [1, 4, 3, 0], [2, 1, 1, 1]], np.uint8)


def census_of(states, path="/data/volume.zarr"):
    """Written shards of growing size."""
    states = np.asarray(states, np.uint8)
    stored = np.where(
        states == ShardState.WRITTEN, 1000 * (1 + np.arange(states.size).reshape(states.shape)), 0
    )
    return Census(
        path,
        states.size * 8,
        int((states == ShardState.WRITTEN).sum()) * 6,
        (2,) * states.ndim,
        states,
        stored,
    )


def printed(census, width, **options):
    file = io.StringIO()
    Console(file=file, width=200, **options).print(terminal_picture(census, width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def shards_of(picture, shape, y, x):
    """Shards of a cell: the box from its first to its last in the planes; a run of planes, or of
    shards in a line."""
    first, last = int(picture.first[y, x]), int(picture.last[y, x])
    if first < 0:
        return []
    three = (math.prod(shape), 1, 1) if len(shape) < 2 else (math.prod(shape[:-2]), *shape[-2:])
    corners = zip(np.unravel_index(first, three), np.unravel_index(last, three), strict=True)
    return [
        np.ravel_multi_index(index, three)
        for index in itertools.product(*(range(a, b + 1) for a, b in corners))
    ]


@pytest.mark.long
@settings(max_examples=300)
@given(GRIDS, st.integers(1, 12), st.integers(1, 12))
def test_nothing_is_lost_and_the_worst_shows(states, max_rows, max_columns):
    stored = np.random.default_rng(0).integers(1, 2**40, states.shape)
    picture = fold(states, stored, max_rows, max_columns)
    rows, columns = picture.states.shape
    assert rows <= max_rows
    assert columns <= max_columns
    seen = []
    for y, x in np.ndindex(rows, columns):
        cell = shards_of(picture, states.shape, y, x)
        assert picture.n_shards[y, x] == len(cell)
        if not cell:
            assert picture.states[y, x] == GAP
            continue
        in_cell, nbytes = states.reshape(-1)[cell], stored.reshape(-1)[cell]
        assert picture.states[y, x] == next(state for state in WORST_FIRST if state in in_cell)
        written = nbytes[in_cell == ShardState.WRITTEN]
        np.testing.assert_allclose(picture.mean_nbytes[y, x], written.mean() if written.size else 0)
        seen += cell
    assert sorted(seen) == list(range(states.size)), "every shard is in one cell"


@pytest.mark.long
@given(GRIDS)
def test_what_fits_is_not_reduced(states):
    assert (fold(states, np.zeros(states.shape), 10_000, 10_000).n_shards <= 1).all()


def test_two_dimensions_stay_as_they_are():
    np.testing.assert_array_equal(fold(SMALL, SMALL, 3, 4).states, SMALL)


def test_a_line_is_wrapped():
    line = np.arange(10, dtype=np.uint8) % 5
    np.testing.assert_array_equal(fold(line, line, 9, 5).states, line.reshape(2, 5))
    assert fold(line, line, 9, 10).states.shape == (1, 10)
    assert fold(line, line, 1, 5).states.tolist() == [[0, 3, 4, 1, 4]], (
        "pending hides written, written hides empty"
    )


def test_planes_are_tiled_in_a_square():
    picture = fold(np.ones((3, 3, 4, 4), np.uint8), np.zeros((3, 3, 4, 4)), 99, 99)
    assert picture.states.shape == (14, 14)
    assert (picture.states[4] == GAP).all()
    assert (picture.states[:, 9] == GAP).all()


@pytest.mark.long
@given(GRIDS)
def test_counts(states):
    census = census_of(states)
    assert census.counts == {name: int((states == code).sum()) for code, name in enumerate(STATES)}
    facts = json.loads(json.dumps(census.to_dict()))
    assert facts["grid_shape"] == list(states.shape)
    assert facts["n_shards"] == states.size == sum(facts["counts"].values())
    sizes = census.stored_nbytes[states == ShardState.WRITTEN]
    assert facts["total_nbytes"] == sizes.sum()
    if sizes.size:
        assert (facts["min_nbytes"], facts["max_nbytes"]) == (sizes.min(), sizes.max())
        assert facts["mean_nbytes"] == pytest.approx(sizes.mean())


def test_grids_that_differ_are_refused():
    with pytest.raises(ValueError, match="grids differ"):
        Census("x", 1, 1, (1,), np.zeros(3, np.uint8), np.zeros(4, np.int64))


def test_the_table():
    assert str(census_of(SMALL)).splitlines() == [
        "census",
        "  array         /data/volume.zarr",
        "  grid          3 x 4 shards, each of 2 x 2 inner chunks",
        "  shards        6 written, 2 empty, 2 pending, 1 missing, 1 bad",
        "  inner chunks  36 of 96 hold data (37.5%)",
        "  stored        41 kB; 6.83 kB per shard on average, from 1 kB to 12 kB",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"color_system": None},
        {"force_terminal": True, "color_system": "truecolor", "no_color": True},
    ],
    ids=["pipe", "no_color"],
)
def test_letters_without_colours(options):
    assert printed(census_of(SMALL), 80, **options) == [
        "##.-",
        "#!?-",
        ".###",
        "",
        "# 6 written, 1 kB to 12 kB   . 2 empty   - 2 pending   ? 1 missing   ! 1 bad",
        "shard grid 3 x 4",
    ]


def test_half_blocks_in_colours():
    lines = printed(
        census_of([[1, 4], [2, 3], [0, 1]]),
        3,
        force_terminal=True,
        no_color=False,
        color_system="truecolor",
    )
    red, pink, dark = "226;38;38", "255;156;225", "44;46;58"
    assert f"\x1b[38;2;{red};48;2;{pink}m▀" in lines[0]
    assert f"48;2;{dark}m▀" in lines[0]
    assert "48;2" not in lines[1], "below the last row the terminal's own background shows"


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0), (1,), (500,), (40, 90), (9, 8, 7), (3000, 2, 2)], ids=str
)
@pytest.mark.parametrize("width", [1, 30])
def test_any_grid_fits_the_width(shape, width):
    census = census_of(np.ones(shape, np.uint8))
    lines = printed(census, width, color_system=None)
    assert lines[-1].startswith("shard grid")
    assert all(len(line) <= width for line in lines[: lines.index("")])
    assert printed(census, width, force_terminal=True, no_color=False, color_system="truecolor")


class Page(HTMLParser):
    """Checks that tags are balanced and collects the text in them."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text, self.n_rects = [], {}, 0
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.n_rects += tag == "rect"
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.setdefault(self.open[-1] if self.open else "", []).append(data)


def test_the_page_names_every_shard_and_escapes_the_path():
    page = html(census_of(SMALL, path="/data/<script>&'x'.zarr"))
    parsed = Page(page)
    assert "<script" not in page
    assert "/data/<script>&'x'.zarr" in parsed.text["td"]
    assert parsed.n_rects == SMALL.size
    assert "shard (0, 1): written, 2,000 bytes" in parsed.text["title"]
    assert "shard (1, 2): missing" in parsed.text["title"]


@pytest.mark.long
def test_large_pages_join_runs_and_then_fold():
    states = np.full((100, 100), ShardState.EMPTY, np.uint8)
    states[3, 50] = ShardState.BAD
    parsed = Page(html(census_of(states)))
    assert parsed.n_rects == 102
    assert "shards (3, 51) to (3, 99): empty" in parsed.text["title"]
    states = np.ones((300, 300), np.uint8)
    states[299, 299] = ShardState.BAD
    parsed = Page(html(census_of(states)))
    assert parsed.n_rects <= 20_000
    assert any(
        "(299, 299), at worst bad; written ones have" in title for title in parsed.text["title"]
    )


@pytest.mark.compat
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (5, 4, 3, 2)], ids=str)
def test_every_grid_has_a_page_and_a_notebook_cell(shape):
    census = census_of(np.ones(shape, np.uint8))
    assert Page(html(census)).n_rects == Page(census._repr_html_()).n_rects == math.prod(shape)


@pytest.mark.compat
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (30, 40), (4, 5, 6)], ids=str)
def test_png_is_read_back(shape, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    states = np.ones(shape, np.uint8)
    if states.size:
        states.reshape(-1)[-1] = ShardState.BAD
    path = tmp_path / "picture"
    write_png(census_of(states, path="/data/$x_$.zarr"), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = (image.imread(path, format="png")[..., :3] * 255).round().astype(int)
    assert pixels.shape == (900, 1200, 3)
    is_red = (pixels == (226, 38, 38)).all(axis=-1)
    assert is_red.any() == bool(states.size)


@pytest.mark.long
def test_png_has_lines_between_cells_and_a_scale(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    states = np.full((4, 6), ShardState.EMPTY, np.uint8)
    states[:2] = ShardState.WRITTEN

    def pixels(sizes):
        stored = np.where(states == ShardState.WRITTEN, sizes, 0)
        write_png(replace(census_of(states), stored_nbytes=stored), tmp_path / "x.png")
        return (image.imread(tmp_path / "x.png")[..., :3] * 255).round().astype(int)

    def columns_of(found, colour):
        return np.flatnonzero((found[:800] == colour).all(axis=-1).any(axis=0))

    even, uneven = pixels(1000), pixels(1000 + np.arange(24).reshape(4, 6))
    (dark,) = {tuple(colour) for colour in PALETTE[[ShardState.EMPTY]].tolist()}
    row = (even[600] == dark).all(axis=-1)
    runs = np.flatnonzero(np.diff(row.astype(int)) == 1)
    assert len(runs) == 6, "six cells with lines between them"
    yellow = SIZE_COLOURS[-1]
    last_cell = np.flatnonzero((uneven[600] == dark).all(axis=-1)).max()
    assert columns_of(uneven, yellow).max() > last_cell
    assert not len(columns_of(even, yellow)), "shards of one size need no scale"


@pytest.mark.long
def test_a_dark_png_has_a_dark_ground_and_light_text(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    stored = census_of(SMALL).stored_nbytes + np.arange(SMALL.size).reshape(SMALL.shape)
    found = {}
    for is_dark in (False, True):
        census = replace(census_of(SMALL), stored_nbytes=stored)
        write_png(census, tmp_path / "x.png", is_dark=is_dark)
        found[is_dark] = (image.imread(tmp_path / "x.png")[..., :3] * 255).round().astype(int)
    light, dark = found[False], found[True]
    assert light.shape == dark.shape
    assert tuple(light[0, 0]) == (255, 255, 255)
    assert tuple(dark[0, 0]) == (20, 23, 27)
    # no text, tick or line keeps the colour of the other mode
    assert not (dark == 255).all(axis=-1).any()
    assert not (dark < 15).all(axis=-1).any()
    # what is text in one is text in the other
    is_cell = (light == PALETTE[ShardState.EMPTY]).all(axis=-1)
    is_text = (light < 60).all(axis=-1) & ~is_cell
    assert (dark[is_text].mean(axis=-1) > 150).mean() > 0.9


@pytest.mark.long
def test_one_bad_shard_of_many_is_drawn(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    states = np.full((1500, 1400), ShardState.EMPTY, np.uint8)
    states[777, 333] = ShardState.BAD
    write_png(census_of(states), tmp_path / "x.png")
    pixels = (
        (image.imread(tmp_path / "x.png")[:700, :, :3] * 255).round().astype(int)
    )  # without the legend
    assert (pixels == (226, 38, 38)).all(axis=-1).any()


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SpecError, match=r'pip install "shardwrite\[plot\]"'):
        write_png(census_of(SMALL), tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


# Machado, Oliveira and Fernandes, 2009: how colours in linear RGB look without one kind of cone
SIGHTS = {
    "all cones": np.eye(3),
    "no long": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no middle": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no short": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip


def oklab(colours, sight):
    """Colours in a space in which distances are as large as they look."""
    c = np.asarray(colours) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    opponent = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    seen = np.clip(linear @ sight.T, 0, 1)
    return np.cbrt(seen @ np.transpose(cones)) @ np.transpose(opponent)


@pytest.mark.parametrize("sight", SIGHTS)
def test_states_differ_from_each_other_and_from_the_scale_for_every_eye(sight):
    seen = oklab(PALETTE, SIGHTS[sight])
    states = [
        state for state in ShardState if state != ShardState.WRITTEN
    ]  # has no colour of its own
    for one in states:
        others = [*(s for s in states if s != one), *range(len(STATES), len(PALETTE))]
        distances = np.linalg.norm(seen[others] - seen[one], axis=1)
        assert distances.min() > 0.115, (one, others[int(distances.argmin())])
