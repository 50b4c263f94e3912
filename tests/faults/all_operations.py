"""Operations that every fault strikes: a new one is an entry of `OPERATIONS`.

`driver.py` goes through the steps of a case, and `all_faults.py` has the faults.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import h5py
import numpy as np
import zarr

import shardwrite
from shardwrite import AppendOnly, FixedOrder, JournalError, ShardWriter, SpecError
from shardwrite.convert.trees import with_note

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import conversions
import hierarchies
import of_datasets
import seams
import told
from driver import Operation, check_array, nothing
from effects import in_child, kill
from formats import OF_FORMATS
from helpers import contents
from id_shards import IDS
from manifests import LISTED
from volumes import VOLUMES

OLD = (np.arange(400, dtype="u4") + 1).reshape(20, 20)
NEW = OLD + 1000
REGION = (slice(3, 17), slice(2, 12))
UPDATED = OLD.copy()
UPDATED[REGION] = NEW[REGION]
LAYOUT = {"shards": 10, "chunks": 5}


def source(values: np.ndarray) -> da.Array:
    return da.from_array(values, chunks=7)


def make(path: Path) -> None:
    source(OLD).to_sharded_zarr(path, **LAYOUT)


def write(path: Path, **keywords) -> object:
    return source(NEW).to_sharded_zarr(path, **LAYOUT, **keywords)


def prepare_parts(path: Path) -> None:
    shardwrite.prepare(source(NEW), path, shardwrite.plan(source(NEW), **LAYOUT))


def in_parts(path: Path) -> object:
    for index in range(2):
        shardwrite.write_part(source(NEW), path, index, 2)
    return shardwrite.finalize(path, n_parts=2)


def write_parts(path: Path) -> None:
    prepare_parts(path)
    for index in range(2):
        shardwrite.write_part(source(NEW), path, index, 2)


def update(path: Path, **keywords) -> object:
    return source(NEW[REGION]).to_sharded_zarr(path, region=REGION, **keywords)


def make_wasteful(path: Path) -> None:
    make(path)
    for _ in range(3):
        update(path, strategy=AppendOnly())


def damage(path: Path) -> None:
    make(path)
    (path / "c/0/1").write_bytes(b"torn")
    (path / "c/1/1").unlink()


def tear(path: Path) -> None:
    """A shard as an append leaves it that was killed before the new index stood."""
    make(path)
    with (path / "c/0/1").open("ab") as shard:
        shard.write(bytes(range(1, 200)))


def stream(strategy: FixedOrder | str, path: Path) -> None:
    first = shardwrite.open_sharded(path).shape[0]
    with ShardWriter(path, strategy=strategy, n_threads=1) as writer:
        for t in range(first, len(NEW)):
            writer.append(NEW[t])
            if t % 7 == 0:
                writer.flush()


def begin_stream(path: Path) -> None:
    shardwrite.create(path, (0, 20), "u4", **LAYOUT)


def kill_amid_shards(action: Callable[[], object]) -> None:
    """Do something in a process that is killed when two of its four shards are in their places."""

    def kill_before_the_third(writer: Any, *_: object) -> None:
        if writer.key == "c/1/0":
            kill()

    def act() -> None:
        seams.before(None, "rename a file", kill_before_the_third)
        action()

    ended = in_child(act)
    assert ended == "killed", ended


def interrupt_update(path: Path) -> None:
    """An update that a kill has ended amid its shards."""
    make(path)
    kill_amid_shards(lambda: update(path, strategy=FixedOrder(in_place=True)))


def interrupt_write(path: Path) -> None:
    """A run that a kill has ended amid its shards."""
    kill_amid_shards(lambda: source(OLD).to_sharded_zarr(path, **LAYOUT))


def lose_state(path: Path) -> None:
    """Most shards of a run that a kill has ended, and whose state is purged."""
    in_child(lambda: write(path, progress=kill))
    shutil.rmtree(path.with_name(f"{path.name}.shardwrite"))
    shards = sorted(file for file in path.rglob("*") if file.is_file())
    assert len(shards) > 1, "it was killed before it had written anything"
    shards[0].unlink()


def recover(path: Path, **keywords) -> object:
    return shardwrite.recover(path, source(NEW), **LAYOUT, **keywords)


def write_or_recover(path: Path) -> object:
    """The call that writes the array; where no recovery has begun, a recovery."""
    try:
        return write(path)
    except SpecError:
        return recover(path)


def give_up_and_update(path: Path) -> object:
    shardwrite.abandon(path)
    return update(path)


def before(path: Path) -> Path:
    """Place of a copy of the old array."""
    return (path.parent if path.parent.name == "g" else path).with_name("before")


def make_and_copy(path: Path) -> None:
    make(path)
    shutil.copytree(path, before(path))


def interrupt_replacement(path: Path) -> None:
    """A call with ``mode="w"`` that a kill has ended amid its shards."""
    if not path.exists():
        make(path)
    shutil.copytree(path, before(path))
    kill_amid_shards(lambda: write(path, mode="w"))


def interrupt_in_group(path: Path) -> None:
    """The same in a group with consolidated metadata."""
    consolidated(make)(path)
    interrupt_replacement(path)


def check_put_back(path: Path) -> None:
    assert contents(path) == contents(before(path))


def give_up_and_replace(path: Path) -> None:
    """Where a call with ``mode="w"`` was interrupted, give it up first: what is there is whole."""
    if seams.state_beside(path).exists():
        shardwrite.abandon(path)
        is_new = (shardwrite.open_sharded(path)[:, :] == NEW).all()
        assert is_new or contents(path) == contents(before(path))
        look_through_group(path, exactly=True)
    write(path, mode="w")


SEVERAL = ("x", "a", "b/z")


def make_several(path: Path) -> None:
    """Arrays of one group."""
    replace_several(path, OLD, mode="w-")


def replace_several(path: Path, values: np.ndarray = NEW, **keywords) -> None:
    """Arrays of one call, each with other values."""
    arrays = [source(values + n) for n in range(len(SEVERAL))]
    how = {"source_id": str(values[0, 0]), "mode": "w", **LAYOUT, **keywords}
    shardwrite.store(arrays, [path.parent] * len(SEVERAL), names=list(SEVERAL), **how)


def check_same_version(path: Path, *values: np.ndarray) -> None:
    """The arrays of the call have these values, or all of them have the next ones."""
    found = [zarr.open_array(path.parent / name, mode="r")[...] for name in SEVERAL]
    assert any(all((one == each + n).all() for n, one in enumerate(found)) for each in values), (
        "some are new and others are old"
    )


def check_several(path: Path) -> None:
    """All are new, and the call has ended."""
    check_same_version(path, NEW)
    assert not list(path.parent.parent.rglob("*.shardwrite"))


def is_begun(path: Path) -> bool:
    return seams.state_beside(path.parent).exists()


def give_up_and_replace_several(path: Path) -> None:
    """Where the call was interrupted, give it up first: all arrays are old, or all are new."""
    if is_begun(path):
        for name in SEVERAL:
            shardwrite.abandon(path.parent, name=name)
        check_same_version(path, OLD, NEW)
    replace_several(path)


def replace_several_by_others(path: Path) -> None:
    """Where the call was interrupted, make another one first."""
    if is_begun(path):
        other = {"values": OLD + 5, "shards": 5}
        try:
            replace_several(path, **other)
        except JournalError:
            check_same_version(path, OLD)
            replace_several(path, **other, restart=True)
        check_same_version(path, OLD + 5)
    replace_several(path)


def of_source(path: Path) -> Path:
    """Place of the array that is converted."""
    return path.with_name("source")


def make_source(path: Path, shards: int | None = None) -> None:
    source(NEW).to_sharded_zarr(of_source(path), shards=shards, chunks=5)


def convert(path: Path, **keywords) -> object:
    return shardwrite.reshard(of_source(path), path, **keywords)


def consume(path: Path, **keywords) -> object:
    return convert(path, consume=True, memory_limit="10kB", **keywords)


def check_consumed(path: Path) -> None:
    """Nothing is left of the source."""
    left = [p.name for p in path.parent.iterdir() if p.name.startswith("source")]
    assert not left, left


def make_tree(path: Path) -> None:
    """A group with a flat array, a sharded one in a group below, and one without elements."""
    group = zarr.create_group(path.parent.with_name("source"), attributes={"of": "tests"})
    source(NEW).to_sharded_zarr(group, name="x", shards=None, chunks=5)
    source(OLD).to_sharded_zarr(group, name="b/y", shards=10, chunks=5)
    source(OLD[:0]).to_sharded_zarr(group, name="b/zero", shards=None, chunks=5)
    with warnings.catch_warnings():  # that consolidated metadata are no part of Zarr v3
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(group.store)


def consume_tree(path: Path) -> None:
    old = path.parent.with_name("source")
    shardwrite.shard(old, path.parent, shards=2, consume=True, memory_limit="10kB")


def check_consumed_tree(path: Path) -> None:
    """Nothing is left of the hierarchy, and everything is in the new one."""
    check_consumed(path.parent)
    new = zarr.open_consolidated(path.parent, mode="r")
    assert dict(new.attrs) == {"of": "tests"}
    assert new["b/zero"].shape == (0, 20)
    np.testing.assert_array_equal(new["b/y"][...], OLD)
    left = [
        p.name for p in (path.parent / "b").iterdir() if p.name not in ("y", "zero", "zarr.json")
    ]
    assert not left, left


def make_flat(path: Path) -> None:
    source(NEW).to_sharded_zarr(path, shards=None, chunks=5)


def shard_in_place(path: Path) -> object:
    return shardwrite.shard(path, shards=2)


def shard_by_two_renames(path: Path) -> object:
    """Where the system cannot exchange names."""
    with mock.patch.object(*seams.step("exchange two names"), return_value=False):
        return shard_in_place(path)


def given_up_before(perform: Callable[[Path], object]) -> Callable[[Path], object]:
    """Where a conversion in place was interrupted, give it up first. Until the old array has lost
    its name, that keeps it; later, the new one stays."""

    def give_up_and_perform(path: Path) -> object:
        if seams.conversion_beside(path).exists():
            is_old = path.exists() and zarr.open_array(path, mode="r").shards is None
            shardwrite.abandon(path)
            assert (zarr.open_array(path, mode="r").shards is None) == is_old
            check_array(path, NEW)
        return perform(path)

    return give_up_and_perform


def consolidated(prepare: Callable[[Path], object]) -> Callable[[Path], None]:
    """The same in a group with consolidated metadata, and another array beside it."""

    def prepared(path: Path) -> None:
        zarr.create_group(path.parent)
        prepare(path)
        source(OLD).to_sharded_zarr(path.with_name("a"), **LAYOUT)
        source(OLD).to_sharded_zarr(path.with_name("z"), **LAYOUT)
        with warnings.catch_warnings():  # that consolidated metadata are no part of Zarr v3
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path.parent)

    return prepared


def in_group(operation: Operation) -> Operation:
    """The same in such a group."""
    prepare = consolidated(operation.prepare)
    return replace(operation, prepare=prepare, at="g/x", look=look_through_group)


def begin_short(path: Path) -> None:
    source(OLD[:7]).to_sharded_zarr(path, **LAYOUT)


def append(path: Path) -> object:
    return source(NEW[7:]).to_sharded_zarr(path, region="append", source_id="new")


def look_through_group(path: Path, exactly: bool = False) -> None:
    """What readers of the group above see of an array: it as it is, or with fewer rows, or nothing.

    With `exactly`, they see it as it is.
    """
    if path.parent.name != "g":  # of a function for both
        return
    listed = document_at(path.parent)["consolidated_metadata"]["metadata"]
    assert [name for name in listed if name != path.name] == ["a", "z"], list(listed)
    seen = listed.get(path.name)
    if not exactly and seen is None:
        return
    assert seen is not None, "the group does not list the array"
    assert (path / "zarr.json").exists(), "the group lists an array that is not there"
    own = document_at(path)
    if exactly:
        assert seen == own
        assert list(listed) == sorted(listed)
    assert seen["shape"] <= own["shape"]
    assert {**seen, "shape": []} == {**own, "shape": []}, "the group has another document"


def check_note(path: Path) -> None:
    """The array tells of its shards once the call has returned."""
    found = document_at(path)["attributes"]
    assert with_note(found) == found


def document_at(path: Path) -> dict:
    return json.loads((path / "zarr.json").read_text())


def create(path: Path) -> None:
    """Make an array without data; where it has just been made, that is told."""
    try:
        shardwrite.create(path, (20, 20), "u4", **LAYOUT)
    except SpecError as error:
        if "an array exists there" not in str(error):
            raise


def make_raw(path: Path) -> None:
    """Inner chunks of one size are what can be put in place."""
    source(OLD).to_sharded_zarr(path, compressors=None, **LAYOUT)


def make_unsharded(path: Path) -> None:
    source(OLD).to_sharded_zarr(path, shards=None, chunks=10)


def begin_unsharded_stream(path: Path) -> None:
    shardwrite.create(path, (0, 20), "u4", shards=None, chunks=10)


def make_hdf5(path: Path) -> None:
    with h5py.File(path.with_name("old.h5"), "w") as file:
        file.create_dataset("x", data=NEW, chunks=(5, 5), compression="gzip")


def adopt(path: Path) -> object:
    return shardwrite.adopt([path.with_name("old.h5")], path, dataset="x")


def check_adopted(path: Path) -> None:
    """Its shards are files of HDF5, which no reader but ours and h5py knows."""
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], NEW)
    assert not list(path.parent.glob("x.*"))


def convert_in_parts(path: Path) -> object:
    given = of_source(path), path
    shardwrite.prepare_conversion(*given, shards=2)
    for part in range(2):
        shardwrite.convert_part(*given, part, 2, shards=2)
    return shardwrite.finalize_conversion(*given, shards=2)


def make_sharded_source(path: Path) -> None:
    make_source(path, 10)


def uploaded(path: Path) -> zarr.storage.FsspecStore:
    """A store that is no directory, and outlives a process; it holds no state of runs."""
    url = path.with_name("uploaded").as_uri()
    return zarr.storage.FsspecStore.from_url(url, storage_options={"auto_mkdir": True})


def upload(path: Path) -> object:
    return shardwrite.upload(path, uploaded(path), run_dir=path.with_name("state"))


def check_uploaded(path: Path) -> None:
    np.testing.assert_array_equal(shardwrite.open_sharded(uploaded(path))[:, :], NEW)
    assert not list(path.with_name("state").glob("*"))


torn = partial(replace, may_be_torn=True)
ERASED = OLD.copy()
ERASED[REGION] = 0
APPENDED = np.concatenate([OLD[:7], NEW[7:]])
IN_PLACE, APPENDING = FixedOrder(in_place=True, max_unused=1.0), AppendOnly(in_place=True)
ARRAYS = {
    "write": Operation(nothing, write, NEW),
    "write, published first": Operation(nothing, partial(write, publish="first"), NEW),
    "write, level none": Operation(nothing, partial(write, durability="none"), NEW),
    "replacement": Operation(make, partial(write, mode="w"), NEW),
    "restart": Operation(interrupt_write, partial(write, restart=True), NEW),
    "parts": Operation(prepare_parts, in_parts, NEW),
    "finalize": Operation(write_parts, shardwrite.finalize, NEW),
    "update": Operation(make, update, UPDATED),
    "update, named source": Operation(make, partial(update, source_id="new"), UPDATED),
    "update in place": torn(Operation(make, partial(update, strategy=IN_PLACE), UPDATED)),
    "update in place, raw": torn(Operation(make_raw, partial(update, strategy=IN_PLACE), UPDATED)),
    "append in place": torn(Operation(make, partial(update, strategy=APPENDING), UPDATED)),
    "update without shards": Operation(make_unsharded, update, UPDATED),
    "erase": Operation(make, lambda path: shardwrite.erase(path, REGION), ERASED),
    "update by restart": torn(Operation(interrupt_update, partial(update, restart=True), UPDATED)),
    "compaction": Operation(make_wasteful, partial(shardwrite.compact, above=0.1), UPDATED),
    "repair": torn(Operation(damage, lambda path: shardwrite.repair(path, source(OLD)), OLD)),
    "salvage": torn(Operation(tear, partial(shardwrite.repair, scan=True), OLD)),
    "recovery": Operation(lose_state, recover, NEW),
    "recovery, or write": Operation(lose_state, recover, NEW, recover=write_or_recover),
    "stream": Operation(begin_stream, partial(stream, "auto"), NEW),
    "stream, shards replaced": Operation(begin_stream, partial(stream, FixedOrder()), NEW),
    "stream without shards": Operation(begin_unsharded_stream, partial(stream, FixedOrder()), NEW),
    "creation": Operation(nothing, create, np.zeros_like(OLD)),
    "write into a group": Operation(nothing, lambda path: write(path.parent, name="x"), NEW),
    "write into a group that is there": Operation(consolidated(nothing), write, NEW, at="g/x"),
    "update in a group": Operation(consolidated(make), update, UPDATED, at="g/x"),
    "compaction in a group": Operation(
        consolidated(make_wasteful), partial(shardwrite.compact, above=0.1), UPDATED, at="g/x"
    ),
    "shard": Operation(make_source, partial(convert, shards=2), NEW),
    "unshard": Operation(make_sharded_source, partial(convert, shards=None), NEW),
    "conversion that encodes": Operation(
        make_sharded_source, partial(convert, shards=2, chunks=4), NEW
    ),
    "conversion in parts": Operation(make_source, convert_in_parts, NEW),
    "adoption": Operation(make_hdf5, adopt, check=check_adopted),
    "upload": Operation(write, upload, NEW, check=check_uploaded, own=("state", "uploaded/*")),
    "download": Operation(
        make_sharded_source, lambda path: shardwrite.download(of_source(path), path), NEW
    ),
    "shard and consume": Operation(
        make_source, partial(consume, shards=2), NEW, check=check_consumed
    ),
    "reshard and consume": Operation(
        make_sharded_source, partial(consume, shards=(3, 1)), NEW, check=check_consumed
    ),
    "consume a hierarchy": Operation(
        lambda path: in_child(lambda: make_tree(path)),
        consume_tree,
        NEW,
        at="made/x",
        check=check_consumed_tree,
    ),
    "shard in place": Operation(make_flat, shard_in_place, NEW),
    "shard by two renames": Operation(make_flat, shard_by_two_renames, NEW),
    "shard in place, or give up": Operation(
        make_flat, shard_in_place, NEW, recover=given_up_before(shard_in_place)
    ),
    "shard by two renames, or give up": Operation(
        make_flat, shard_by_two_renames, NEW, recover=given_up_before(shard_by_two_renames)
    ),
    "shard a store": Operation(
        make_flat, lambda path: shardwrite.shard_store(path, 2), NEW, check=check_note
    ),
    "unshard in place": Operation(write, shardwrite.unshard, NEW),
    "shard in place in a group": in_group(Operation(make_flat, shard_in_place, NEW)),
    "replacement in a group": in_group(Operation(make_flat, partial(write, mode="w"), NEW)),
    "append in a group": in_group(Operation(begin_short, append, APPENDED)),
    "stream in a group": in_group(Operation(begin_stream, partial(stream, "auto"), NEW)),
    "give up a replacement": Operation(
        interrupt_replacement, shardwrite.abandon, OLD, check=check_put_back
    ),
    "give up a replacement in a group": replace(
        in_group(Operation(make, shardwrite.abandon, OLD, check=check_put_back)),
        prepare=interrupt_in_group,
    ),
    "replacement, or give up": Operation(
        make_and_copy, partial(write, mode="w"), NEW, recover=give_up_and_replace
    ),
    "replacement, or give up, in a group": in_group(
        Operation(make_and_copy, partial(write, mode="w"), NEW, recover=give_up_and_replace)
    ),
    "replacement of several": Operation(
        make_several, replace_several, NEW, at="r/x", check=check_several
    ),
    "replacement of several, or give up": Operation(
        make_several,
        replace_several,
        NEW,
        at="r/x",
        recover=give_up_and_replace_several,
        check=check_several,
    ),
    "replacement of several, or others": Operation(
        make_several,
        replace_several,
        NEW,
        at="r/x",
        recover=replace_several_by_others,
        check=check_several,
    ),
    "replacement by restart": Operation(
        interrupt_replacement, partial(write, mode="w", restart=True), NEW
    ),
    "give up, and update": torn(Operation(interrupt_update, give_up_and_update, UPDATED)),
}


TABLES = {
    "arrays": ARRAYS,
    "listed": LISTED,
    "ids": IDS,
    "formats": OF_FORMATS,
    "volumes": VOLUMES,
    "datasets": of_datasets.DATASETS,
    "hierarchies": hierarchies.HIERARCHIES,
    "told": told.TOLD,
    "conversions": conversions.BESIDE,
    "conversions of HDF5": conversions.OF_HDF5,
    "conversions in place": conversions.IN_THEIR_PLACE,
    "large": hierarchies.LARGE | of_datasets.LARGE,
}
OPERATIONS = {name: operation for table in TABLES.values() for name, operation in table.items()}
"""All of them, by name. Each fault strikes each of them."""
SMALL = [
    name
    for table, operations in TABLES.items()
    if table != "large" and not table.startswith("conversions")
    for name in operations
]
"""Those of which a sample is a matter of seconds, and of conversions those that are not drawn."""
NOT_IN_BUCKETS = {
    **dict.fromkeys(
        (
            *(
                "update in place",
                "update in place, raw",
                "append in place",
                "listed update in place",
            ),
            *("listed append in place", "append to a dataset in place"),
        ),
        "no object can be changed in its place",
    ),
    **dict.fromkeys(
        (
            *("restart", "parts", "finalize", "update by restart", "replacement by restart"),
            *("give up a replacement", "give up a replacement in a group", "give up, and update"),
            *("listed update by restart",),
        ),
        "a run that was begun in a directory stands there before",
    ),
    **dict.fromkeys(
        (
            *("shard in place", "shard by two renames", "shard in place, or give up"),
            *("shard by two renames, or give up", "shard a store", "unshard in place"),
            *("shard in place in a group", "listed reshard in place"),
            *conversions.IN_THEIR_PLACE,
        ),
        "only arrays in directories are converted in their place",
    ),
    **dict.fromkeys(
        ("shard and consume", "reshard and consume", "consume a hierarchy"),
        "only directories are consumed",
    ),
    **dict.fromkeys(
        ("make transformer", "change transformer"),
        "a run on a store of the transformer has no place in a bucket",
    ),
    "adoption": "files of this machine are adopted",
    "upload": "its source is a directory",
    "download": "its target is a directory",
}
"""Operations of which there are none in buckets, and why."""
