"""Conversions that consume their source: at every moment each chunk is somewhere, and is found."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import CorruptShardError, JournalError, SpecError, StoreError
from shardwrite.cli import main
from shardwrite.convert.removal import Listed
from shardwrite.engines import LocalEngine, Stopped

sys.path.insert(0, str(Path(__file__).parent))
import seams
from helpers import Stop
from test_convert import by_tensorstore, payloads, same

VALUES = np.random.default_rng(0).integers(1, 9, (40, 30)).astype("i4")
VALUES[10:20, 10:20] = 0  # a chunk that is missing


def flat(path, **more):
    """An array without shards of 4 x 3 chunks, of which one is missing."""
    da.from_array(VALUES, chunks=20).to_sharded_zarr(path, shards=None, chunks=10, **more)
    return path


def chunks_in(path):
    return sorted(str(p.relative_to(path)) for p in (path / "c").rglob("*") if p.is_file())


def tidy(tmp_path):
    return sorted(os.listdir(tmp_path))


def interrupted(src, dst, after=1, **how):
    """A conversion that is stopped after some groups."""
    n = 0

    def stop(report):
        nonlocal n
        n += 1
        if n == after:
            raise Stop

    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        again(src, dst, progress=stop, **how)


def again(src, dst, **how):
    """With so little memory that each task writes one shard."""
    how = {"shards": (1, 3), "memory_limit": "10kB", **how}
    return shardwrite.reshard(src, dst, consume=True, **how)


@pytest.mark.parametrize(
    "made",
    [{}, {"shards": 20}, {"zarr_format": 2}, {"compressors": None}],
    ids=["flat", "sharded", "v2", "raw"],
)
@pytest.mark.parametrize("shards", [(1, 3), 3])
def test_everything_is_in_the_new_array(tmp_path, made, shards):
    src, dst = tmp_path / "a", tmp_path / "b"
    if "zarr_format" in made:
        old = zarr.create_array(
            src, shape=VALUES.shape, chunks=(10, 10), dtype="i4", attributes={"u": "K"}, **made
        )
        old[...] = VALUES
    else:
        x = da.from_array(VALUES, chunks=20)
        x.to_sharded_zarr(src, **{"shards": None, "chunks": 10, **made})
    before = payloads(src)
    n_files = 11 if made != {"shards": 20} else 4
    done = shardwrite.reshard(src, dst, shards, consume=True)
    assert done.n_removed == n_files
    assert (done.n_chunks_copied, done.n_chunks_encoded) == (11, 0)
    assert payloads(dst) == before
    same(zarr.open_array(dst, mode="r")[...], VALUES)
    same(by_tensorstore(dst), VALUES)
    assert tidy(tmp_path) == ["b"]
    assert "files of the source are removed" in str(done)
    assert again(src, dst).is_skipped


def test_checks_checksums_and_empty_chunks(tmp_path):
    src = flat(tmp_path / "a", compressors=None, write_empty_chunks=True)
    done = shardwrite.shard(
        src, tmp_path / "b", 2, checksum=True, check=True, drop_empty=True, consume=True
    )
    assert (done.n_chunks_copied, done.n_removed) == (11, 12)
    same(zarr.open_array(tmp_path / "b", mode="r")[...], VALUES)


@pytest.mark.parametrize("shape", [(), (0,), (5,)])
def test_odd_shapes(tmp_path, shape):
    values = np.ones(shape, "i2")
    da.from_array(values).to_sharded_zarr(tmp_path / "a", shards=None, chunks=(2,) * len(shape))
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 2, consume=True)
    same(shardwrite.open_sharded(tmp_path / "b")[...], values)
    assert tidy(tmp_path) == ["b"]


def test_in_processes(tmp_path):
    src = flat(tmp_path / "a")
    before = payloads(src)
    with dask.config.set(scheduler="processes", num_workers=1):
        again(src, tmp_path / "b")
    assert payloads(tmp_path / "b") == before


@pytest.mark.parametrize("after", [1, 3])
def test_amid(tmp_path, after):
    """What others can do between the call that was stopped and the one that finishes."""
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    before = payloads(src)
    interrupted(src, dst, after)
    n_left = len(chunks_in(src))
    assert 0 < n_left < 11
    for open_ in (zarr.open_array, zarr.open_group):
        with pytest.raises(FileNotFoundError):
            open_(src, mode="r")
    with pytest.raises(SpecError):
        shardwrite.open_sharded(src)
    with pytest.raises(SpecError):
        shardwrite.verify(src)
    with pytest.raises(JournalError, match="consume=True"):
        shardwrite.shard(src)
    with pytest.raises(JournalError, match="something else of"):
        again(src, tmp_path / "c")
    with pytest.raises((JournalError, SpecError)):
        da.zeros((4,)).to_sharded_zarr(src, shards=2)
    with pytest.raises(JournalError, match="cannot be given up"):
        shardwrite.abandon(src)
    ended = CliRunner().invoke(main, ["abandon", str(src)])
    assert (ended.exit_code != 0, "cannot be given up" in ended.output) == (True, True)
    for call in (
        lambda: again(src, dst, restart=True),
        lambda: da.zeros((40, 30)).to_sharded_zarr(dst, shards=20, restart=True),
        lambda: da.zeros((40, 30)).to_sharded_zarr(dst, shards=20, mode="w", restart=True),
    ):
        with pytest.raises(JournalError, match="not taken away"):
            call()
    assert len(chunks_in(src)) == n_left
    done = again(src, dst)
    assert done.n_removed == n_left
    assert done.arrays[0].result.n_resumed_shards > 0
    assert payloads(dst) == before
    assert shardwrite.verify(dst, deep=True).is_good
    assert tidy(tmp_path) == ["b"]


def test_one_process_at_a_time(tmp_path):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    n_refused = 0

    def try_too(report):
        nonlocal n_refused
        with pytest.raises(JournalError, match="last sign of life"):
            again(src, dst)
        n_refused += 1

    with dask.config.set(scheduler="sync"):
        again(src, dst, progress=try_too)
    assert n_refused == 4
    same(zarr.open_array(dst, mode="r")[...], VALUES)


def test_without_its_journals_nothing_is_written_again(tmp_path):
    """As after a power cut, since only the lines about removals are synced."""
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    before = payloads(src)
    interrupted(src, dst, 2)
    for journal in tmp_path.glob("b.shardwrite/run-*/journal-*"):
        journal.unlink()
    assert again(src, dst).arrays[0].result.n_resumed_shards >= 1
    assert payloads(dst) == before


def test_what_is_missing_is_no_fill_value(tmp_path):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    before = payloads(src)
    interrupted(src, dst)
    last = src / chunks_in(src)[-1]
    kept = last.read_bytes()
    last.unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="is missing") as caught:
            again(src, dst)
        assert not (dst / "zarr.json").exists()
    assert "make the same call again" in str(caught.value)
    last.write_bytes(kept)
    again(src, dst)
    assert payloads(dst) == before


def test_a_chunk_that_goes_while_it_runs(tmp_path, monkeypatch):
    """Workers know the list, too."""
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    seams.after(monkeypatch, "hide the source", lambda _: (src / chunks_in(src)[-1]).unlink())
    with pytest.raises(StoreError, match="not taken for empty"):
        again(src, dst)
    assert not (dst / "zarr.json").exists()


def test_what_another_program_has_written(tmp_path):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    interrupted(src, dst)
    (src / "c/1").mkdir(exist_ok=True)
    new = src / "c/1/1"
    new.write_bytes(b"new")
    with pytest.raises(StoreError, match="was written after"):
        again(src, dst)
    assert new.read_bytes() == b"new"
    new.unlink()
    (src / "zarr.json").write_text("{}")
    with pytest.raises(StoreError, match="another program has written"):
        again(src, dst)
    (src / "zarr.json").unlink()
    (src / "notes.txt").write_text("mine")
    done = again(src, dst)
    assert "not its own" in str(done)
    assert tidy(src) == ["notes.txt"]
    assert again(src, dst).is_skipped


@pytest.mark.parametrize("what", ["removed", "torn", "other"])
def test_a_shard_that_was_damaged_after_its_source_was_removed(tmp_path, what):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    interrupted(src, dst, 2)
    left = chunks_in(src)
    shard, other = (p for p in sorted((dst / "c").rglob("*")) if p.is_file())
    kept = shard.read_bytes()
    if what == "removed":
        shard.unlink()
    else:
        shard.write_bytes(kept[:40] if what == "torn" else other.read_bytes())
    with pytest.raises(CorruptShardError, match="compared with the source"):
        again(src, dst)
    assert chunks_in(src) == left
    shard.write_bytes(kept)
    again(src, dst)
    same(zarr.open_array(dst, mode="r")[...], VALUES)


def test_a_bad_shard_of_the_source_is_mended_in_another_directory(tmp_path):
    src, dst = tmp_path / "a", tmp_path / "b"
    da.from_array(VALUES, chunks=20).to_sharded_zarr(src, shards=20, chunks=10)
    shard = src / "c/1/1"
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 255]))
    for _ in range(2):
        with pytest.raises(CorruptShardError) as caught:
            shardwrite.unshard(src, dst, consume=True)
    (note,) = (note for note in caught.value.__notes__ if f"a shard in {src} is bad" in note)
    aside = re.search(r"the documents from (\S+),", note)[1]
    mended = shutil.copytree(aside, tmp_path / "mended")
    (mended / "c/1").mkdir(parents=True)
    shutil.copy(shard, mended / "c/1/1")
    assert [task.key for task in shardwrite.repair(mended, VALUES).tasks] == ["c/1/1"]
    shutil.copy(mended / "c/1/1", shard)
    shardwrite.unshard(src, dst, consume=True)
    same(zarr.open_array(dst, mode="r")[...], VALUES)
    assert not src.exists()


def test_a_shard_that_is_wrong_at_once(tmp_path, monkeypatch):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"

    def damage(array, ranks, donor):
        return {int(ranks[0]): "1 encoded inner chunks differ"}

    with monkeypatch.context() as patched:
        patched.setattr(*seams.step("compare with the source"), damage)
        with pytest.raises(CorruptShardError, match="nothing of what it was made of is removed"):
            again(src, dst)
    same(zarr.open_array(src, mode="r")[...], VALUES)
    assert tidy(tmp_path) == ["a", "b", "b.shardwrite"]
    again(src, dst)
    same(zarr.open_array(dst, mode="r")[...], VALUES)
    assert tidy(tmp_path) == ["b"]


@pytest.mark.parametrize("is_first", [False, True])
def test_a_record_that_cannot_be_synced(tmp_path, monkeypatch, is_first):
    """Of the first shards, or of the next ones, when something was removed."""
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    before, enter, calls = payloads(src), seams.real("record what was compared"), []

    def no_space(self, *columns):
        calls.append(columns)
        if len(calls) == 1 and not is_first:
            return enter(self, *columns)
        with monkeypatch.context() as patched:
            patched.setattr(
                os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.ENOSPC, ""))
            )
            return enter(self, *columns)

    with monkeypatch.context() as patched:
        patched.setattr(*seams.step("record what was compared"), no_space)
        with pytest.raises(StoreError, match="cannot record") as caught:
            again(src, dst)
    assert ("same call again" in "".join(caught.value.__notes__)) != is_first
    assert (len(chunks_in(src)) == 11) == is_first
    assert (src / "zarr.json").exists() == is_first
    if is_first:  # nothing was removed, so the new shards may be taken away
        shardwrite.reshard(src, dst, (1, 3), restart=True)
        assert payloads(src) == payloads(dst) == before
        assert tidy(tmp_path) == ["a", "b"]
        return
    with pytest.raises(JournalError, match="Make that call again"):
        again(src, dst, restart=True)
    again(src, dst)
    assert payloads(dst) == before


def test_a_directory_that_cannot_be_listed_in_the_end(tmp_path, monkeypatch):
    """It was left, and the call ended as if all was removed."""
    src, dst, real = flat(tmp_path / "a"), tmp_path / "b", os.scandir
    before, struck = payloads(src), []

    def scandir(path):
        if path == str(src / "c") and not chunks_in(src) and not struck:
            struck.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        with pytest.raises(StoreError, match="cannot list"):
            again(src, dst)
    assert struck
    again(src, dst)
    assert tidy(tmp_path) == ["b"]
    assert payloads(dst) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_given_up_before_anything_is_removed(tmp_path, monkeypatch, zarr_format):
    src, dst = tmp_path / "a", tmp_path / "b"
    old = zarr.create_array(
        src, shape=VALUES.shape, chunks=(10, 10), dtype="i4", zarr_format=zarr_format
    )
    old.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    old[...] = VALUES
    before = {p: p.read_bytes() for p in src.rglob("*") if p.is_file()}
    with monkeypatch.context() as patched:
        seams.kill_before(patched, "compare with the source", Stop)
        with pytest.raises(Stop):
            again(src, dst)
    assert not (src / "zarr.json").exists()
    assert not (src / ".zarray").exists()
    shardwrite.abandon(src)
    assert {p: p.read_bytes() for p in src.rglob("*") if p.is_file()} == before
    assert tidy(tmp_path) == ["a", "b", "b.shardwrite"]
    same(zarr.open_array(src, mode="r")[...], VALUES)
    again(src, dst, restart=True)
    same(zarr.open_array(dst, mode="r")[...], VALUES)


def test_what_is_refused_before_anything_happens(tmp_path):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    group = zarr.create_group(tmp_path / "g")
    group.create_array("x", shape=4, chunks=1, dtype="i4")[...] = 1
    zarr.consolidate_metadata(tmp_path / "g")
    os.symlink(src, tmp_path / "link")
    flat(tmp_path / "below/x")
    with zarr.storage.ZipStore(tmp_path / "z.zip", mode="w") as store:
        zarr.create_array(store, shape=4, chunks=1, dtype="i4")[...] = 1
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for source, keywords, why in (
        (src, {"dst": None}, "in its place"),
        (src, {"dst": src / "c"}, "lies where"),
        (src, {"durability": "none"}, "not be durable"),
        (src, {"mode": "w"}, "could be replaced"),
        (src, {"chunks": 5}, "inner chunks differ"),
        (src, {"compressors": "gzip"}, "codecs"),
        (src, {"include": "a"}, "as a whole"),
        (src, {"consume": "yes"}, "True or False"),
        (tmp_path / "below", {}, "no single array"),
        (tmp_path / "g/x", {}, "consolidated metadata"),
        (tmp_path / "link", {}, "symbolic link"),
        (tmp_path / "z.zip", {}, "no directory"),
        (tmp_path / "nothing", {}, "no such directory"),
    ):
        with pytest.raises(SpecError, match=why):
            shardwrite.reshard(source, **{"dst": dst, "shards": 2, "consume": True, **keywords})
        assert not dst.exists()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    flat(dst)
    with pytest.raises(SpecError, match="exists"):
        again(src, dst)
    assert "a.conversion.shardwrite" not in tidy(tmp_path)
    same(zarr.open_array(src, mode="r")[...], VALUES)
    shutil.rmtree(dst)
    with pytest.raises(KeyboardInterrupt):
        da.from_array(VALUES).to_sharded_zarr(src, region="append", progress=interrupt)
    with pytest.raises(JournalError, match="has not ended"):
        again(src, dst)


def test_what_a_refusal_says_helps(tmp_path):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    with pytest.raises(SpecError, match="leave out mode"):
        shardwrite.shard(src, dst, 2, consume=True, mode="w")
    shardwrite.shard(src, dst, 2, consume=True)
    same(zarr.open_array(dst, mode="r")[...], VALUES)

    group = zarr.create_group(tmp_path / "g")
    flat(tmp_path / "g/x")
    zarr.consolidate_metadata(group.store)
    with pytest.raises(SpecError, match="move the array out of the group"):
        shardwrite.shard(tmp_path / "g/x", tmp_path / "c", 2, consume=True)
    os.rename(tmp_path / "g/x", tmp_path / "x")
    shardwrite.shard(tmp_path / "x", tmp_path / "c", 2, consume=True)
    same(zarr.open_array(tmp_path / "c", mode="r")[...], VALUES)


def interrupt(report):
    raise KeyboardInterrupt


def test_a_state_that_is_damaged(tmp_path):
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    interrupted(src, dst)
    (work,) = tmp_path.glob("a.conversion.shardwrite/work-*")
    (lines,) = work.glob("checked-*")
    with lines.open("ab") as file:
        file.write(b"torn")
    kept = (work / "listed.json").read_bytes()
    for data in (b"", b"{}", kept[:-20], b'{"n_shards": 3, "listed": 4}'):
        (work / "listed.json").write_bytes(data)
        with pytest.raises(StoreError, match="does not list"):
            again(src, dst)
        (work,) = tmp_path.glob("a.conversion.shardwrite/work-*")
    (work / "listed.json").write_bytes(kept)
    assert Listed(str(work / "listed.json")).has(0)
    again(src, dst)
    same(zarr.open_array(dst, mode="r")[...], VALUES)


def test_the_command(tmp_path):
    src, dst = str(flat(tmp_path / "a")), str(tmp_path / "b")
    runner = CliRunner()
    ended = runner.invoke(main, ["shard", src, dst, "--shards", "2", "--consume", "--dry-run"])
    assert "There is no way back" in ended.output
    assert tidy(tmp_path) == ["a"]
    ended = runner.invoke(main, ["shard", src, dst, "--shards", "2", "--consume", "--json"])
    assert json.loads(ended.output)["n_removed"] == 11
    assert tidy(tmp_path) == ["b"]
    ended = runner.invoke(main, ["shard", src, dst, "--consume", "--durability", "none"])
    assert ended.exit_code == 2


def test_an_array_that_was_consumed_since_it_was_planned(tmp_path):
    """Another process has consumed it in the meantime; the same call then tells that."""
    src, dst = flat(tmp_path / "a.zarr"), tmp_path / "b.zarr"

    def other():
        shardwrite.shard(src, dst, shards=2, consume=True)

    with (
        seams.once_before("begin in place", other),
        pytest.raises(StoreError, match="another program has removed"),
    ):
        shardwrite.shard(src, dst, shards=2, consume=True)
    assert tidy(tmp_path) == ["b.zarr"]
    assert shardwrite.shard(src, dst, shards=2, consume=True).is_skipped
    same(zarr.open_array(dst, mode="r")[...], VALUES)


def test_a_call_that_is_stopped_while_its_last_shards_are_in_flight_removes_the_source(
    tmp_path, monkeypatch
):
    """The reports of its tasks do not come, but their journal lines do."""
    src, dst = flat(tmp_path / "a"), tmp_path / "b"
    run = LocalEngine.run

    def run_until_stopped(self, graph, keys, on_result, explain=None):
        if not any("shardwrite-write" in str(key) for key in keys):
            run(self, graph, keys, on_result, explain)
            return
        run(self, graph, keys, lambda *_: None, explain)
        raise Stopped

    monkeypatch.setattr(LocalEngine, "run", run_until_stopped)
    assert again(src, dst).n_removed == 11
    assert tidy(tmp_path) == ["b"]
    same(zarr.open_array(dst, mode="r")[...], VALUES)
