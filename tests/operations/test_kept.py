"""A finished call that is made again looks whether what it wrote is still there."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import ChangedError, JournalError, ShardWriter, SpecError
from shardwrite.cli import main
from shardwrite.journal.receipt import pack_sizes, unpack_sizes
from shardwrite.stores import MemoryStore

VALUES = np.arange(1, 1 + 12 * 12, dtype="i4").reshape(12, 12)
VALUES[:4, :4] = 0  # a shard that is empty by design
RECEIPT = "shardwrite-receipt.json"


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "x")
    return tmp_path / "x"


def write(path, values=VALUES, **more):
    source = da.from_array(values, chunks=5)
    return source.to_sharded_zarr(path, shards=4, chunks=2, source_id="first", **more)


def update(path, value, where, name, **more):
    """Set a box to one value, under a name by which the update is known again."""
    shape = tuple(s.stop - s.start for s in where)
    source = da.full(shape, value, dtype="i4")
    return source.to_sharded_zarr(path, region=where, source_id=name, **more)


def check(path, wanted=VALUES):
    for found in (zarr.open_array(path, mode="r")[...], shardwrite.open_sharded(path)[...]):
        np.testing.assert_array_equal(found, wanted)
    report = shardwrite.verify(path, deep=True)
    assert report.is_good, report
    assert not report.changed, report
    assert not report.warnings
    assert not seams.state_beside(path).exists()
    return report


def sizes_in_receipt(path):
    receipt = seams.receipt_in(path)
    return receipt.nbytes_on(shardwrite.open_sharded(path).metadata.grid).ravel().tolist()


def sizes_on_disk(path):
    grid = shardwrite.open_sharded(path).metadata.grid
    keys = ["c/" + "/".join(map(str, index)) for index in np.ndindex(*grid.counts)]
    return [(path / key).stat().st_size if (path / key).exists() else 0 for key in keys]


def inodes(path):
    return {file: file.stat().st_ino for file in (path / "c").rglob("*") if file.is_file()}


def spoil(path, key="c/1/1"):
    """Another program writes a shard, which gets another size."""
    array = zarr.open_array(path, mode="r+")
    _, i, j = key.split("/")
    inside = tuple(slice(4 * int(n), 4 * int(n) + 2) for n in (i, j))
    array[inside] = 10**9 if key == "c/0/0" else 0


def without_sizes(path):
    """The receipt as earlier versions wrote it."""
    seams.change_receipt(path, lambda found: found.pop("sizes"))


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("lost", [["c/0/1"], ["c/1/1", "c/2/0", "c/2/2"]])
def test_lost_shards_are_written_again_and_nothing_else(path, lost, is_old):
    if is_old:
        without_sizes(path)
    before = inodes(path)
    for key in lost:
        (path / key).unlink()
    result = write(path)
    assert (result.n_shards, result.n_empty_shards) == (8, 1)
    assert result.n_resumed_shards == 9 - len(lost)
    check(path)
    after = inodes(path)
    assert {key for key in before if after[key] == before[key]} >= {
        file for file in before if str(file.relative_to(path)) not in lost
    }
    again = inodes(path)
    assert write(path).n_resumed_shards == 9
    assert inodes(path) == again


def test_all_shards_are_lost(path):
    for file in inodes(path):
        file.unlink()
    write(path)
    check(path)


@pytest.mark.parametrize("how", ["size", "extra", "size and lost", "truncated"])
def test_anything_else_stops_and_both_remedies_work(path, how):
    if "size" in how:
        spoil(path)
    if how == "extra":  # in the shard that was empty
        spoil(path, "c/0/0")
    if how == "truncated":
        (path / "c/1/1").write_bytes(b"x" * 10)
    if "lost" in how:
        (path / "c/2/2").unlink()
    there = inodes(path)
    with pytest.raises(ChangedError, match=r"repair.*verify and accept=True") as caught:
        write(path)
    assert inodes(path) == there
    wanted = ("c/0/0",) if how == "extra" else ("c/1/1",)
    assert caught.value.changed == wanted
    assert caught.value.missing == (("c/2/2",) if "lost" in how else ())
    assert f"{wanted[0]}: " in str(caught.value)
    if how == "truncated":
        with pytest.raises(shardwrite.CorruptShardError, match="not accepted"):
            shardwrite.verify(path, accept=True)
    else:
        now = zarr.open_array(path)[...]
        assert shardwrite.verify(path, accept=True).is_good
        check(path, now)
        write(path)
        check(path, now)
        spoil(path, "c/2/1")
        with pytest.raises(ChangedError):
            write(path)
    done = shardwrite.repair(path, da.from_array(VALUES))
    assert done.is_done
    check(path) if how == "truncated" else None
    write(path)


def test_repair_writes_what_was_changed_and_keeps_a_copy(path):
    spoil(path)
    look = shardwrite.repair(path)
    assert look.is_done
    assert look.changed == ("c/1/1",)
    assert "another program" in str(look)
    done = shardwrite.repair(path, da.from_array(VALUES))
    assert [task.key for task in done.tasks] == ["c/1/1"]
    assert len(done.quarantined) == 1
    check(path)
    assert write(path).n_resumed_shards == 9


def test_verify_tells_what_was_changed(path):
    spoil(path)
    spoil(path, "c/0/0")
    report = shardwrite.verify(path)
    assert report.is_good
    assert [problem.key for problem in report.changed] == ["c/0/0", "c/1/1"]
    assert "the receipt says that it is empty" in str(report)
    assert [problem["key"] for problem in report.to_dict()["changed"]] == ["c/0/0", "c/1/1"]


def test_emptied_shards_are_not_missing_once_they_are_accepted(path):
    zarr.open_array(path, mode="r+")[4:8, 4:8] = 0
    assert not (path / "c/1/1").exists()
    wanted = VALUES.copy()
    wanted[4:8, 4:8] = 0
    command = CliRunner()
    assert command.invoke(main, ["verify", str(path)]).exit_code == 1
    assert command.invoke(main, ["verify", str(path), "--accept"]).exit_code == 0
    assert command.invoke(main, ["verify", str(path)]).exit_code == 0
    assert shardwrite.repair(path).is_done
    check(path, wanted)
    write(path)
    check(path, wanted)


def test_changed_metadata_stop_and_are_accepted(path):
    zarr.open_array(path, mode="r+").attrs["by"] = "zarr"
    with pytest.raises(SpecError, match=r"attributes.*verify and accept=True"):
        write(path)
    shardwrite.verify(path, accept=True)
    assert write(path).n_resumed_shards == 9
    assert zarr.open_array(path).attrs["by"] == "zarr"
    (path / "c/1/1").unlink()
    with pytest.raises(ChangedError):  # what was accepted there is not known
        write(path)
    write(path, mode="w")
    check(path)


@pytest.mark.parametrize("since", ["nothing", "an update", "a stream", "another program"])
def test_create_again_says_what_has_happened_since(tmp_path, since):
    """It had said of each that another program has changed the array."""
    path = tmp_path / "x"

    def create(**more):
        shardwrite.create(path, (0, 4), "i4", shards=4, chunks=2, **more)

    create()
    if since == "an update":
        shardwrite.write_region(np.ones((3, 4), "i4"), path, "append")
    elif since == "a stream":
        with ShardWriter(path) as writer:
            writer.append(np.ones((3, 4), "i4"))
    elif since == "another program":
        zarr.open_array(path, mode="r+").resize((3, 4))
    with pytest.raises(SpecError) as caught:
        create()
    told, is_other = str(caught.value), since == "another program"
    assert ("another program" in told) == ("accept=True" in told) == is_other
    assert ("updates have changed it" in told) == (since in ("an update", "a stream"))
    assert is_other or told.endswith('give mode="w" to replace it, or go on with it as it is')
    create(mode="w")
    assert zarr.open_array(path, mode="r").shape == (0, 4)


def test_mode_w_replaces_what_was_changed(path):
    spoil(path)
    write(path, mode="w")
    check(path)


@pytest.mark.long
def test_updates_are_done_only_if_what_they_wrote_is_there(path):
    where, wanted = (slice(4, 8), slice(4, 10)), VALUES.copy()
    wanted[where] = 7
    update(path, 7, where, "seven")
    there = inodes(path)
    update(path, 7, where, "seven")
    assert inodes(path) == there
    (path / "c/1/1").unlink()  # covered by the update as a whole
    update(path, 7, where, "seven")
    check(path, wanted)
    (path / "c/1/2").unlink()  # covered in part
    with pytest.raises(ChangedError, match="c/1/2: gone"):
        update(path, 7, where, "seven")
    shardwrite.repair(path, da.from_array(wanted))
    update(path, 7, where, "seven")
    check(path, wanted)
    (path / "c/1/1").unlink()  # and the first write cannot write what the update has written
    with pytest.raises(ChangedError, match="c/1/1: gone"):
        write(path)
    (path / "c/2/2").unlink()
    update(path, 7, where, "seven")
    write(path)  # only c/2/2 is lost by now, which no update has touched
    check(path, wanted)


@pytest.mark.long
def test_the_second_of_a_b_a_is_not_taken_for_done(path):
    where, wanted = (slice(2, 6), slice(2, 6)), VALUES.copy()
    for value in (7, 8, 7, 8):
        update(path, value, where, f"value {value}")
        wanted[where] = value
        check(path, wanted)
    beside = (slice(6, 8), slice(6, 8))  # in the same shard
    update(path, 9, beside, "beside")
    wanted[beside] = 9
    there = inodes(path)
    update(path, 8, where, "value 8")
    assert inodes(path) == there
    check(path, wanted)


def test_an_append_is_known_after_the_attributes_were_changed(path):
    more = da.full((5, 12), 7, dtype="i4")
    for _ in range(2):
        more.to_sharded_zarr(path, region="append", source_id="more")
        check(path, np.concatenate([VALUES, np.full((5, 12), 7)]))
        zarr.open_array(path, mode="r+").attrs["by"] = "zarr"


def test_a_repair_with_another_source_does_not_let_an_update_stand(path):
    where = (slice(4, 8), slice(4, 8))
    update(path, 7, where, "seven")
    spoil(path)
    shardwrite.repair(path, da.from_array(VALUES))
    check(path)
    update(path, 7, where, "seven")
    wanted = VALUES.copy()
    wanted[where] = 7
    check(path, wanted)


def test_sizes_are_kept_true(path):
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    update(path, 7, (slice(1, 5), slice(0, 12)), "a", strategy="append-only")
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    update(path, 7, (slice(1, 3), slice(0, 3)), "b", strategy=shardwrite.AppendOnly(in_place=True))
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    shardwrite.erase(path, (slice(4, 8), slice(0, 8)))
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    assert sizes_in_receipt(path).count(0) == 2
    da.full((3, 12), 5, dtype="i4").to_sharded_zarr(path, region="append", axis=0)
    assert len(sizes_in_receipt(path)) == 12
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    with ShardWriter(path) as writer:
        for _ in range(3):
            writer.append(np.full(12, 6, "i4"))
    assert len(sizes_in_receipt(path)) == 15
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    shardwrite.compact(path, above=0)
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    values = shardwrite.open_sharded(path)[...]
    (path / "c/0/1").unlink()
    shardwrite.repair(path, da.from_array(values))
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    check(path, values)


def test_parts_that_are_done_look_too(tmp_path):
    path, x = tmp_path / "x", da.from_array(VALUES, chunks=4)
    plan = shardwrite.plan(x, shards=4, chunks=2, source_id="s")
    shardwrite.prepare(x, path, plan)
    for part in range(2):
        shardwrite.write_part(x, path, part, 2, source_id="s")
    shardwrite.finalize(path)
    shardwrite.finalize(path)
    shardwrite.prepare(x, path, plan)
    (path / "c/1/1").unlink()
    for again in (lambda: shardwrite.finalize(path), lambda: shardwrite.prepare(x, path, plan)):
        with pytest.raises(ChangedError, match="c/1/1: gone"):
            again()
    shardwrite.repair(path, x)
    shardwrite.finalize(path)
    check(path)


def test_other_stores(tmp_path):
    store = zarr.storage.MemoryStore()
    more = {"name": "x", "run_dir": tmp_path}
    write(store, **more)
    del store._store_dict["x/c/1/1"]
    write(store, **more)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES)


def test_an_accept_is_refused_beside_a_run_and_left_by_a_crash(path, monkeypatch):
    from shardwrite.operations import verify

    def die(*_):
        raise KeyboardInterrupt

    spoil(path)
    wanted = zarr.open_array(path)[...]
    monkeypatch.setattr(verify, "updated_receipt", die)
    with pytest.raises(KeyboardInterrupt):
        shardwrite.verify(path, accept=True)
    monkeypatch.undo()
    update(path, 3, (slice(4, 6), slice(4, 6)), "after it")
    wanted[4:6, 4:6] = 3
    shardwrite.verify(path, accept=True)
    check(path, wanted)


def test_metadata_that_change_while_they_are_accepted(path, monkeypatch):
    from shardwrite.operations import verify

    def sizes(*_):
        zarr.open_array(path, mode="r+").attrs["by"] = "zarr"
        return stored_sizes(*_)

    stored_sizes = verify.stored_sizes
    monkeypatch.setattr(verify, "stored_sizes", sizes)
    with pytest.raises(JournalError, match="verify it again"):
        shardwrite.verify(path, accept=True)
    monkeypatch.undo()
    shardwrite.verify(path, accept=True)
    check(path)
    write(path)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,)])
def test_odd_shapes(tmp_path, shape):
    path, x = tmp_path / "x", da.ones(shape, dtype="i4")
    sizes = {"shards": tuple(4 for _ in shape), "chunks": tuple(2 for _ in shape)}
    x.to_sharded_zarr(path, source_id="s", **sizes)
    shardwrite.verify(path, accept=True)
    x.to_sharded_zarr(path, source_id="s", **sizes)
    check(path, np.ones(shape, "i4"))


def test_an_array_of_another_program_is_accepted(tmp_path):
    path = tmp_path / "x"
    array = zarr.create_array(path, shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype="i4")
    array[:4] = 5
    assert shardwrite.verify(path).expected_by == ""
    assert shardwrite.verify(path, accept=True).expected_by == "receipt"
    assert sizes_in_receipt(path) == sizes_on_disk(path)
    (path / "c/0/0").unlink()
    assert shardwrite.verify(path).n_missing == 1


@pytest.mark.parametrize("sizes", [[], [0], [0, -1, 1, 2**40, 255, 256], range(5000)])
def test_sizes_as_text(sizes):
    text = pack_sizes(np.array(sizes, dtype=np.int64))
    assert unpack_sizes(text, len(sizes)).tolist() == list(sizes)
    for wrong in (len(sizes) + 1, len(sizes) + 2, 2**40):
        with pytest.raises(ValueError, match="sizes"):
            unpack_sizes(text, wrong)
    for bad in (text[:-4] or "x", "A" + text[1:], "é", ""):
        with pytest.raises(ValueError):  # noqa: PT011 (any of several messages)
            unpack_sizes(bad, len(sizes))


def test_sizes_take_little_room():
    sizes = np.random.default_rng(0).normal(4e6, 1e5, 10_000).astype(np.int64)
    assert len(pack_sizes(sizes)) < 5 * len(sizes)


def test_stores_tell_sizes():
    store = MemoryStore()
    assert store.size("c/0") is None


def test_an_update_is_made_again_after_another_program_was_accepted(tmp_path):
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (8,), "i4", shards=4, chunks=2)
    ones = da.ones(4, chunks=2, dtype="i4")
    shardwrite.write_region(ones, path, slice(0, 4), source_id="ones")
    zarr.open_array(path)[1] = 7
    assert shardwrite.verify(path, accept=True).is_good
    shardwrite.write_region(ones, path, slice(0, 4), source_id="ones")
    assert zarr.open_array(path)[...].tolist() == [1] * 4 + [0] * 4


@pytest.mark.parametrize("where", ["append", (slice(2, 3), slice(0, 11))], ids=["append", "region"])
@pytest.mark.parametrize("shards", [(4, 4), None])
def test_an_update_of_an_array_of_another_program_is_made_again_where_a_shard_is_gone(
    tmp_path, shards, where
):
    """The receipt does not tell which shards were there, so the shards are looked at."""
    values, path = np.arange(100, 111, dtype="i4").reshape(1, 11), tmp_path / "x"
    made = zarr.create_array(path, shape=(5, 11), chunks=(2, 2), shards=shards, dtype="i4")
    made[...] = 7

    def update():
        x = da.from_array(values, chunks=3)
        return shardwrite.write_region(x, path, where, source_id="it")

    row = 5 if where == "append" else 2
    update()
    before = (path / "shardwrite-receipt.json").stat().st_mtime_ns
    update()
    assert (path / "shardwrite-receipt.json").stat().st_mtime_ns == before, "nothing was written"
    (path / f"c/{row // (4 if shards else 2)}/1").unlink()
    update()
    found = zarr.open_array(path, mode="r")[...]
    assert found.shape == (6 if where == "append" else 5, 11)
    np.testing.assert_array_equal(found[row], values[0])
