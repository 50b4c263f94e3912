"""What a kill costs: shards of the last second and those in flight, never a group, however many
shards it has."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams
from forks import python

import shardwrite
from shardwrite import StoreError

sys.path.insert(0, str(Path(__file__).parent))
import oracle

SIDE = 27
SECONDS = 0.004  # that the commit of a shard takes
PROGRAM = f"""
import os, signal, sys, time
import dask
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_redone
from shardwrite.stores import posix
real, published = posix.PosixWriter.publish, []
def publish(self):
    real(self)
    if "/c/" in self.path:
        published.append(self.path)
        time.sleep(float(sys.argv[3]))
        if len(published) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
posix.PosixWriter.publish = publish
test_redone.write(sys.argv[1], "sync")
"""


def write(path, scheduler, durability="none"):
    x = oracle.source((SIDE * 8, SIDE * 8), -1)
    with dask.config.set(scheduler=scheduler):
        return x.to_sharded_zarr(
            path, shards=8, chunks=4, durability=durability, source_id="values"
        )


def files_of(path):
    return {p: p.stat() for p in path.glob("c/*/*") if p.suffix != ".swtmp"}


@pytest.mark.long
def test_one_group_of_729_shards(tmp_path):
    path = tmp_path / "x.zarr"
    ended = subprocess.run(
        [*python(), "-c", PROGRAM, path, "540", str(SECONDS)], check=False, timeout=60
    )
    assert ended.returncode == -9
    before = files_of(path)
    assert len(before) == 540
    last = max(stat.st_mtime for stat in before.values())
    lately = sum(stat.st_mtime >= last - 1.4 for stat in before.values())
    assert lately < 500, "else this shows nothing"
    told = seams.status_of(path)
    assert len(before) - lately <= told.n_done_shards < len(before)
    ((cause, n_times),) = told.failures.items()
    assert cause.startswith("ended in the middle of a task")
    assert n_times == 1
    result = write(path, "threads")
    assert result.n_resumed_shards == told.n_done_shards
    after = files_of(path)
    redone = sum(after[p].st_ino != stat.st_ino for p, stat in before.items())
    assert redone <= lately
    oracle.check_whole(path, oracle.values((SIDE * 8, SIDE * 8)))


@pytest.mark.long
@pytest.mark.parametrize("n_shards", [4, 25])
def test_a_run_goes_on_that_is_killed_again_and_again_within_half_a_second(tmp_path, n_shards):
    """Nothing was in the journal before a second had passed, so that it began with the same shard
    for ever."""
    path, n_done = tmp_path / "x.zarr", 0
    command = [*python(), "-c", PROGRAM, path, str(n_shards), str(0.5 / n_shards)]
    for _ in range(4):
        assert subprocess.run(command, check=False, timeout=60).returncode == -9
        before, n_done = n_done, seams.status_of(path).n_done_shards
        assert n_done - before >= n_shards // 3
    assert write(path, "threads").n_resumed_shards == n_done
    oracle.check_whole(path, oracle.values((SIDE * 8, SIDE * 8)))


SLOW = f"""
import os, signal, sys, time
import dask
sys.path.insert(0, {str(Path(__file__).parent)!r})
import seams, test_redone
n_written = []
def slowly(*_):
    n_written.append(0)
    if len(n_written) == 100:
        os.write(1, b"slow")
        time.sleep(60)
seams.before(None, "write a shard", slowly)
test_redone.write(sys.argv[1], "sync", durability=sys.argv[2])
"""
AS_COMMAND = (
    "import sys; from shardwrite.runs.outcome import handling_signals\n"
    f"with handling_signals(): exec({SLOW!r})"
)


@pytest.mark.parametrize("durability", ["none", pytest.param("batch", marks=pytest.mark.long)])
@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGKILL, 1.2), (signal.SIGTERM, 0)])
def test_no_committed_shard_is_redone_while_a_task_is_busy_with_the_next(
    tmp_path, durability, number, seconds
):
    """The lines of the shards before waited for the end of a shard that took longer; SIGTERM ended
    the process without them."""
    path = tmp_path / "x.zarr"
    program = SLOW if number == signal.SIGKILL else AS_COMMAND
    with subprocess.Popen(
        [*python(), "-c", program, path, durability], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.read(4) == b"slow"
        time.sleep(seconds)
        process.send_signal(number)
        assert process.wait(10) == (-9 if number == signal.SIGKILL else 85)
    before = files_of(path)
    assert len(before) > 99 - (64 if durability == "batch" else 8)
    assert seams.status_of(path).n_done_shards == len(before)
    assert write(path, "threads").n_resumed_shards == len(before)
    after = files_of(path)
    assert all(after[p].st_ino == stat.st_ino for p, stat in before.items())
    oracle.check_whole(path, oracle.values((SIDE * 8, SIDE * 8)))


READER = """
import os, signal, sys, time
import dask, dask.array as da, numpy as np
import shardwrite
log = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
n_read = []
def block(block_info=None):
    place = block_info[None]["chunk-location"]
    os.write(log, b"%d,%d\\n" % place)
    n_read.append(place)
    if len(n_read) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.001)
    return np.full((64, 128), place[0] * 32 + place[1] + 1, "u2")
x = da.map_blocks(block, chunks=((64,) * 24, (128,) * 32), dtype="u2", name="blocks", meta=np.empty((0, 0), "u2"))
with dask.config.set(scheduler="threads", num_workers=2):
    x.to_sharded_zarr(sys.argv[1], shards=(64, 128), chunks=(32, 64), durability="none", source_id="blocks")
"""


@pytest.mark.parametrize("n_read", [pytest.param(200, marks=pytest.mark.long), 500])
def test_source_blocks_that_are_read_again(tmp_path, n_read):
    """Of 768, of which each is a shard: no more than two tasks take."""
    log = tmp_path / "log"
    command = [*python(), "-c", READER, tmp_path / "x.zarr", log]
    assert subprocess.run([*command, str(n_read)], check=False, timeout=60).returncode == -9
    before = log.read_text().split()
    subprocess.run([*command, "0"], check=True, timeout=60)
    after = log.read_text().split()[len(before) :]
    assert set(before) | set(after) == {f"{i},{j}" for i in range(24) for j in range(32)}
    assert len(set(before) & set(after)) <= 48
    assert len(before) >= n_read


def test_a_group_that_is_half_done_reads_only_what_is_left(tmp_path, monkeypatch):
    n_read = []

    def block(block_info=None):
        n_read.append(block_info[None]["chunk-location"])
        return np.full((8, 8), 1 + sum(n_read[-1]), "u2")

    x = da.map_blocks(
        block, chunks=((8,) * 12, (8,) * 12), dtype="u2", name="blocks", meta=np.empty((0, 0), "u2")
    )
    keywords = {"shards": 8, "chunks": 4, "strategy": "append-only", "source_id": "blocks"}
    published = []

    def fail(writer):
        published.extend([writer.path] if "/c/" in writer.path else [])
        if len(published) > 100:
            raise OSError(errno.ENOSPC, "no space")

    with dask.config.set(scheduler="sync"):
        assert shardwrite.plan(x, **keywords).partition.n_groups == 1
        with monkeypatch.context() as patch:
            seams.before(patch, "rename a file", fail)
            with pytest.raises(StoreError, match="no space"):
                x.to_sharded_zarr(tmp_path / "x", **keywords)
        assert len(n_read) == 144
        result = x.to_sharded_zarr(tmp_path / "x", **keywords)
    assert result.n_resumed_shards == 100
    assert len(n_read) == 144 + 44
    assert (
        shardwrite.open_sharded(tmp_path / "x")[88:, 88:].tolist() == np.full((8, 8), 23).tolist()
    )


@pytest.fixture
def run(tmp_path):
    """A run that was begun and has no journal yet."""
    x = oracle.source((64, 64), (16, 64))
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, shards=16, chunks=8))
    return seams.run_directory(tmp_path / "x")


def test_a_task_that_goes_on_has_not_ended(tmp_path, run):
    log = seams.log_of(run, "dead")
    log.append(seams.begins("dead.1", (0, 0), (4, 4)))
    log.append(seams.commits("dead.1", 0, 1, more=True))
    log.append(seams.commits("dead.1", 2, more=True))
    assert seams.logged(tmp_path / "x") == seams.Logged({0, 1, 2}, ["dead.1"], [1], 0, 0)
    log.append(seams.commits("dead.1"))  # which has nothing left to say
    log.close()
    assert seams.logged(tmp_path / "x") == seams.Logged({0, 1, 2}, [], [0], 0, 0)


def test_a_line_of_before_ends_its_task(tmp_path, run):
    """Journals of versions whose tasks wrote one line each."""
    log = seams.log_of(run, "dead")
    log.append(seams.begins("dead.1", (0, 0), (4, 4)))
    line = seams.commits("dead.1", 3, 4)
    assert sorted(line) == [
        "attempt",
        "index_crcs",
        "n_chunks",
        "nbytes",
        "peak_nbytes",
        "seconds",
        "shards",
    ]
    log.append(line)
    log.append(seams.commits("dead.2", 5, more="maybe"))
    log.close()
    assert seams.logged(tmp_path / "x") == seams.Logged({3, 4}, [], [0], 0, n_bad_lines=1)


@pytest.mark.parametrize("durability", ["full", "batch", "none"])
@seams.log_every(0)
def test_lines_tell_only_of_what_is_durable(tmp_path, monkeypatch, durability):
    """A line after each shard, which waits for no other then; each shard in one line, and none
    before its directory is synced."""
    visible, durable, lines = set(), set(), []

    def synced(store, paths, synced):
        directories = {str(path.parent) for path in paths}
        durable.update(p for p in visible if os.path.dirname(p) in directories)

    def appending(writer, fields):
        if "shards" in fields:
            known = visible if durability == "none" else durable
            for rank in fields["shards"]:
                assert str(tmp_path / "x" / "c" / str(rank // 10) / str(rank % 10)) in known
            lines.append(list(fields["shards"]))

    seams.after(monkeypatch, "rename a file", lambda writer: visible.add(str(writer.path)))
    seams.after(monkeypatch, "sync the directories", synced)
    seams.before(monkeypatch, "append to the log", appending)
    with dask.config.set(scheduler="sync"):
        oracle.source((80, 80), -1).to_sharded_zarr(
            tmp_path / "x", shards=8, chunks=4, durability=durability
        )
    assert sorted(rank for line in lines for rank in line) == list(range(100))
    assert len(lines) == 100


@seams.log_every(0)
def test_a_line_that_cannot_be_written_is_in_the_next(tmp_path, monkeypatch):
    monkeypatch.setitem(dask.config.config, "shardwrite", {"retry-pauses": [0, 0, 0]})
    n_failed = []

    def fail(writer, line):
        if b'"more":true' in line and len(n_failed) < 5:
            n_failed.append(line)
            raise OSError(errno.EIO, "not now")

    seams.before(monkeypatch, "write the log", fail)
    with dask.config.set(scheduler="sync"):
        x = oracle.source((32, 32), -1)
        result = x.to_sharded_zarr(tmp_path / "x", shards=8, chunks=4, publish="first")
    assert len(n_failed) == 5, "four times over one attempt, once more in the next"
    assert result.n_shards == 16
    oracle.check_whole(tmp_path / "x", oracle.values((32, 32)))
