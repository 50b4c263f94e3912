"""Chunks by id are changed: each shard holds what it held before or what it was to hold, and the same
call again does the rest."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
from driver import Operation

OLD = {int(one): bytes([one % 251]) * (1 + one % 90) for one in [*range(300), 2**63, 2**64 - 1]}
# Some chunks are replaced, and some are new.
CHANGED = {one: bytes([one % 241]) * (2 + one % 70) for one in range(100, 500, 3)}
NEW = {**OLD, **CHANGED}
N_BEFORE = len(OLD)


def shards_in(path: Path, hash_name: str) -> shardwrite.UInt64Shards:
    encoding = "gzip" if hash_name == "identity" else "raw"
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": hash_name,
        "preshift_bits": 1,
        "minishard_bits": 2,
        "shard_bits": 3,
        "minishard_index_encoding": encoding,
        "data_encoding": encoding,
    }
    return shardwrite.UInt64Shards(path, sharding)


def fragments_of(chunk_id: int) -> bytes:
    """What lies before a chunk, as before the manifest of a mesh."""
    return bytes([chunk_id % 239]) * (chunk_id % 60)


def with_fragments(chunks: dict[int, bytes]) -> dict:
    """Arguments that write chunks, and what lies before them."""
    return {
        "values": {one: fragments_of(one) + chunk for one, chunk in chunks.items()},
        "data_offset": {one: len(chunk) for one, chunk in chunks.items()},
    }


def make(hash_name: str, path: Path) -> None:
    path.mkdir()
    shards_in(path, hash_name).write(**with_fragments(OLD), durability="full")


def change(hash_name: str, path: Path) -> None:
    how = {"existing": "update", "threads": 2, "durability": "full"}
    shards_in(path, hash_name).write(**with_fragments(CHANGED), **how)


def look(
    hash_name: str, old: dict[int, bytes], wanted: dict[int, bytes], path: Path, is_done: bool
) -> None:
    """Each shard is the old or the new one, or all of them are new ones."""
    shards = shards_in(path, hash_name)
    found = dict(shards)
    is_lost = [found.get(one) not in (value, wanted[one]) for one, value in old.items()]
    assert not any(is_lost), f"lost: {sum(is_lost)} chunks"
    assert shards.verify(deep=True).is_good
    assert shards.read_fragments(found) == {one: fragments_of(one) for one in found}
    for ids in shards.shards_of(NEW).values():
        held = {one: found[one] for one in ids if one in found}
        states = [{one: of[one] for one in ids if one in of} for of in (old, wanted)]
        assert held in states, "a shard between both"
    assert not is_done or found == wanted


def operation(hash_name: str, *, is_first: bool) -> Operation:
    """A change of chunks, which may find nothing there."""
    states = ({}, CHANGED) if is_first else (OLD, NEW)
    return Operation(
        prepare=Path.mkdir if is_first else partial(make, hash_name),
        perform=partial(change, hash_name),
        look=partial(look, hash_name, *states),
        own=("x/*.shard",),
    )


IDS = {
    "chunks by id": operation("identity", is_first=False),
    "chunks by hashed id": operation("murmurhash3_x86_128", is_first=False),
    "first chunks by id": operation("identity", is_first=True),
    "first chunks by hashed id": operation("murmurhash3_x86_128", is_first=True),
}
