"""Long names of arrays, and long paths: an operation works, or is refused before anything changes."""

from __future__ import annotations

import os
import time

import dask.array as da
import numpy as np
import pytest
import zarr
from tiers import some

import shardwrite
from shardwrite import FixedOrder, ShardwriteError, ShardWriter, SpecError, UInt64Shards

ONES = np.ones((8, 8))
LAYOUT = {"shards": 4, "chunks": 2}
LONGEST = 233


pytestmark = pytest.mark.usefixtures("one_thread")


def make(path, shards=4):
    da.from_array(ONES, chunks=4).to_sharded_zarr(path, shards=shards, chunks=2)


def nothing(path):
    """An empty place."""


def damage(path):
    make(path)
    (path / "c/0/0").write_bytes(b"torn")


def make_group(path):
    zarr.create_group(path).create_array("a", data=ONES, chunks=(2, 2))


def stream(path):
    with ShardWriter(path) as writer:
        for row in ONES:
            writer.append(row)


def by_id(path):
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": "identity",
        "preshift_bits": 0,
        "minishard_bits": 1,
        "shard_bits": 1,
    }
    UInt64Shards(path, sharding).write({3: b"a", 5: b"b"})


def volume(path, **keywords):
    x = da.ones((8, 8, 8), chunks=8, dtype="u1")
    return shardwrite.to_precomputed(
        x, path, resolution=(1, 1, 1), axes="xyz", sharding="auto", **keywords
    )


OPERATIONS = {
    "write": (nothing, make),
    "replace": (make, lambda path: shardwrite.to_sharded_zarr(ONES, path, mode="w", **LAYOUT)),
    "update": (make, lambda path: shardwrite.write_region(3, path, np.s_[:1, :1])),
    "update in place": (
        make,
        lambda path: shardwrite.write_region(
            3, path, np.s_[:1, :1], strategy=FixedOrder(in_place=True)
        ),
    ),
    "stream": (lambda path: shardwrite.create(path, (0, 8), "f8", **LAYOUT), stream),
    "repair": (damage, lambda path: shardwrite.repair(path, da.from_array(ONES, chunks=4))),
    "in place": (make, lambda path: shardwrite.reshard(path, shards=1)),
    "unshard in place": (make, shardwrite.unshard),
    "group in place": (make_group, lambda path: shardwrite.shard(path, shards=2)),
    "consume": (make, lambda path: shardwrite.reshard(path, path.parent / "y", 1, consume=True)),
    "store in place": (make_group, lambda path: shardwrite.shard_store(path, 2)),
    "volume": (nothing, volume),
    "scale": (nothing, lambda path: volume(path.parent / "v", key=path.name)),
    "chunks by id": (nothing, by_id),
}

OFTEN = ("replace", "update", "in place", "scale", "chunks by id")


def names_in(directory):
    return sorted(
        os.path.join(where, name)
        for where, *some in os.walk(directory)
        for each in some
        for name in each
    )


def call_at(path, name, short):
    """Whether the call has worked; if not, nothing may have changed."""
    prepare, perform = OPERATIONS[name]
    prepare(short)
    if short.exists():
        short.rename(path)
    before, error = names_in(path.parent), None
    try:
        perform(path)
    except (ShardwriteError, OSError) as raised:
        error = raised
    if error is not None:
        assert names_in(path.parent) == before, error
        return False
    assert not list(path.parent.glob("*.shardwrite"))
    return True


@pytest.mark.parametrize("name", some(OPERATIONS, *OFTEN))
def test_long_names(tmp_path, name):
    for n, is_possible in ((212, True), (226, True), (LONGEST, True), (234, False), (244, False)):
        directory = tmp_path / str(n)
        directory.mkdir()
        is_spooled = name == "scale" and n > LONGEST - len("..spool")
        works = name == "chunks by id" or (is_possible and not is_spooled)
        assert call_at(directory / ("n" * n), name, tmp_path / f"made {n}") == works


@pytest.mark.parametrize(
    "name", some(["write", "replace", "update", "in place", "group in place"], "write", "in place")
)
def test_long_paths(tmp_path, name):
    worked = []
    for n in (3000, 3850, 3900, 3930, 3960, 4000, 4040, 4070):
        directory = tmp_path / str(n)
        while n - len(str(directory)) > 203:
            directory /= "d" * 200
        directory /= "e" * (n - len(str(directory)) - 3)
        directory.mkdir(parents=True)
        worked.append(call_at(directory / "x", name, tmp_path / f"made {n}"))
    assert worked[0]
    assert not worked[-1]


def test_a_name_of_too_many_parts_is_refused_at_once(tmp_path):
    """Each part is a group, and each is looked at for the state of each below it."""
    names = ["/".join("a" * n) for n in (251, 2_000)]
    start = time.process_time()
    for name in names:
        with pytest.raises(SpecError, match=r"it has [\d,]+ parts; give one of at most 250 parts"):
            da.from_array(ONES).to_sharded_zarr(tmp_path / "x", name=name, **LAYOUT)
    assert time.process_time() - start < 1
    assert not any(tmp_path.iterdir())
