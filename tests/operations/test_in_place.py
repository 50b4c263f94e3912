"""Conversions in place: the old tree or the new one stands at the name, and nothing is lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import (
    CorruptShardError,
    JournalError,
    RunEndedError,
    SpecError,
    StoreError,
    UntrustedStateError,
)
from shardwrite.stores.directories import make_directories

sys.path.insert(0, str(Path(__file__).parent))
import seams
from test_convert import payloads, same

VALUES = np.random.default_rng(0).integers(0, 9, (40, 30)).astype("i4")


def flat(path, **more):
    """An array without shards of 4 x 3 chunks."""
    da.from_array(VALUES, chunks=20).to_sharded_zarr(path, shards=None, chunks=10, **more)
    return path


def beside(path):
    """Names of what lies in the directory of a tree."""
    return sorted(os.listdir(path.parent))


@pytest.fixture(params=["exchange", "two renames"])
def way(request):
    """How names are exchanged, which depends on the system."""
    if request.param == "exchange":
        yield request.param
    else:
        with mock.patch.object(*seams.step("exchange two names"), return_value=False):
            yield request.param


def test_there_and_back(tmp_path, way):
    path = flat(tmp_path / "a.zarr")
    before, inode = payloads(path), path.stat().st_ino
    done = shardwrite.shard(path, shards=2)
    assert (done.n_chunks_copied, done.n_shards, done.path) == (12, 4, str(path))
    assert done.arrays[0].path == done.arrays[0].result.path == str(path)
    assert payloads(path) == before
    assert path.stat().st_ino != inode
    assert zarr.open_array(path, mode="r").shards == (20, 20)
    assert shardwrite.shard(path, shards=2).is_skipped
    back = shardwrite.unshard(path)
    assert back.n_shards == 12
    assert payloads(path) == before
    assert shardwrite.verify(path, deep=True, against=VALUES_OF).is_good
    assert beside(path) == ["a.zarr"]


VALUES_OF = da.from_array(VALUES, chunks=10)


def test_chunks_are_encoded_again(tmp_path):
    path = flat(tmp_path / "a.zarr")
    done = shardwrite.reshard(path, shards=2, chunks=5, compressors="gzip")
    assert done.n_chunks_encoded == 48
    same(zarr.open_array(path, mode="r")[...], VALUES)


def test_empty_chunks_are_dropped(tmp_path):
    path = tmp_path / "a.zarr"
    x = da.zeros((40, 30), chunks=20, dtype="i4")
    x.to_sharded_zarr(path, shards=None, chunks=10, write_empty_chunks=True)
    done = shardwrite.shard(path, shards=2, drop_empty=True)
    assert done.n_shards == 0
    same(zarr.open_array(path, mode="r")[...], np.zeros((40, 30), "i4"))


def hierarchy(path, version=2):
    """Groups and arrays; one of the groups holds no array."""
    root = zarr.create_group(path, zarr_format=version, attributes={"title": "all"})
    root.create_group("empty", attributes={"n": 1})
    for name in ("images", "deep/er/masks"):
        made = root.create_array(name, shape=(40, 30), chunks=(10, 10), dtype="i4")
        made[...] = VALUES
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_a_hierarchy(tmp_path, way, version):
    path = hierarchy(tmp_path / "all.zarr", version)
    if version == 3:
        with pytest.warns(UserWarning, match="Consolidated"):
            zarr.consolidate_metadata(path)
    done = shardwrite.shard(path, shards=2)
    assert [array.path for array in done.arrays] == [
        str(path / name) for name in ("deep/er/masks", "images")
    ]
    root = zarr.open_group(path, mode="r", zarr_format=3)
    assert dict(root.attrs) == {"title": "all"}
    assert dict(root["empty"].attrs) == {"n": 1}
    for name in ("images", "deep/er/masks"):
        assert root[name].shards == (20, 20)
        same(root[name][...], VALUES)
    assert not list(path.rglob(".z*")), "documents of Zarr v2 are gone with the old tree"
    assert beside(path) == ["all.zarr"]
    assert shardwrite.shard(path, shards=2).is_skipped


def test_groups_above_learn_of_it(tmp_path):
    path = hierarchy(tmp_path / "all.zarr", 3)
    with pytest.warns(UserWarning, match="Consolidated"):
        zarr.consolidate_metadata(path)
    shardwrite.shard(path / "images", shards=2)
    shardwrite.shard(path / "deep", shards=2)
    root = zarr.open_consolidated(str(path))
    assert root["images"].shards == root["deep/er/masks"].shards == (20, 20)
    same(root["deep/er/masks"][...], VALUES)


def test_rights_are_kept(tmp_path):
    path = hierarchy(tmp_path / "all.zarr", 2)
    path.chmod(0o2750)
    (path / "images").chmod(0o711)
    shardwrite.shard(path, shards=2)
    assert path.stat().st_mode & 0o7777 == 0o2750
    assert (path / "images").stat().st_mode & 0o777 == 0o711


@pytest.mark.parametrize(
    "at",
    [
        *("README.md", "images/notes.txt", "images/0/x", "deep/link"),
        *("images/9.0", "images/c/0/0"),  # of no chunk that the array has
    ],
)
def test_what_would_be_lost_is_named(tmp_path, at):
    path = hierarchy(tmp_path / "all.zarr")
    (path / at).parent.mkdir(exist_ok=True, parents=True)
    if at.endswith("link"):
        (path / at).symlink_to(tmp_path / "elsewhere")
    else:
        (path / at).write_text("mine")
    with pytest.raises(SpecError, match=at) as caught:
        shardwrite.shard(path, shards=2)
    assert "move it away" in str(caught.value)
    assert os.path.lexists(path / at)
    assert beside(path) == ["all.zarr"]


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"durability": "none"}, "must be durable"),
        ({"mode": "w"}, "for another place"),
        ({"exclude": "images"}, "would be lost"),
    ],
)
def test_calls_that_do_not_fit_are_refused(tmp_path, keywords, words):
    path = hierarchy(tmp_path / "all.zarr")
    with pytest.raises(SpecError, match=words):
        shardwrite.shard(path, shards=2, **keywords)
    assert beside(path) == ["all.zarr"]


def test_a_link_and_a_store_need_another_place(tmp_path):
    (tmp_path / "link").symlink_to(flat(tmp_path / "a.zarr"))
    with pytest.raises(SpecError, match="symbolic link"):
        shardwrite.shard(tmp_path / "link", shards=2)
    memory = zarr.storage.MemoryStore()
    with dask.config.set(scheduler="threads"):
        da.from_array(VALUES, chunks=20).to_sharded_zarr(memory, shards=None, chunks=10)
        with pytest.raises(SpecError, match="lies in no directory"):
            shardwrite.shard(memory, shards=2)


def stop(*_):
    raise KeyboardInterrupt


@pytest.mark.long
def test_nothing_else_writes_meanwhile(tmp_path):
    """Once a conversion has begun, others are refused until it has ended, though its process died."""
    path = hierarchy(tmp_path / "all.zarr", 3)
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2, progress=stop)
    one = da.ones((5, 5), dtype="i4")
    for write in (
        lambda: shardwrite.write_region(one, path / "images", (slice(0, 5), slice(0, 5))),
        lambda: shardwrite.erase(path / "deep/er/masks", slice(0, 5)),
        lambda: one.to_sharded_zarr(path / "new", shards=5, chunks=5),
        lambda: one.to_sharded_zarr(path / "images", shards=5, chunks=5, mode="w"),
    ):
        with pytest.raises(JournalError, match=r"being converted in its place.*abandon"):
            write()
    same(zarr.open_array(path / "images", mode="r")[...], VALUES)
    with pytest.raises(JournalError, match=r"another conversion.*shardwrite abandon") as caught:
        shardwrite.shard(path, shards=3)
    assert caught.value.differences == ["deep/er/masks", "images"]
    assert shardwrite.shard(path, shards=2).n_chunks_copied == 24
    shardwrite.erase(path / "images", slice(0, 5))
    assert beside(path) == ["all.zarr"]


def test_it_is_given_up(tmp_path):
    path = flat(tmp_path / "a.zarr")
    before = payloads(path)
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2, progress=stop)
    assert beside(path) == ["a.zarr", "a.zarr.conversion.shardwrite"]
    assert shardwrite.abandon(path) == []
    assert beside(path) == ["a.zarr"]
    assert payloads(path) == before
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2, progress=stop)
    assert shardwrite.shard(path, shards=3, restart=True).n_shards == 2
    assert beside(path) == ["a.zarr"]


def test_a_run_that_has_not_ended_comes_first(tmp_path):
    path = flat(tmp_path / "a.zarr")
    with pytest.raises(KeyboardInterrupt):
        shardwrite.write_region(
            da.ones((30, 30), chunks=10, dtype="i4"), path, np.s_[:30, :], progress=stop
        )
    with pytest.raises(JournalError, match="has not ended"):
        shardwrite.shard(path, shards=2)
    assert beside(path) == ["a.zarr", "a.zarr.shardwrite"]
    shardwrite.abandon(path)
    assert shardwrite.shard(path, shards=2).n_shards == 4


def test_two_processes_do_not_work_on_one(tmp_path):
    path = flat(tmp_path / "a.zarr")
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2, progress=stop)
    work = seams.work_of(tmp_path / "a.zarr")
    with seams.hold(work), pytest.raises(JournalError, match="Wait for it") as caught:
        shardwrite.shard(path, shards=2)
    assert caught.value.holder["pid"] == os.getpid()
    assert work.exists()
    assert shardwrite.shard(path, shards=2).n_shards == 4


def test_a_change_by_another_program_is_found(tmp_path):
    """The old array was changed after its chunks were copied, and before the names are exchanged."""
    path = flat(tmp_path / "a.zarr")
    chunk, changed = path / "c/0/0", (path / "c/0/1").read_bytes()
    with (
        seams.once_before("compare the trees", lambda: chunk.write_bytes(changed)),
        pytest.raises(
            CorruptShardError, match=r"which stays as it is.*shardwrite abandon"
        ) as caught,
    ):
        shardwrite.shard(path, shards=2)
    assert "abandon" in "\n".join(caught.value.__notes__)
    assert chunk.read_bytes() == changed
    assert shardwrite.abandon(path) == []  # the remedy
    assert shardwrite.shard(path, shards=2).n_shards == 4
    found = zarr.open_array(path, mode="r")
    same(found[:10, :10], VALUES[:10, 10:20])
    same(found[10:], VALUES[10:])


@pytest.mark.parametrize("what", ["array", "attributes", "file"])
def test_what_another_program_adds_is_not_lost(tmp_path, what):
    """It adds to the old tree after that was copied, and before the names are exchanged."""
    path = hierarchy(tmp_path / "all.zarr")

    def add():
        root = zarr.open_group(path, mode="r+", zarr_format=2)
        if what == "array":
            root.require_array("late", shape=4, chunks=2, dtype="i4")[...] = 7
        elif what == "attributes":
            root["empty"].attrs["n"] = 2
        else:
            (path / "images/notes.txt").write_text("mine")

    with (
        seams.once_before("compare the trees", add),
        pytest.raises(StoreError, match="another program has changed") as caught,
    ):
        shardwrite.shard(path, shards=2)
    assert (
        caught.value.fields["key"]
        == {"array": "late", "attributes": "empty", "file": "images/notes.txt"}[what]
    )
    if what == "file":
        (path / "images/notes.txt").rename(tmp_path / "notes.txt")
    assert shardwrite.abandon(path) == []  # the remedy
    shardwrite.shard(path, shards=2)
    root = zarr.open_group(path, mode="r", zarr_format=3)
    assert root["empty"].attrs["n"] == (2 if what == "attributes" else 1)
    assert what != "array" or root["late"][...].tolist() == [7] * 4
    same(root["images"][...], VALUES)


def test_a_tree_that_has_changed_since_it_was_planned(tmp_path):
    """Another process has converted it in the meantime, so the plan is of a tree that is gone."""
    path = flat(tmp_path / "a.zarr")
    with (
        seams.once_before("begin in place", lambda: shardwrite.shard(path, shards=3)),
        pytest.raises(StoreError, match=r"has changed.*Make the call again$"),
    ):
        shardwrite.shard(path, shards=2)
    assert beside(path) == ["a.zarr"]
    assert zarr.open_array(path, mode="r").shards == (30, 30)
    assert shardwrite.shard(path, shards=2).n_shards == 4
    same(zarr.open_array(path, mode="r")[...], VALUES)


@pytest.mark.parametrize("is_there", [False, True], ids=["taken over", "given up"])
@pytest.mark.parametrize("name", ["", "/a.zarr", "/a.zarr.shardwrite/draft"])
def test_directories_of_lost_work_are_not_made_again(tmp_path, name, is_there):
    """A process was frozen, and another has renamed the directory of its work. Or a task is late,
    and its own process has renamed the directory of the new tree."""
    home = seams.conversion_beside(tmp_path / "a.zarr")
    (home / "work-1" if is_there else home).mkdir(parents=True)
    before = list(home.rglob("*"))
    with pytest.raises(FileNotFoundError):
        make_directories(home / f"work-1/array-new{name}", "full")
    assert list(home.rglob("*")) == before
    make_directories(tmp_path / f"work-1/array-new{name}", "full")  # a user's, of that name


@pytest.mark.parametrize("name", ["staged", "run-1/array-2", "work-1", "array-1/0/array-2"])
def test_arrays_may_have_names_that_state_has(tmp_path, name):
    root = zarr.create_group(tmp_path / "run-1" / "all.zarr")
    root.create_array(name, data=VALUES, chunks=(10, 10))
    assert shardwrite.shard(tmp_path / "run-1" / "all.zarr", shards=2).n_shards == 4
    root = zarr.open_group(tmp_path / "run-1" / "all.zarr", mode="r")
    same(root[name][...], VALUES)
    flat(tmp_path / "run-1" / "array-2")
    shardwrite.shard(tmp_path / "run-1" / "array-2", shards=2)
    assert beside(tmp_path / "run-1" / "all.zarr") == ["all.zarr", "array-2"]


@pytest.mark.parametrize("then", ["again", "abandon"])
@pytest.mark.parametrize("at", ["compare the trees", "exchange two names", "remove the old tree"])
def test_one_that_an_older_version_has_begun_goes_on(tmp_path, at, then, way):
    """The directory of the new tree was `new`, and the old tree left it after the exchange."""
    path = flat(tmp_path / "a.zarr")
    before = payloads(path)
    died = mock.patch.object(*seams.step(at), side_effect=KeyboardInterrupt)
    with died, pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2)
    is_exchanged = at == "remove the old tree"
    work = seams.work_of(path)
    (work / "array-new").rename(work / "new")
    if is_exchanged and then == "again" and way == "exchange":
        (work / "new/a.zarr").rename(work / "replaced")
    if then == "again":
        shardwrite.shard(path, shards=2)
    else:
        shardwrite.abandon(path)
    is_new = then == "again" or is_exchanged
    assert zarr.open_array(path, mode="r").shards == ((20, 20) if is_new else None)
    assert payloads(path) == before
    assert beside(path) == ["a.zarr"]


def test_a_process_that_was_taken_over_does_not_exchange(tmp_path):
    """It stood still before it compared the trees, and another one has given the work up."""
    path = flat(tmp_path / "a.zarr")

    def give_up():
        (lease,) = seams.leases_in(seams.work_of(path))
        lease.unlink()
        shardwrite.abandon(path)

    with (
        seams.once_before("compare the trees", give_up),
        pytest.raises(RunEndedError, match="another process has taken over"),
    ):
        shardwrite.shard(path, shards=2)
    assert zarr.open_array(path, mode="r").shards is None
    assert beside(path) == ["a.zarr"]


def test_another_tree_at_the_name_is_left_alone(tmp_path):
    """Somebody moves the old tree away amid the conversion and puts another one there."""
    path = flat(tmp_path / "a.zarr")
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2, progress=stop)
    path.rename(tmp_path / "moved")
    with pytest.raises(JournalError, match="Nothing is removed"):
        shardwrite.shard(path, shards=2)
    os.mkdir(path)
    (path / "mine").write_text("x")
    with pytest.raises(JournalError, match="Nothing is removed"):
        shardwrite.shard(path, shards=2)
    assert (path / "mine").read_text() == "x"
    same(zarr.open_array(tmp_path / "moved", mode="r")[...], VALUES)
    assert seams.conversion_beside(tmp_path / "a.zarr").exists()
    shardwrite.abandon(path)
    assert beside(path) == ["a.zarr", "moved"]
    assert (path / "mine").read_text() == "x"
    same(zarr.open_array(tmp_path / "moved", mode="r")[...], VALUES)


def replaced_before(name, path):
    """Replace the array before a step, as a call that began earlier."""

    def replace():
        path.rename(path.with_name("replaced"))
        da.zeros((8, 8), chunks=4).to_sharded_zarr(path.with_name("new"), shards=4, chunks=2)
        path.with_name("new").rename(path)

    return seams.once_before(name, replace)


def test_a_tree_that_another_call_replaces_as_it_begins(tmp_path):
    path = flat(tmp_path / "a.zarr")
    with (
        replaced_before("take over a conversion", path),
        pytest.raises(JournalError, match="has replaced"),
    ):
        shardwrite.shard(path, shards=2)
    assert beside(path) == ["a.zarr", "replaced"]
    shardwrite.unshard(path)
    assert zarr.open_array(path, mode="r").shards is None
    assert not zarr.open_array(path, mode="r")[...].any()


def test_a_process_that_dies_after_its_tree_was_replaced(tmp_path):
    path = flat(tmp_path / "a.zarr")
    died = mock.patch.object(*seams.step("check the old tree"), side_effect=KeyboardInterrupt)
    with replaced_before("take over a conversion", path), died, pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2)
    with pytest.raises(JournalError, match="Nothing is removed"):
        shardwrite.shard(path, shards=2)
    shardwrite.abandon(path)
    assert beside(path) == ["a.zarr", "replaced"]
    assert not zarr.open_array(path, mode="r")[...].any()


def test_another_tree_right_before_the_exchange_is_put_back(tmp_path, way):
    path = flat(tmp_path / "a.zarr")
    real = seams.real("record the exchange")

    def swap_and_write(self, new):
        real(self, new)
        if new is not None and path.exists() and not (tmp_path / "moved").exists():
            path.rename(tmp_path / "moved")
            path.mkdir()
            (path / "mine").write_text("x")

    with (
        mock.patch.object(*seams.step("record the exchange"), swap_and_write),
        pytest.raises(JournalError, match="Nothing is removed"),
    ):
        shardwrite.shard(path, shards=2)
    assert (path / "mine").read_text() == "x"
    same(zarr.open_array(tmp_path / "moved", mode="r")[...], VALUES)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory to another user")
def test_state_of_another_user_is_not_followed(tmp_path):
    path = flat(tmp_path / "a.zarr")
    home = seams.conversion_beside(tmp_path / "a.zarr")
    home.mkdir()
    os.chown(home, 1234, 1234)
    with pytest.raises(UntrustedStateError, match="is not followed"):
        shardwrite.shard(path, shards=2)
    same(zarr.open_array(path, mode="r")[...], VALUES)


def test_a_link_where_the_state_should_be_is_told(tmp_path):
    path = flat(tmp_path / "a.zarr")
    seams.conversion_beside(path).symlink_to(tmp_path)
    with pytest.raises(UntrustedStateError, match=r"is no directory, and it is not followed; look"):
        shardwrite.shard(path, shards=2)
    same(zarr.open_array(path, mode="r")[...], VALUES)


def test_a_damaged_record_is_told(tmp_path):
    path = flat(tmp_path / "a.zarr")
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(path, shards=2, progress=stop)
    (tmp_path / "a.zarr.conversion.shardwrite" / "record.json").write_text("{")
    with pytest.raises(JournalError, match="no whole record"):
        shardwrite.shard(path, shards=2)
    same(zarr.open_array(path, mode="r")[...], VALUES)


def test_a_disk_that_is_full_leaves_the_old_tree(tmp_path):
    path = flat(tmp_path / "a.zarr")
    before = payloads(path)
    with (
        mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")),
        pytest.raises(StoreError, match="No space left"),
    ):
        shardwrite.shard(path, shards=2)
    assert payloads(path) == before
    assert shardwrite.shard(path, shards=2).n_shards == 4
    assert payloads(path) == before
    assert beside(path) == ["a.zarr"]


@pytest.mark.parametrize("name", ["x", "s/x", "s"])
def test_nothing_is_converted_that_a_group_of_v2_would_go_on_to_show(tmp_path, name):
    """Readers of the group saw the fill value."""
    root = zarr.create_group(tmp_path / "g", zarr_format=2)
    root.create_array("x", data=np.arange(1, 9), chunks=(2,))
    root.create_group("s").create_array("x", data=np.arange(1, 9), chunks=(2,))
    zarr.consolidate_metadata(tmp_path / "g", zarr_format=2)
    with pytest.raises(SpecError, match="would be read as the fill value; convert that group"):
        shardwrite.shard(tmp_path / "g" / name, shards=2)
    opened = zarr.open_consolidated(tmp_path / "g", mode="r", zarr_format=2)
    assert opened["s/x"][...].tolist() == opened["x"][...].tolist() == list(range(1, 9))
    shardwrite.shard(tmp_path / "g", shards=2)
    assert zarr.open_consolidated(tmp_path / "g", mode="r")["s/x"][:3].tolist() == [1, 2, 3]
