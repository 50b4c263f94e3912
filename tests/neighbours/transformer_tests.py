"""zarr-python's tests of stores on `transformer_view`; `test_transformer` runs this file."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from zarr.core.buffer.cpu import Buffer
from zarr.storage import LocalStore, MemoryStore
from zarr.testing.store import StoreTests

from shardwrite.read.transformer_view import TransformerView


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


class TestOneAxis(Common):
    """Chunks such as ``c/0`` lie in shards, and those of two axes do not."""

    @pytest.fixture
    def store_kwargs(self):
        return {"store": MemoryStore(), "counts": (4,)}


class TestTwoAxes(Common):
    """The other way round, in files."""

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        below = asyncio.run(LocalStore.open(str(tmp_path / "store")))
        return {"store": below, "counts": (2, 2)}
