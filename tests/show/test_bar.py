"""The bar of a run in a notebook: what it says, when it is drawn, and when there is none."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from helpers import Stop

from shardwrite.show.bar import NotebookBar

KEYWORDS = {"shards": 16, "chunks": 8, "durability": "none"}


class Shown:
    """Stands for the display of a notebook, and keeps all that was drawn in one place."""

    def __init__(self):
        self.html, self.texts, self.places = [], [], 0

    def __call__(self, obj, display_id=None):
        self.places += 1
        self.update(obj)
        return self

    def update(self, obj):
        self.html.append(obj._repr_html_())
        self.texts.append(repr(obj))


@pytest.fixture
def shown(monkeypatch):
    """A notebook: IPython is imported, and its shell has a kernel."""
    found = Shown()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display.display = found
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def report(nbytes):
    return SimpleNamespace(raw_nbytes=nbytes)


def width(html):
    return float(re.search(r'style="width:([\d.]+)%"', html)[1])


def test_what_the_bar_says(monkeypatch):
    now = [0.0]
    shown = Shown()
    bar = NotebookBar(1000_000, shown, clock=lambda: now[0])
    assert shown.texts == ["writing: 0%: 0 B of 1 MB"]
    now[0] = 0.1
    bar(report(100_000))
    assert len(shown.texts) == 1, "it is not drawn more often than eyes see"
    now[0] = 2.0
    bar(report(100_000))
    assert shown.texts[-1] == "writing: 20%: 200 kB of 1 MB, 100 kB/s, about 8.00 s left"
    assert width(shown.html[-1]) == 20
    now[0] = 2.01
    bar(report(800_000))
    assert len(shown.texts) == 2
    bar.end(is_done=True)
    assert shown.texts[-1] == "writing: done: 1 MB in 2.01 s, 498 kB/s"
    assert width(shown.html[-1]) == 100
    assert shown.places == 1


def test_all_forms_of_one_drawing_tell_the_same_time():
    ticks = iter(range(100))
    shown = Shown()
    bar = NotebookBar(1000_000, shown, clock=lambda: float(next(ticks)))
    bar(report(1000_000))
    bar.end(is_done=True)
    for html, text in zip(shown.html, shown.texts, strict=True):
        assert text.removeprefix("writing: ") in html


def test_what_was_there_before_does_not_count_as_speed():
    now = [0.0]
    shown = Shown()
    bar = NotebookBar(1000_000, shown, clock=lambda: now[0])
    bar.add_earlier(600_000)
    assert shown.texts[-1] == "writing: 60%: 600 kB of 1 MB"
    now[0] = 2.0
    bar(report(200_000))
    assert shown.texts[-1] == "writing: 80%: 800 kB of 1 MB, 100 kB/s, about 2.00 s left"
    bar.end(is_done=False)
    assert shown.texts[-1] == "writing: stopped at 80%: 800 kB of 1 MB, after 2.00 s"
    assert "sw-fill sw-stopped" in shown.html[-1]


@pytest.mark.parametrize("scheduler", ["threads", "sync", "distributed"])
def test_the_driver_draws(shown, tmp_path, scheduler):
    x = da.ones((64, 64), chunks=16)
    if scheduler == "distributed":
        with Client(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as client:
            client.run(lambda: None)
            x.to_sharded_zarr(tmp_path / "x", progress=True, **KEYWORDS)
    else:
        import dask

        with dask.config.set(scheduler=scheduler):
            x.to_sharded_zarr(tmp_path / "x", progress=True, **KEYWORDS)
    assert shown.places == 1
    assert shown.texts[0] == "writing: 0%: 0 B of 32.8 kB"
    assert re.fullmatch(r"writing: done: 32\.8 kB in [\d.]+ m?s, .*/s", shown.texts[-1])


def test_a_call_that_finds_everything_done_says_so(shown, tmp_path):
    x = da.ones((64, 64), chunks=16)
    x.to_sharded_zarr(tmp_path / "x", progress=True, **KEYWORDS)
    again = x.to_sharded_zarr(tmp_path / "x", progress=True, **KEYWORDS)
    assert shown.texts[-1] == "writing: done; nothing was left to do"
    assert again.throughput == 0
    for text in (str(again), again._repr_html_()):
        assert "nothing was left to do" in text
        told = re.sub(r"<style>.*?</style>", "", text, flags=re.S).replace(str(tmp_path), "")
        assert "/s" not in told.replace("</s", "")


def test_an_error_leaves_a_bar_that_says_how_far_it_was_and_the_next_call_goes_on(
    shown, tmp_path, monkeypatch
):
    import dask

    n_calls = [0]

    def value(block):
        n_calls[0] += 1
        if n_calls[0] == 5:
            raise Stop
        return block

    def x():
        ones = da.ones((64, 64), chunks=16)
        return ones.map_blocks(value, dtype="f8", meta=np.empty((0, 0)), name="x", token="x")

    with dask.config.set(scheduler="sync"):
        with pytest.raises(Stop):
            x().to_sharded_zarr(
                tmp_path / "x", progress=True, memory_limit="20kB", source_id="x", **KEYWORDS
            )
        assert re.match(r"writing: stopped at \d+%", shown.texts[-1])
        done = int(re.search(r"(\d+)%", shown.texts[-1])[1])
        assert 0 < done < 100
        result = x().to_sharded_zarr(
            tmp_path / "x", progress=True, memory_limit="20kB", source_id="x", **KEYWORDS
        )
    assert result.n_resumed_shards > 0
    assert result.resumed_nbytes == result.n_resumed_shards * 16 * 16 * 8
    assert result.throughput == pytest.approx((32768 - result.resumed_nbytes) / result.seconds)
    assert f"writing: {round(100 * result.resumed_nbytes / 32768)}%" in " ".join(shown.texts)
    assert shown.texts[-1].startswith("writing: done: ")


@pytest.mark.parametrize("kernel", ["no IPython", "terminal"])
def test_without_a_notebook_nothing_is_shown(shown, tmp_path, monkeypatch, kernel, capfd):
    if kernel == "terminal":
        sys.modules["IPython"].get_ipython = lambda: SimpleNamespace(kernel=None)
    else:
        monkeypatch.delitem(sys.modules, "IPython")
    da.ones((64, 64), chunks=16).to_sharded_zarr(tmp_path / "x", progress=True, **KEYWORDS)
    assert shown.places == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_ipython_is_not_imported(tmp_path):
    code = (
        "import sys, dask.array as da, shardwrite\n"
        "da.ones(8, chunks=8).to_sharded_zarr(sys.argv[1], shards=8, chunks=4, progress=True)\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'IPython']\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "x"], check=True)


def test_bytes_of_a_region_that_was_resumed(tmp_path):
    """Only what lies in the region counts, as in the total."""
    from shardwrite.grid import Box, ShardGrid
    from shardwrite.journal.ledger import elements_in_shards

    rng = np.random.default_rng(0)
    for _ in range(60):
        shape = tuple(rng.integers(1, 30, 2).tolist())
        chunks = tuple(rng.integers(1, 4, 2).tolist())
        shards = tuple((c * k) for c, k in zip(chunks, rng.integers(1, 4, 2).tolist(), strict=True))
        grid = ShardGrid(shape, shards, chunks)
        low = [int(rng.integers(0, n)) for n in shape]
        high = [int(rng.integers(a, n)) + 1 for a, n in zip(low, shape, strict=True)]
        region = Box(tuple(low), tuple(high))
        for box in (None, region):
            inside = np.zeros(shape, bool)
            inside[(box or grid.whole).slices] = True
            told = [
                int(inside[grid.shard_box(index).intersect(grid.whole).slices].sum())
                for index in grid.shards_in(grid.whole)
            ]
            assert elements_in_shards(grid, box).tolist() == told
