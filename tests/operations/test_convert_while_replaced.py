"""Shards of a source that are replaced while they are copied, where requests name no version."""

from __future__ import annotations

import asyncio
from hashlib import blake2b

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import shardwrite
from shardwrite import StoreError
from shardwrite.stores import zarr_store

SHAPE, SIZES = (64, 64), {"shards": (64, 64), "chunks": (8, 8)}


class Tagged(zarr_store.Kind):
    """Objects with tags, as those of a bucket by s3fs."""

    has_tags = True

    async def look(self, name):
        found = await self.store.get(name, default_buffer_prototype())
        data = None if found is None else found.to_bytes()
        if data is None:
            return zarr_store.Facts(0, None)
        return zarr_store.Facts(len(data), blake2b(data).hexdigest())


class Replacing(zarr.storage.WrapperStore):
    """Puts another shard in place of one after so many ranges of it were read."""

    later: bytes | None = None
    n_before = 0

    async def get(self, key, prototype=None, byte_range=None):
        found = await self._store.get(key, prototype, byte_range)
        if key == "c/0/0" and byte_range is not None and self.later is not None:
            self.n_before -= 1
            if self.n_before == 0:
                later, self.later = self.later, None
                await self._store.set(key, zarr.buffer.cpu.Buffer.from_bytes(later))
        return found


@pytest.fixture
def replaced(tmp_path, monkeypatch):
    """A store whose shard is replaced by one in which a chunk has the place of another one."""
    first, later = np.zeros(SHAPE, "u4"), np.zeros(SHAPE, "u4")
    first[8:16, 8:16] = later[8:16, 8:16] = 5
    later[:8, :8] = 7  # which moves the other chunk; all are sound, and have the same size
    plain, other = zarr.storage.MemoryStore(), zarr.storage.MemoryStore()
    for store, values in ((plain, first), (other, later)):
        shardwrite.to_sharded_zarr(values, store, **SIZES, run_dir=str(tmp_path / "run"))
    kind_of = zarr_store.kind_of
    monkeypatch.setattr(
        zarr_store,
        "kind_of",
        lambda store: (
            Tagged(store, frozenset()) if isinstance(store, Replacing) else kind_of(store)
        ),
    )
    store = Replacing(plain)
    store.later = asyncio.run(other.get("c/0/0", default_buffer_prototype())).to_bytes()
    return store


@pytest.mark.parametrize(
    "how",
    [{}, {"check": True}, {"drop_empty": True}, {"compressors": "gzip"}, {"checksum": True}],
    ids=["ranges", "checked", "without empty chunks", "encoded again", "with a checksum"],
)
@pytest.mark.parametrize("shards", [8, 2, None], ids=["whole", "small", "none"])
@pytest.mark.parametrize("n_before", [1, 2])
def test_no_chunk_of_one_state_has_the_place_of_another_one(
    replaced, tmp_path, how, shards, n_before
):
    replaced.n_before, told = n_before, ""
    try:
        shardwrite.reshard(replaced, tmp_path / "new", shards, **how)
    except StoreError as error:
        told = str(error)
    if told:
        assert "changed" in told
        return
    found = zarr.open_array(tmp_path / "new")[...]
    assert (found[8:16, 8:16] == 5).all()
    assert set(found[:8, :8].flat) in ({0}, {7})


def test_a_copy_mixes_no_two_states(replaced, tmp_path):
    replaced.n_before = 2
    shardwrite.download(replaced, tmp_path / "new")
    found = zarr.open_array(tmp_path / "new")[...]
    assert (found[8:16, 8:16] == 5).all()


@pytest.mark.parametrize("kept", ["copied", "encoded again"])
def test_a_chunk_that_is_replaced_by_a_longer_one_is_not_cut(tmp_path, monkeypatch, kept):
    """It is looked at first, and then read by one request."""
    store, longer = zarr.storage.MemoryStore(), zarr.storage.MemoryStore()
    for made, values in ((store, np.ones(64, "u4")), (longer, np.arange(64, dtype="u4"))):
        zarr.create_array(made, shape=64, dtype="u4", chunks=64)[...] = values
    later = asyncio.run(longer.get("c/0", default_buffer_prototype()))

    class Late(Tagged):
        async def look(self, name):
            facts = await super().look(name)
            if name == "c/0" and facts.nbytes < len(later):
                await self.store.set(name, later)
            return facts

    kind_of = zarr_store.kind_of
    monkeypatch.setattr(
        zarr_store, "kind_of", lambda s: Late(s, frozenset()) if s is store else kind_of(s)
    )
    how = {"compressors": "gzip"} if kept == "encoded again" else {}
    try:
        shardwrite.reshard(store, tmp_path / "new", 1, **how)
    except StoreError:
        shardwrite.reshard(store, tmp_path / "new", 1, **how)
    assert (zarr.open_array(tmp_path / "new")[...] == np.arange(64)).all()
