"""zarr-python's tests of stores on those of shardwrite; `test_zarr_stores` runs this file."""

from __future__ import annotations

import pytest
import zarr.storage
from ours_as_zarr import OursInFiles, OursInMemory, OursOverZarr
from redirecting import Redirection
from zarr.core.buffer.cpu import Buffer
from zarr.testing.store import StoreTests

from shardwrite.stores import MemoryStore

LEFT_OUT = {
    r"(Memory|OverZarr)::test_serializable_store": "memory of one process is never pickled",
    r"OverZarr::test_set_if_not_exists": "zarr's interface cannot create an object once",
}
here = Redirection(LEFT_OUT)


class Common(StoreTests):
    buffer_cls = Buffer

    async def set(self, store, key, value):
        store.put(key, value.to_bytes())

    async def get(self, store, key):
        reader = store.inner.open(key)
        with reader:
            return Buffer.from_bytes(bytes(reader.read(0, reader.nbytes)))

    def test_store_repr(self, store):
        assert str(store).startswith("ours://")

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


class TestFiles(Common):
    store_cls = OursInFiles

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        return {"root": str(tmp_path / "store")}


class TestMemory(Common):
    store_cls = OursInMemory

    @pytest.fixture
    def store_kwargs(self):
        return {"inner": MemoryStore()}


class TestOverZarr(Common):
    store_cls = OursOverZarr

    @pytest.fixture
    def store_kwargs(self):
        return {"memory": zarr.storage.MemoryStore()}
