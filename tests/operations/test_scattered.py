"""Volumes whose hash scatters the chunks of each shard: written by way of a spool."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import obstore.store
import pytest
import seams
from click.testing import CliRunner
from helpers import Stop, shards_in

import shardwrite
from shardwrite import JournalError, SpecError, StoreError
from shardwrite.cli import main
from shardwrite.volumes import hashed
from shardwrite.volumes.scale import scattered_ids
from shardwrite.write import copying

VALUES = np.arange(1, 1 + 14 * 21 * 30, dtype="u4").reshape(14, 21, 30)
VALUES[:5, :5, 5:10] = 0  # a chunk that is left out
SHARDING = {
    "preshift_bits": 1,
    "hash": "murmurhash3_x86_128",
    "minishard_bits": 1,
    "shard_bits": 3,
    "data_encoding": "raw",
}
NEW = {
    "axes": "zyx",
    "resolution": (4, 4, 40),
    "chunks": 5,
    "shard_nbytes": 8_000,
    "source_id": "values",
    "sharding": SHARDING,
}
KEY, SPOOL = "4_4_40", ".4_4_40.spool"


def source(values=VALUES):
    return da.from_array(values, chunks=(7, 21, 30))


def write(place, **changed):
    return shardwrite.to_precomputed(source(), place, **{**NEW, **changed})


def check(place, **which):
    ours = shardwrite.from_precomputed(place, axes="zyx", **which)
    np.testing.assert_array_equal(ours, VALUES)


def stop(place, phase, **changed):
    """Interrupt a call while it spools chunks, or while it gathers them."""
    copy, left = copying._copy_shard, iter(range(4))

    def copy_some(*given):
        if next(left, None) is None:
            raise Stop
        return copy(*given)

    def now(_):
        raise Stop

    with dask.config.set(scheduler="sync"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "_copy_shard", copy_some)
        with pytest.raises(Stop), seams.log_every(0):  # no shard waits for others
            write(place, progress=phase == "spooling" and now, durability="none", **changed)


def chunks_by_id():
    """Bytes of all chunks that are not empty, by their ids."""
    from shardwrite.volumes.sharding import MortonCode

    grid = tuple(-(-n // 5) for n in VALUES.shape[::-1])
    cells = np.array(list(np.ndindex(grid)))
    boxes = (VALUES[tuple(slice(5 * i, 5 * i + 5) for i in cell[::-1])] for cell in cells.tolist())
    ids = MortonCode(grid).encode(cells).tolist()
    return {n: box.tobytes() for n, box in zip(ids, boxes, strict=True) if box.any()}


@pytest.mark.parametrize("encoding", ["raw", "gzip"])
def test_shards_are_those_of_the_container(tmp_path, encoding):
    sharding = {**SHARDING, "data_encoding": encoding}
    written = write(tmp_path / "v", sharding=sharding)
    full = {"@type": "neuroglancer_uint64_sharded_v1", **sharding}
    full["minishard_index_encoding"] = "gzip"
    alone = shardwrite.UInt64Shards(tmp_path / "alone", full)
    alone.write(chunks_by_id(), durability="none")
    assert shards_in(tmp_path / "v" / KEY) == shards_in(tmp_path / "alone")
    info = json.loads((tmp_path / "v" / "info").read_text())
    assert info["scales"][0]["sharding"] == full
    check(tmp_path / "v")
    assert (written.n_shards, written.n_empty_shards) == (8, 0)
    assert (written.n_chunks, written.n_empty_chunks) == (3 * 5 * 6, 1)
    assert written.raw_nbytes == VALUES.nbytes
    assert shardwrite.verify(tmp_path / "v" / KEY, deep=True).is_good
    assert {path.name for path in (tmp_path / "v").iterdir()} == {"info", KEY}
    again = write(tmp_path / "v", sharding=sharding)
    assert again.n_resumed_shards == 8
    assert again.n_empty_chunks == 1


def test_the_plan_tells_the_bytes_of_the_spool():
    plan = shardwrite.plan_precomputed(source(), **NEW)
    text = str(plan)
    assert "35.3 kB are spooled" in text
    assert "up to 8 files" in text


def test_the_plan_tells_the_scale_from_its_spool():
    """It showed the spool alone, and said that there would be 12 files."""
    plan = shardwrite.plan_precomputed(source(), **NEW)
    scale, spool = str(plan).split("\n\n")
    assert scale.startswith("plan of the scale\n  scale         (14, 21, 30) uint32, 35.3 kB\n")
    assert "up to 8 files, gathered out of a spool" in scale
    assert spool.startswith("plan of its spool, which is written first\n")
    assert "up to 12 files" in spool
    assert "up to 8 files out of a spool of 12" in repr(plan)
    assert "files at most, gathered out of a spool of 12" in plan._repr_html_()
    assert "plan of a scale and its spool" in plan._repr_html_()
    told = json.loads(plan.to_json())
    assert (told["shards"], told["gathering"]["shards"]) == (12, 8)
    assert (plan.n_shards, plan.gathering.n_shards) == (12, 8)


@pytest.mark.long
def test_a_call_that_was_interrupted_goes_on(tmp_path):
    root = tmp_path / "v"
    for phase in ("spooling", "gathering"):
        stop(root, phase)
        assert (root / SPOOL).exists()
        assert (root / KEY).exists() == (phase == "gathering")
        assert not (root / "info").exists()
    times = {path: path.stat().st_mtime_ns for path in (root / SPOOL).glob("*.shard")}
    assert len(times) == 12
    with pytest.raises(JournalError, match="another plan"):
        write(root, chunks=6)
    seen = []

    def look(_):
        seen.append({path: path.stat().st_mtime_ns for path in (root / SPOOL).glob("*.shard")})

    write(root, progress=look, durability="none")
    assert seen[0] == times, "nothing is encoded again"
    check(root)
    assert {path.name for path in root.iterdir()} == {"info", KEY}
    write(tmp_path / "w")
    assert shards_in(root / KEY) == shards_in(tmp_path / "w" / KEY)


@pytest.mark.long
def test_a_call_that_was_interrupted_is_named(tmp_path):
    stop(tmp_path, "spooling")
    path = tmp_path / KEY
    for look in (shardwrite.verify, shardwrite.repair, shardwrite.census):
        with pytest.raises(SpecError, match=r"spooled.*same call again.*shardwrite abandon"):
            look(path)
    stop(tmp_path, "gathering")
    assert shardwrite.verify(path, against=source()).n_pending == 4
    with pytest.raises(JournalError, match="run its command again"):
        shardwrite.repair(path, source())
    write(tmp_path, durability="none")
    check(tmp_path)


@pytest.mark.parametrize(("phase", "by_command"), [("spooling", False), ("gathering", True)])
def test_an_interrupted_call_is_given_up(tmp_path, phase, by_command):
    root = tmp_path / "v"
    stop(root, phase)
    if by_command:
        command = ["abandon", str(root / KEY)]
        told = CliRunner().invoke(main, [*command, "--dry-run"])
        assert "would be given up" in told.output
        assert (root / SPOOL).exists()
        told = CliRunner().invoke(main, command)
        assert "what was not finished of the scale was given up" in told.output
    else:
        assert shardwrite.abandon(root / KEY) == []
    assert not list(root.iterdir())
    write(root, chunks=6)
    check(root)


@pytest.mark.long
def test_a_call_that_starts_over(tmp_path):
    root = tmp_path / "v"
    stop(root, "gathering")
    written = write(root, chunks=6, restart=True)
    assert written.n_resumed_shards == 0
    check(root)
    assert {path.name for path in root.iterdir()} == {"info", KEY}


def test_a_spool_is_removed_that_a_finished_call_has_left(tmp_path, monkeypatch):
    from shardwrite.volumes import precomputed

    def fail(*_):
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(precomputed, "remove_spool", fail)
        with pytest.raises(Stop):
            write(tmp_path)
    assert (tmp_path / SPOOL).exists()
    before = shards_in(tmp_path / KEY)
    assert write(tmp_path).n_resumed_shards == 8
    assert {path.name for path in tmp_path.iterdir()} == {"info", KEY}
    assert shards_in(tmp_path / KEY) == before


@pytest.mark.parametrize("step", ["make_receipt", pytest.param("end_run", marks=pytest.mark.long)])
def test_a_call_that_was_interrupted_while_the_scale_was_published(tmp_path, monkeypatch, step):
    def fail(*_):
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(shardwrite.runs.session, step, fail)
        with pytest.raises(Stop):
            write(tmp_path, durability="none")
    assert (tmp_path / KEY / "zarr.json").exists()
    before = shards_in(tmp_path / KEY)
    assert write(tmp_path, durability="none").n_resumed_shards == 8
    assert {path.name for path in tmp_path.iterdir()} == {"info", KEY}
    assert shards_in(tmp_path / KEY) == before


def test_a_lost_shard_is_written_again(tmp_path):
    write(tmp_path)
    before = shards_in(tmp_path / KEY)
    (tmp_path / KEY / "3.shard").unlink()
    write(tmp_path)
    assert shards_in(tmp_path / KEY) == before
    assert {path.name for path in tmp_path.iterdir()} == {"info", KEY}


@pytest.mark.long
def test_a_lost_shard_of_the_spool_is_no_empty_one(tmp_path, monkeypatch):
    execute = shardwrite.volumes.hashed.execute

    def losing(*given):
        next((tmp_path / SPOOL).glob("*.shard")).unlink()
        return execute(*given)

    monkeypatch.setattr(shardwrite.volumes.hashed, "execute", losing)
    with pytest.raises(StoreError, match=r"in which encoded chunks wait.*restart=True"):
        write(tmp_path)
    monkeypatch.undo()
    write(tmp_path, restart=True)
    check(tmp_path)


@pytest.mark.long
def test_damage_is_found(tmp_path):
    write(tmp_path)
    shard = tmp_path / KEY / "3.shard"
    whole = shard.read_bytes()
    other = (tmp_path / KEY / "4.shard").read_bytes()
    for damaged in (whole[:-3], other, whole[:8] + b"\xff" * 8 + whole[16:], whole[:20]):
        shard.write_bytes(damaged)
        report = shardwrite.verify(tmp_path / KEY)
        assert not report.is_good
    shard.write_bytes(whole)
    assert shardwrite.verify(tmp_path / KEY, deep=True).is_good


@pytest.mark.parametrize("changed", [{"volume_size": [30, 21]}, {"volume_size": [30, 21, 0]}])
def test_a_document_that_was_changed(tmp_path, changed):
    write(tmp_path)
    path = tmp_path / KEY / "zarr.json"
    document = json.loads(path.read_text())
    document["codecs"][0]["configuration"] |= changed
    path.write_text(json.dumps(document))
    with pytest.raises(SpecError, match="volume_size"):
        shardwrite.open_sharded(tmp_path / KEY)


def test_too_many_chunks(monkeypatch):
    monkeypatch.setattr("shardwrite.volumes.scale.MOST_CHUNKS", 89)
    scattered_ids.cache_clear()
    with pytest.raises(SpecError, match=r"90 of them.*larger chunks"):
        shardwrite.plan_precomputed(source(), **NEW)


@pytest.mark.parametrize(("axes", "shard_bits"), [("zyx", 12), ("czyx", 0)])
def test_few_and_many_shards(tmp_path, shard_bits, axes):
    values = VALUES if axes == "zyx" else np.stack([VALUES, VALUES[::-1]])
    sharding = {**SHARDING, "shard_bits": shard_bits, "minishard_bits": 2 + shard_bits % 5}
    written = shardwrite.to_precomputed(
        da.from_array(values, chunks=9),
        tmp_path,
        **{**NEW, "sharding": sharding, "axes": axes, "durability": "none"},
    )
    ours = shardwrite.from_precomputed(tmp_path, axes=axes)
    np.testing.assert_array_equal(ours, values)
    assert shardwrite.verify(tmp_path / KEY, deep=True).is_good
    n_chunks = 90 if axes == "czyx" else 89
    assert written.n_chunks - written.n_empty_chunks == n_chunks
    names = {len(path.stem) for path in Path(tmp_path / KEY).glob("*.shard")}
    assert names == {3 if shard_bits else 0} or names == {1}


@pytest.mark.long
def test_into_a_bucket_and_to_a_directory(tmp_path):
    bucket = obstore.store.MemoryStore()
    stop(bucket, "gathering")
    keys = {one["path"].split("/")[0] for some in obstore.list(bucket) for one in some}
    assert keys == {KEY, SPOOL}
    write(bucket)
    keys = {one["path"].split("/")[0] for some in obstore.list(bucket) for one in some}
    assert keys == {"info", KEY}
    check(bucket)
    shardwrite.download(bucket, tmp_path / "v")
    check(tmp_path / "v")
    assert len(shards_in(tmp_path / "v" / KEY)) == 8
    shardwrite.upload(tmp_path / "v", other := obstore.store.MemoryStore())
    check(other)


@pytest.mark.parametrize("phase", ["spooling", "gathering"])
def test_a_bucket_is_given_up(phase):
    bucket = obstore.store.MemoryStore()
    stop(bucket, phase)
    assert shardwrite.abandon(bucket, name=KEY) == []
    assert not [one for some in obstore.list(bucket) for one in some]


@pytest.mark.long
def test_in_processes(tmp_path):
    with dask.config.set(scheduler="processes"):
        write(tmp_path)
    check(tmp_path)


@pytest.mark.parametrize("payload_nbytes", [2**20, pytest.param(100, marks=pytest.mark.long)])
def test_each_shard_of_the_spool_is_opened_once_for_a_shard(tmp_path, monkeypatch, payload_nbytes):
    write(tmp_path / "few", durability="none")
    opened, open_shard = [], copying.open_shard

    def count(metadata, store, index):
        opened.append(index)
        return open_shard(metadata, store, index)

    monkeypatch.setattr(copying, "open_shard", count)
    monkeypatch.setattr(copying, "_MAX_OPEN", 1)
    monkeypatch.setattr(copying, "_PAYLOAD_NBYTES", payload_nbytes)
    write(tmp_path / "many", durability="none")
    assert shards_in(tmp_path / "many" / KEY) == shards_in(tmp_path / "few" / KEY)
    assert len(opened) <= 8 * 12, "8 shards are gathered out of 12"


@pytest.mark.long
def test_values_are_compared(tmp_path):
    write(tmp_path, durability="none")
    path = tmp_path / KEY
    for against in (source(), VALUES[None]):
        report = shardwrite.verify(path, against=against)
        assert report.is_good
        assert report.against
    other = VALUES.copy()
    other[13, 20, 29] += 1
    other[0, 0, 0] += 1
    other[2, 3, 6] = 1  # in the chunk that is left out
    found = shardwrite.verify(path, against=source(other))
    told = [
        problem.message.split(" differ from the source, first at ") for problem in found.problems
    ]
    assert sum(int(n.split()[0]) for n, _ in told) == 3
    assert "(0, 0, 0)" in {first for _, first in told}
    with pytest.raises(SpecError, match=r"shape \(14, 21, 30\)"):
        shardwrite.verify(path, against=source(VALUES[1:]))


@pytest.mark.long
def test_values_are_compared_with_arrays_at_paths(tmp_path):
    write(tmp_path, durability="none")
    other = VALUES.copy()
    other[13, 20, 29] += 1
    source(other).to_sharded_zarr(tmp_path / "zarr", shards=10, chunks=5)
    (problem,) = shardwrite.verify(tmp_path / KEY, against=str(tmp_path / "zarr")).problems
    assert problem.message == "1 elements differ from the source, first at (13, 20, 29)"
    write(tmp_path / "again", durability="none")
    assert shardwrite.verify(tmp_path / KEY, against=tmp_path / "again" / KEY).is_good


def damage(root):
    """Three bad shards: torn, lost, and written by another program."""
    with (root / KEY / "3.shard").open("r+b") as file:
        file.truncate(20)
    (root / KEY / "5.shard").unlink()
    (root / KEY / "6.shard").write_bytes((root / KEY / "7.shard").read_bytes())


@pytest.mark.parametrize("axes", ["zyx", pytest.param("czyx", marks=pytest.mark.long)])
def test_bad_shards_are_written_again(tmp_path, axes):
    values = VALUES if axes == "zyx" else np.stack([VALUES, VALUES[::-1]])
    x = da.from_array(values, chunks=9)
    new = {**NEW, "axes": axes, "durability": "none"}
    shardwrite.to_precomputed(x, tmp_path, **new)
    before = shards_in(tmp_path / KEY)
    damage(tmp_path)
    tasks = shardwrite.repair(tmp_path / KEY).tasks
    assert [task.key for task in tasks] == ["3.shard", "5.shard", "6.shard"]
    assert {task.region for task in tasks} == {tuple((0, n) for n in values.shape)}
    repaired = shardwrite.repair(tmp_path / KEY, x, durability="none")
    assert repaired.is_done
    assert len(repaired.quarantined) == 2
    assert repaired.result.n_resumed_shards == 5
    assert shards_in(tmp_path / KEY) == before
    assert {path.name for path in tmp_path.iterdir()} == {"info", KEY, f"{KEY}.quarantine"}
    assert shardwrite.verify(tmp_path / KEY, against=x, deep=True).is_good


@pytest.mark.long
def test_only_chunks_of_bad_shards_are_spooled(tmp_path, monkeypatch):
    write(tmp_path, durability="none")
    whole = sum(len(data) for data in shards_in(tmp_path / KEY).values())
    (tmp_path / KEY / "3.shard").unlink()
    stop_repair(tmp_path)
    spooled = sum(path.stat().st_size for path in (tmp_path / SPOOL).glob("*.shard"))
    assert 0 < spooled < whole / 3


def stop_repair(root):
    """Interrupt a repair while it gathers the first shard."""

    def stop_now(*_):
        raise Stop

    with dask.config.set(scheduler="sync"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "_copy_shard", stop_now)
        with pytest.raises(Stop):
            shardwrite.repair(root / KEY, source(), durability="none")


@pytest.mark.long
@pytest.mark.parametrize("worse", [False, True])
def test_a_repair_that_was_interrupted(tmp_path, worse):
    """The spool is used again, unless other shards are bad by then."""
    write(tmp_path, durability="none")
    before = shards_in(tmp_path / KEY)
    damage(tmp_path)
    stop_repair(tmp_path)
    assert (tmp_path / SPOOL).exists()
    if worse:
        (tmp_path / KEY / "0.shard").unlink()
    assert shardwrite.repair(tmp_path / KEY, source(), durability="none").is_done
    assert shards_in(tmp_path / KEY) == before
    assert not (tmp_path / SPOOL).exists()


@pytest.mark.long
def test_the_run_of_another_plan_is_found_before_anything_is_spooled(tmp_path):
    stop_now = {"sharding": "auto", "progress": lambda _: (_ for _ in ()).throw(Stop)}
    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        write(tmp_path, durability="none", **stop_now)
    with pytest.raises(JournalError, match="another plan was begun"):
        write(tmp_path, durability="none")
    assert not (tmp_path / SPOOL).exists()
    write(tmp_path, durability="none", restart=True)
    check(tmp_path)
    damage(tmp_path)
    stop_repair(tmp_path)
    spooled = shards_in(tmp_path / SPOOL)
    with pytest.raises(JournalError, match="another plan was begun"):
        shardwrite.repair(tmp_path / KEY, source(VALUES + 1), durability="none")
    assert shards_in(tmp_path / SPOOL) == spooled != {}


@pytest.mark.long
def test_a_repair_is_given_up(tmp_path):
    write(tmp_path, durability="none")
    damage(tmp_path)
    there = shards_in(tmp_path / KEY)
    stop_repair(tmp_path)
    shardwrite.abandon(tmp_path / KEY)
    assert {path.name for path in tmp_path.iterdir()} == {"info", KEY, f"{KEY}.quarantine"}
    assert shards_in(tmp_path / KEY) == there


@pytest.mark.long
def test_a_repair_leaves_no_spool_of_good_shards(tmp_path, monkeypatch):
    from shardwrite.volumes import hashed

    write(tmp_path, durability="none")
    damage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(hashed, "remove_spool", lambda _: None)
        shardwrite.repair(tmp_path / KEY, source(), durability="none")
    assert (tmp_path / SPOOL).exists()
    assert not shardwrite.repair(tmp_path / KEY, source(), durability="none").tasks
    assert not (tmp_path / SPOOL).exists()


@pytest.mark.long
def test_a_bucket_is_repaired():
    bucket = obstore.store.MemoryStore()
    write(bucket)
    obstore.delete(bucket, f"{KEY}/3.shard")
    assert not shardwrite.verify(bucket, name=KEY).is_good
    assert shardwrite.repair(bucket, source(), name=KEY).is_done
    assert shardwrite.verify(bucket, name=KEY, against=source()).is_good
    keys = {one["path"].split("/")[0] for some in obstore.list(bucket) for one in some}
    assert SPOOL not in keys


@pytest.mark.long
def test_a_scale_that_names_no_volume_is_not_repaired(tmp_path):
    write(tmp_path, durability="none")
    path = tmp_path / KEY / "zarr.json"
    document = json.loads(path.read_text())
    del document["attributes"]["precomputed"]
    path.write_text(json.dumps(document))
    (tmp_path / KEY / "3.shard").unlink()
    with pytest.raises(SpecError, match=r"no scale in a volume.*to_precomputed"):
        shardwrite.repair(tmp_path / KEY, source(), durability="none")
    write(tmp_path / "again", durability="none")
    check(tmp_path / "again")


@pytest.mark.long
def test_what_such_a_scale_does_not_take(tmp_path):
    """It is refused by name, with what to do instead."""
    write(tmp_path, durability="none")
    before = shards_in(tmp_path / KEY)
    for change in (
        lambda: shardwrite.write_region(VALUES[:5], tmp_path / KEY, region=np.s_[:5]),
        lambda: shardwrite.erase(tmp_path / KEY, np.s_[:5]),
    ):
        with pytest.raises(SpecError, match=r"not updated.*under another key"):
            change()
    assert shards_in(tmp_path / KEY) == before
    for command, told in (("info", "[14, 21, 30]"), ("census", "8")):
        found = CliRunner().invoke(main, [command, str(tmp_path / KEY)])
        assert found.exit_code == 0, found.output
        assert told in found.output


def test_the_run_of_another_process_keeps_the_spool(tmp_path, monkeypatch):
    monkeypatch.setattr(hashed, "live_holders", lambda _: ["another process"])
    write(tmp_path)
    assert (tmp_path / SPOOL).exists()
    monkeypatch.undo()
    write(tmp_path)
    assert not (tmp_path / SPOOL).exists()
    shutil.rmtree(tmp_path / KEY)
