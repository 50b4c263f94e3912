"""Damage to shards is found and named; nothing crashes, and nothing is taken for good."""

from __future__ import annotations

import errno
import os
import struct
from collections import Counter

import crc32c
import dask
import dask.array as da
import numpy as np
import pytest
import seams
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiers import tried

import shardwrite
from shardwrite import StoreError
from shardwrite.cli import main
from shardwrite.engines import LocalEngine
from shardwrite.journal.begin import find_run
from shardwrite.journal.trust import require_trusted
from shardwrite.read import inspection

N_CHUNKS, INDEX_NBYTES = 16, 16 * 16 + 4


@pytest.fixture(params=["end", "start"])
def array(request, tmp_path):
    a = np.random.default_rng(0).integers(0, 9, (32, 32)).astype("i4")
    a[:8, :8] = 0
    da.from_array(a, chunks=16).to_sharded_zarr(
        tmp_path / "x", shards=16, chunks=4, index_location=request.param, durability="none"
    )
    return tmp_path / "x", request.param, a


def index_at(location, data):
    return 0 if location == "start" else len(data) - INDEX_NBYTES


def with_index(data, location, change):
    """The shard with its index changed and its checksum made right again."""
    at = index_at(location, data)
    table = list(struct.unpack("<32Q", data[at : at + 256]))
    change(table)
    encoded = struct.pack("<32Q", *table)
    return (
        data[:at]
        + encoded
        + crc32c.crc32c(encoded).to_bytes(4, "little")
        + data[at + INDEX_NBYTES :]
    )


@pytest.mark.compat
def test_damage_to_a_chunk_is_found_by_decoding(array):
    path, location, _ = array
    shard = path / "c" / "0" / "1"
    data = bytearray(shard.read_bytes())
    at = (INDEX_NBYTES if location == "start" else 0) + 10
    data[at] ^= 1
    shard.write_bytes(data)
    assert shardwrite.verify(path).is_good, "an index tells nothing of this"
    (problem,) = shardwrite.verify(path, deep=True).problems
    assert problem.index == (0, 1)
    assert "inner chunk (0, 0)" in problem.message
    assert "crc32c" in problem.message


def test_unused_bytes_are_counted(array):
    path, location, a = array
    shard = path / "c" / "1" / "1"
    data = shard.read_bytes()
    at = INDEX_NBYTES if location == "start" else 0
    grown = data[:at] + b"?" * 100 + data[at:]
    shard.write_bytes(
        with_index(
            grown, location, lambda t: [t.__setitem__(i, t[i] + 100) for i in range(0, 32, 2)]
        )
    )
    report = shardwrite.verify(path, deep=True)
    assert report.is_good
    assert report.unused_nbytes == 100
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(path).compute(), a)


def test_a_missing_shard_reads_as_fill_and_is_counted(array):
    path, _, _ = array
    (path / "c" / "1" / "1").unlink()
    report = shardwrite.verify(path)
    assert (report.n_present, report.n_absent) == (3, 1)
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(path).compute()[16:, 16:], 0)


def check_mutated_shards_are_never_taken_for_good(array, data):
    path, _, a = array
    shard = path / "c" / "1" / "1"
    good = shard.read_bytes()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bad) - 1))
        match data.draw(st.sampled_from(["flip", "set", "cut", "insert"])):
            case "flip":
                bad[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set":
                bad[at] = data.draw(st.integers(0, 255))
            case "cut":
                del bad[at : at + data.draw(st.integers(1, 20))]
            case "insert":
                bad[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    try:
        shard.write_bytes(bad)
        report = shardwrite.verify(path, deep=True)
        if bytes(bad) == good:
            assert report.is_good
        elif report.is_good:  # only bytes that belong to nothing may differ
            np.testing.assert_array_equal(
                shardwrite.from_sharded_zarr(path).compute(scheduler="sync"), a
            )
        else:
            assert [problem.key for problem in report.problems] == ["c/1/1"]
    finally:
        shard.write_bytes(good)


DRAWN = given(st.data())
test_mutated_shards_are_never_taken_for_good = tried(
    60, DRAWN, check_mutated_shards_are_never_taken_for_good
)
test_more_mutated_shards_are_never_taken_for_good = pytest.mark.long(
    tried(300, DRAWN, check_mutated_shards_are_never_taken_for_good)
)


@pytest.mark.parametrize("kind", ["run", "updates"])
@pytest.mark.parametrize(
    "command",
    [shardwrite.verify, shardwrite.census, ["info"], ["verify"]],
    ids=["verify()", "census()", "info", "verify"],
)
def test_a_command_looks_at_run_state_once(tmp_path, monkeypatch, kind, command):
    """Beside an unfinished run of 1,000 journals it was 3,021 calls, and with each update that had
    not ended twice as many more."""
    path = tmp_path / "x"
    x = da.from_array(np.arange(64, dtype="u4").reshape(8, 8), chunks=4)
    if kind == "run":
        shardwrite.prepare(x, path, shardwrite.plan(x, shards=4, chunks=2))
        run = seams.run_directory(path)
    else:
        x.to_sharded_zarr(path, shards=4, chunks=2)
        with monkeypatch.context() as patch:
            patch.setattr(*seams.step("commit shards"), fail)
            for corner in range(0, 8, 4):
                with pytest.raises(InterruptedError):
                    x[:2, :2].to_sharded_zarr(path, region=(slice(corner, corner + 2), slice(0, 2)))
        run, _ = seams.state_beside(path).glob("updates/*/run-*")
    for number in range(20):
        (run / f"journal-x-{number}.jsonl").touch()
    seen, real = Counter(), os.lstat

    def lstat(at, **more):
        seen[os.fspath(at)] += 1
        return real(at, **more)

    monkeypatch.setattr(os, "lstat", lstat)
    if isinstance(command, list):
        assert CliRunner().invoke(main, [*command, str(path)]).exit_code in (0, 85)
    else:
        command(path)
    times = {at: n for at, n in seen.items() if "x.shardwrite/" in at}
    assert len(times) > 20
    assert set(times.values()) == {1}


def test_what_comes_after_the_look_is_not_followed(tmp_path):
    target = seams.target_of(tmp_path / "x")
    x = da.from_array(np.arange(64, dtype="u4").reshape(8, 8), chunks=4)
    seen = require_trusted(target)
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, shards=4, chunks=2))
    assert find_run(target, seen) is None
    assert find_run(target, require_trusted(target)) is not None


def fail(*_):
    raise InterruptedError("told to")


def test_storage_that_refuses_is_no_difference(tmp_path, monkeypatch):
    x = da.ones((32, 32), chunks=16, dtype="i4")
    shardwrite.to_sharded_zarr(x, tmp_path / "x", shards=16, chunks=4)
    real = os.pread

    def pread(descriptor, nbytes, offset):
        if offset == 0 and "/c/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    with dask.config.set(scheduler="sync"):
        assert shardwrite.verify(tmp_path / "x").is_good, "the indexes can be read"
        with pytest.raises(StoreError) as caught:
            shardwrite.verify(tmp_path / "x", against=x)
    assert caught.value.errno == errno.EIO


def test_a_census_tells_which_bad_shards_it_could_not_read(tmp_path, monkeypatch):
    x = da.ones((32, 32), chunks=16, dtype="i4")
    shardwrite.to_sharded_zarr(x, tmp_path / "x", shards=16, chunks=4)
    (tmp_path / "x/c/0/0").write_bytes(b"torn")
    assert shardwrite.census(tmp_path / "x").warnings == ()
    real = os.pread

    def pread(descriptor, nbytes, offset):
        if "/c/1/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    with dask.config.set(scheduler="sync"):
        found = shardwrite.census(tmp_path / "x")
        told = CliRunner().invoke(main, ["census", str(tmp_path / "x")])
    assert found.counts["bad"] == 3
    (warning,) = found.warnings
    assert "2 shards could not be read and count as bad, first c/1/0" in warning
    assert "Input/output error; it need not be bad" in warning
    assert "2 shards could not be read" in " ".join(told.output.split())


class Counting(LocalEngine):
    """An engine that notes the number of keys of each graph."""

    def __init__(self):
        super().__init__("threads")
        self.n_keys = []

    def run(self, graph, keys, on_result, explain=None):
        self.n_keys.append(len(keys))
        super().run(graph, keys, on_result, explain)


def test_many_shards_are_looked_at_in_several_graphs(tmp_path, monkeypatch):
    """The results of a graph stay in memory until it has ended, and a graph has not many tasks."""
    da.ones(300, chunks=60).to_sharded_zarr(tmp_path / "x", shards=1, chunks=1)
    (tmp_path / "x" / "c" / "299").unlink()
    monkeypatch.setattr(inspection, "_BATCH_SHARDS", 3)
    monkeypatch.setattr(inspection, "_MOST_BATCHES", 4)
    engine, counted = Counting(), []
    monkeypatch.setattr("shardwrite.operations.verify.active_engine", lambda: engine)
    report = shardwrite.verify(tmp_path / "x", on_shards=counted.append)
    assert [problem.key for problem in report.problems] == ["c/299"]
    assert (report.n_shards, sum(counted)) == (300, 300)
    most = max(4, 4 * engine.n_threads)
    assert sum(engine.n_keys) == 100
    assert max(engine.n_keys) == most
