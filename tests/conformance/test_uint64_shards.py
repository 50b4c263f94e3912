"""The sharded container against two other implementations, both ways, over random parameters.

tensorstore reads and writes it. cloud-volume makes shards with the same layout, so its bytes are
equal where nothing is compressed. Tests with cloud-volume are skipped where it is not installed.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tensorstore as ts
from tiers import drawn

import shardwrite

CASES = drawn(100, n_quick=10)


def case(number):
    """Parameters, and chunks by id."""
    rng = np.random.default_rng(number)
    minishard = int(rng.choice([0, 1, 2, 3, 5, 9]))
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": int(rng.choice([0, 1, 3, 9, 40, 64])),
        "hash": str(rng.choice(["identity", "murmurhash3_x86_128"])),
        "minishard_bits": minishard,
        "shard_bits": int(rng.choice([0, 1, 2, 4, 5, 17, 64 - minishard])),
        "minishard_index_encoding": str(rng.choice(["raw", "gzip"])),
        "data_encoding": str(rng.choice(["raw", "gzip"])),
    }
    most = int(rng.choice([2**6, 2**20, 2**64 - 1]))
    ids = np.unique(rng.integers(0, most, int(rng.integers(1, 40)), dtype=np.uint64))
    values = {int(one): rng.bytes(int(rng.integers(0, 60))) for one in ids}
    return sharding, values


def kvstore(path, sharding):
    base = {"driver": "file", "path": f"{path}/"}
    return ts.KvStore.open(
        {"driver": "neuroglancer_uint64_sharded", "base": base, "metadata": sharding}
    ).result()


def key_of(one):
    return struct.pack(">Q", one)


@pytest.mark.parametrize("number", CASES)
def test_tensorstore_reads_what_is_written(tmp_path, number):
    sharding, values = case(number)
    shardwrite.UInt64Shards(tmp_path, sharding).write(values, durability="none")
    store = kvstore(tmp_path, sharding)
    found = {one: store.read(key_of(one)).result() for one in values}
    assert {one: data.value for one, data in found.items()} == values
    others = {one ^ 1 for one in values} - set(values)
    assert all(store.read(key_of(one)).result().state == "missing" for one in others)


@pytest.mark.parametrize("number", CASES)
def test_what_tensorstore_writes_is_read(tmp_path, number):
    sharding, values = case(number)
    store = kvstore(tmp_path, sharding)
    with ts.Transaction() as transaction:
        for one, data in values.items():
            store.with_transaction(transaction)[key_of(one)] = data
    shards = shardwrite.UInt64Shards(tmp_path, sharding)
    assert dict(shards) == values
    assert shards.verify(deep=True).is_good
    changed = dict.fromkeys(list(values)[::3], b"new")
    shards.write(changed, existing="update", durability="none")
    again = kvstore(tmp_path, sharding)
    found = {one: again.read(key_of(one)).result().value for one in values}
    assert found == {**values, **changed}


@pytest.mark.parametrize("number", CASES)
def test_shards_of_cloud_volume(tmp_path, number):
    pytest.importorskip("cloudvolume")
    from cloudvolume.datasource.precomputed.sharding import (
        ShardingSpecification,
        synthesize_shard_files,
    )

    sharding, values = case(number)
    sharding["preshift_bits"] = min(sharding["preshift_bits"], 63)  # it takes no more
    minishards = shardwrite.ShardingParameters.from_dict(sharding).locate(list(values))[1]
    # It has the minishards in the order in which their chunks come.
    order = [one for _, one in sorted(zip(minishards.tolist(), values, strict=True))]
    theirs = synthesize_shard_files(
        ShardingSpecification.from_dict(sharding), {one: values[one] for one in order}
    )
    for key, data in theirs.items():
        (tmp_path / key).write_bytes(data)
    shards = shardwrite.UInt64Shards(tmp_path, sharding)
    assert dict(shards) == values
    assert shards.verify(deep=True).is_good
    ours = tmp_path / "ours"
    shardwrite.UInt64Shards(ours, sharding).write(values, durability="none")
    written = {file.name: file.read_bytes() for file in ours.iterdir()}
    assert set(written) == set(theirs)
    if {sharding["data_encoding"], sharding["minishard_index_encoding"]} == {"raw"}:
        assert written == theirs
