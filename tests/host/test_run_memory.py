"""The memory of a run: above what the process had, and without mapped pages."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from forks import python

from shardwrite.host import resources

MIB = 2**20
on_linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells anonymous memory apart"
)


@pytest.fixture(autouse=True)
def no_garbage():
    """Nothing that earlier tests left is freed meanwhile, not by their threads either."""
    gc.collect()
    n_alike, before = 0, -1
    while n_alike < 4:  # on a busy machine, threads of earlier tests take long to end
        time.sleep(0.1)
        now = resources.memory_nbytes()
        n_alike, before = (n_alike + 1 if abs(now - before) < MIB else 0), now


def noted(run):
    """Take a sample now, however short the last one was ago."""
    time.sleep(2 * resources._PAUSE_SECONDS)
    resources.note_memory(run)


def in_a_process_of_its_own(check, *arguments):
    """Call a function where no threads of earlier tests free memory meanwhile."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_run_memory
test_run_memory.{check.__name__}(*sys.argv[1:])
"""
    command = [*python(), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@on_linux
def test_only_what_came_after_the_baseline_counts():
    in_a_process_of_its_own(check_only_what_came_after_the_baseline)


def check_only_what_came_after_the_baseline():
    before = np.ones(64 * MIB, np.uint8)
    resources.watch_memory("a run")
    assert resources.peak_memory_nbytes("a run") < 8 * MIB
    during = np.ones(48 * MIB, np.uint8)
    noted("a run")
    del during
    assert 46 * MIB < resources.peak_memory_nbytes("a run") < 64 * MIB, "the peak stays"
    resources.watch_memory("another run")
    assert resources.peak_memory_nbytes("another run") < 8 * MIB
    resources.watch_memory("a run")
    assert resources.peak_memory_nbytes("a run") < 8 * MIB, "the same run has begun again here"
    assert before.all()


@pytest.mark.long
@on_linux
def test_mapped_pages_do_not_count(tmp_path):
    in_a_process_of_its_own(check_mapped_pages, tmp_path / "mapped")


def check_mapped_pages(path):
    path = Path(path)
    path.write_bytes(bytes(48 * MIB))
    resources.watch_memory("mapped")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert sum(pages[:: mmap.PAGESIZE]) == 0
        noted("mapped")
    assert resources.peak_memory_nbytes("mapped") < 16 * MIB


@pytest.mark.long
@on_linux
def test_a_process_that_came_later_counts_what_its_first_task_holds():
    in_a_process_of_its_own(check_a_process_that_came_later)


def check_a_process_that_came_later():
    array = np.ones(48 * MIB, np.uint8)
    resources._watched.pop("late", None)
    resources.note_memory("late", array.nbytes)
    assert 40 * MIB < resources.peak_memory_nbytes("late") < 56 * MIB


@pytest.mark.long
def test_runs_that_are_long_over_are_forgotten():
    for number in range(resources._MOST_RUNS + 10):
        resources.watch_memory(f"run {number}")
    assert len(resources._watched) == resources._MOST_RUNS
    assert f"run {resources._MOST_RUNS + 9}" in resources._watched


@pytest.mark.long
@on_linux
def test_it_is_what_the_system_calls_anonymous():
    status = Path("/proc/self/status").read_text()
    told = int(status.partition("RssAnon:")[2].split()[0]) * 1024
    assert abs(resources.memory_nbytes() - told) < 4 * MIB


@pytest.mark.long
def test_other_systems_tell_the_growth_of_the_resident_set(monkeypatch, tmp_path):
    import resource
    from types import SimpleNamespace

    monkeypatch.setattr(resources, "_STATM", str(tmp_path / "none"))
    peaks = iter([1000, 1000, 5000])
    unit = 1 if sys.platform == "darwin" else 1024
    monkeypatch.setattr(
        resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=next(peaks) * MIB // unit)
    )
    resources.watch_memory("elsewhere")
    assert resources.peak_memory_nbytes("elsewhere") == 0
    assert resources.peak_memory_nbytes("elsewhere") == 4000 * MIB
    resources._watched.clear()  # other systems' numbers


@pytest.mark.long
@on_linux
def test_a_result_tells_what_the_run_took_and_not_what_the_process_had(tmp_path):
    in_a_process_of_its_own(check_what_a_result_tells, tmp_path)


def check_what_a_result_tells(path):
    path = Path(path)
    warm = da.ones((64, 64), chunks=32)
    warm.to_sharded_zarr(path / "warm", shards=32, chunks=16, durability="none")
    before = np.ones(256 * MIB, np.uint8)
    x = da.map_blocks(
        lambda block_id: np.random.default_rng(block_id[0]).integers(0, 99, (8 * MIB,), "u1"),
        chunks=((8 * MIB,) * 4,),
        dtype="u1",
    )
    with dask.config.set(num_workers=2):  # one thread holds less when samples are taken
        result = x.to_sharded_zarr(path / "x", shards=8 * MIB, chunks=MIB, durability="none")
    (peak,) = result.peak_nbytes_by_process.values()
    assert 8 * MIB < peak < 128 * MIB
    assert before.all()
    assert "above what it had" in str(result)
