"""zarr-python's tests of stores on `transformer_view`; `test_transformer` runs this file."""

from __future__ import annotations

import asyncio

import numpy as np
import obstore
import pytest
import zarr
from zarr.core.buffer.cpu import Buffer
from zarr.storage import LocalStore, MemoryStore
from zarr.testing.store import StoreTests

from shardwrite.legacy.view import TransformerView


class Common(StoreTests):
    """The tests, with values that are put and looked up in the shards themselves."""

    store_cls = TransformerView
    buffer_cls = Buffer

    async def set(self, store, key, value):
        place = store._keys.place(key)
        if place is None:
            await store._store.set(key, value)
            return
        old = await store._store.get(place.shard, self.prototype)
        data = b"" if old is None else old.to_bytes()
        table = np.full((4, 2), 2**64 - 1, "<u8")
        if data:
            table[:] = np.frombuffer(data[-64:], "<u8").reshape(4, 2)
        table[place.rank] = len(data), len(value)
        data += value.to_bytes() + table.tobytes()
        await store._store.set(place.shard, Buffer.from_bytes(data))

    async def get(self, store, key):
        place = store._keys.place(key)
        if place is None:
            return await store._store.get(key, self.prototype)
        data = (await store._store.get(place.shard, self.prototype)).to_bytes()
        offset, nbytes = np.frombuffer(data[-64:], "<u8").reshape(4, 2)[place.rank].tolist()
        return Buffer.from_bytes(data[offset : offset + nbytes])

    @property
    def prototype(self):
        from zarr.buffer import default_buffer_prototype

        return default_buffer_prototype()

    def test_store_repr(self, store):
        assert repr(store).startswith("TransformerView(")

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


def in_memory(tmp_path):
    return MemoryStore()


def in_files(tmp_path):
    return asyncio.run(LocalStore.open(str(tmp_path / "store")))


def in_files_of_obstore(tmp_path):
    (tmp_path / "objects").mkdir()
    return zarr.storage.ObjectStore(obstore.store.LocalStore(str(tmp_path / "objects")))


class OnStores(Common):
    """The tests on stores that return None for a missing value, and on those that raise."""

    counts = ()

    @pytest.fixture(params=[in_memory, in_files, in_files_of_obstore])
    def store_kwargs(self, request, tmp_path):
        return {"store": request.param(tmp_path), "counts": self.counts}

    async def test_missing_values_among_others(self, store):
        """Their tests of `get_partial_values` ask only for what is there."""
        keys = ["c/0", "c/9", "a/c/0/0", "a/c/8/8", "zarr.json", "no.json"]
        await asyncio.gather(*(store.set(key, Buffer.from_bytes(b"abc")) for key in keys[::2]))
        found = await store.get_partial_values(self.prototype, [(key, None) for key in keys])
        assert [value is None for value in found] == [False, True] * 3
        assert [await store.exists(key) for key in keys] == [True, False] * 3
        for key in keys:
            await store.delete(key)
        assert [await store.get(key, self.prototype) for key in keys] == [None] * 6


class TestOneAxis(OnStores):
    """Chunks such as ``c/0`` lie in shards, and those of two axes do not."""

    counts = (4,)


class TestTwoAxes(OnStores):
    """The other way round."""

    counts = (2, 2)
