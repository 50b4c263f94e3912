"""A write strategy that the package does not know is added by its public seams, and does all that
a strategy of its own does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from forks import python

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = """
import os, signal, sys
import dask.array as da, numpy as np
import shardwrite
rng = np.random.default_rng(7)
values = rng.integers(1, 200, (64, 64)) * (rng.random((64, 64)) < rng.random(64))
x = da.from_array(values.astype("u4"), chunks=16)
path = sys.argv[1]
keywords = dict(shards=16, chunks=4, source_id="toy", memory_limit="10kB")
"""
WRITE = (
    SOURCE
    + """
import largest_first
done = shardwrite.to_sharded_zarr(x, path, strategy="largest-first", **keywords)
print(done.n_resumed_shards)
"""
)
KILLED = (
    SOURCE
    + """
import dask, largest_first
dask.config.set(scheduler="threads", num_workers=1)
n_done = 0
def acknowledge(report):
    global n_done
    n_done += 1
    if n_done == 6:
        os.kill(os.getpid(), signal.SIGKILL)
shardwrite.to_sharded_zarr(x, path, strategy=largest_first.LargestFirst(), progress=acknowledge, **keywords)
"""
)
PREPARED = (
    SOURCE
    + """
import largest_first
strategy = largest_first.LargestFirst(align_nbytes=1024)
shardwrite.prepare(x, path, shardwrite.plan(x, strategy=strategy, **keywords))
"""
)
PART = (
    SOURCE
    + """
for k in range(3):
    shardwrite.write_part(x, path, k, 3, source_id="toy", memory_limit="1GB")
shardwrite.finalize(path)
"""
)


def run(program, path, *paths, code=0):
    """What a new process prints that runs a program, in which the toy can be imported."""
    own = filter(None, [os.environ.get("PYTHONPATH")])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *paths, *own]))}
    ended = subprocess.run(
        [*python(), "-c", program, str(path)],
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout.strip() if code == 0 else ended.stderr


def values():
    namespace: dict = {}
    exec(SOURCE.replace("sys.argv[1]", "''"), namespace)
    return namespace["values"].astype("u4")


def check_layout(path, align_nbytes):
    """Every inner chunk begins at a multiple of `align_nbytes`, and no chunk is larger than the
    chunk before it."""
    shards = [file for file in (path / "c").rglob("*") if file.is_file()]
    assert len(shards) == 16
    n_present = 0
    for shard in shards:
        table = np.frombuffer(shard.read_bytes()[-16 * 16 - 4 : -4], "<u8").reshape(16, 2)
        present = table[table[:, 0] != 2**64 - 1].astype(np.int64)
        assert not (present[:, 0] % align_nbytes).any()
        sizes = present[np.argsort(present[:, 0]), 1]
        assert (np.diff(sizes) <= 0).all()
        assert len(set(sizes.tolist())) > 1, "chunks of one size would prove nothing"
        n_present += len(present)
    return n_present


@pytest.mark.compat
def test_written_killed_resumed_verified_read_and_updated(tmp_path):
    path = tmp_path / "x.zarr"
    run(KILLED, path, HERE, code=-signal.SIGKILL)
    assert not (path / "zarr.json").exists()
    assert 0 < int(run(WRITE, path, HERE)) < 16, "some shards were written before the kill"
    check_layout(path, 512)
    assert shardwrite.verify(path, deep=True).is_good
    expected = values()
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], expected)

    sys.path.insert(0, str(HERE))
    try:
        import largest_first
    finally:
        sys.path.remove(str(HERE))
    new = np.arange(20 * 20, dtype="u4").reshape(20, 20)
    shardwrite.write_region(
        da.from_array(new, chunks=7),
        path,
        (slice(3, 23), slice(10, 30)),
        strategy=largest_first.LargestFirst(),
    )
    expected[3:23, 10:30] = new
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], expected)
    check_layout(path, 512)
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.long
def test_parts_find_it_with_its_parameters_once_its_module_is_imported(tmp_path):
    path = tmp_path / "x.zarr"
    run(PREPARED, path, HERE)
    said = run(PART, path, HERE, code=1)
    assert "JournalError" in said
    assert "'largest-first'" in said
    assert "import the module that registers it" in said
    run(f"import largest_first\n{PART}", path, HERE)
    check_layout(path, 1024)
    assert shardwrite.verify(path, deep=True).is_good
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], values())


@pytest.mark.parametrize(
    "line",
    [
        "[shardwrite.strategies]\nlargest-first = largest_first:LargestFirst\n",
        "[shardwrite.wings]\nstrategy.largest-first = largest_first:LargestFirst\n",
    ],
)
def test_parts_find_it_by_an_entry_point(tmp_path, line):
    package = tmp_path / "site" / "largest_first-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: largest-first\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(line)
    path = tmp_path / "x.zarr"
    run(PREPARED, path, HERE)
    run(PART, path, HERE, package.parent)
    check_layout(path, 1024)


@pytest.mark.parametrize(
    "fault", ["over each other", "left out", "all left out", "out of sequence"]
)
def test_a_mistake_of_a_strategy_is_an_error_and_never_a_bad_shard(tmp_path, fault):
    class Faulty(shardwrite.FixedOrder):
        name = label = f"faulty ({fault})"

        def streams(self, fixed_nbytes):
            return False

        def lay_out(self, nbytes, sequence, base, fixed_nbytes):
            placed = super().lay_out(nbytes, sequence, base, fixed_nbytes)
            offsets, kept, end = placed.offsets, placed.sequence, placed.data_nbytes
            if fault == "over each other":
                offsets = offsets.copy()
                offsets[kept[1]] -= 1
            elif fault == "left out":
                kept = kept[:-1]
            elif fault == "all left out":
                kept = kept[:0]
            else:
                kept = kept[::-1]
            return type(placed)(offsets, kept, end)

    x = da.from_array(values(), chunks=16)
    with pytest.raises(shardwrite.SpecError, match="mend the strategy"):
        x.to_sharded_zarr(tmp_path / "x", shards=16, chunks=4, strategy=Faulty())
    assert not (tmp_path / "x" / "zarr.json").exists()
