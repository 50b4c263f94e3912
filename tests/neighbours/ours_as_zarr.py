"""The stores of shardwrite as stores of zarr-python, so that zarr's tests of stores can judge them.

This is a bridge for tests, and the opposite of `shardwrite.stores.zarr_store`.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import zarr.storage
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.abc.store import Store as ZarrStoreBase
from zarr.core.buffer import default_buffer_prototype

from shardwrite.stores import Capability, MemoryStore
from shardwrite.stores.posix import PosixStore
from shardwrite.stores.removal import Proof
from shardwrite.stores.zarr_store import ZarrStore

_NUMBERS = itertools.count(1)


class Ours(ZarrStoreBase):
    """A store of shardwrite behind the interface of zarr.

    Parameters
    ----------
    inner : shardwrite.stores.Store
        The store.
    run_path : str
        Directory of the run that removes objects.
    read_only : bool
        Refuse to write.
    """

    supports_writes = supports_deletes = supports_listing = True

    def __init__(self, inner, run_path, *, read_only=False):
        super().__init__(read_only=read_only)
        self.inner, self.run_path = inner, run_path

    def with_read_only(self, read_only=False):
        return type(self)(self.inner, self.run_path, read_only=read_only)

    def __eq__(self, other):
        return isinstance(other, Ours) and other.inner.token == self.inner.token

    __hash__ = None

    def __str__(self):
        return f"ours://{self.inner!r}"

    async def get(self, key, prototype=None, byte_range=None):
        reader = self.inner.open(key)
        if reader is None:
            return None
        with reader:
            start, stop = 0, reader.nbytes
            if isinstance(byte_range, RangeByteRequest):
                start, stop = byte_range.start, min(byte_range.end, stop)
            elif isinstance(byte_range, OffsetByteRequest):
                start = byte_range.offset
            elif isinstance(byte_range, SuffixByteRequest):
                start = max(0, stop - byte_range.suffix)
            elif byte_range is not None:
                raise ValueError(f"Unexpected byte_range, got {byte_range}.")
            data = bytes(reader.read(start, max(0, stop - start)))
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(self, prototype, key_ranges):
        return [await self.get(key, prototype, within) for key, within in key_ranges]

    async def exists(self, key):
        return self.inner.version(key) is not None

    def put(self, key, data):
        with self.inner.transaction("none", f"zarr.{next(_NUMBERS)}") as transaction:
            writer = transaction.create(key)
            writer.write([data])
            writer.finish()

    async def set(self, key, value, byte_range=None):
        self._check_writable()
        if not isinstance(value, default_buffer_prototype().buffer):
            raise TypeError(f"`value` must be a Buffer instance. Got {type(value)}")
        self.put(key, value.to_bytes())

    async def set_if_not_exists(self, key, value):
        self._check_writable()
        self.inner.create_new(key, value.to_bytes())

    async def delete(self, key):
        self._check_writable()
        attempt = f"zarr.{next(_NUMBERS)}"
        proof = Proof(Path(self.run_path), {"attempt": attempt}, lambda: [key])
        with self.inner.transaction("none", attempt, proof=proof) as transaction:
            transaction.remove(key)

    async def list(self):
        for key in self.inner.list_keys():
            yield key

    async def list_prefix(self, prefix):
        within = prefix[: prefix.rfind("/") + 1]  # ours lists directories only
        for key in self.inner.list_keys(within):
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix):
        within = f"{prefix.rstrip('/')}/" if prefix else ""
        keys = self.inner.list_keys(within)
        for name in sorted({key[len(within) :].partition("/")[0] for key in keys}):
            yield name


def _run_path():
    return tempfile.mkdtemp(prefix="run-")


class OursInFiles(Ours):
    """A directory, as shardwrite sees it."""

    def __init__(self, root, run_path=None, *, read_only=False):
        self.root = root
        # Data are renamed into the run's directory, which lies in the same file system.
        run = Path(run_path or f"{root}.run")
        run.mkdir(exist_ok=True)
        super().__init__(PosixStore(Path(root)), str(run), read_only=read_only)

    def with_read_only(self, read_only=False):
        return type(self)(self.root, self.run_path, read_only=read_only)


class OursInMemory(Ours):
    """A store in memory, made by the one that asks."""

    def __init__(self, inner=None, run_path=None, *, read_only=False):
        super().__init__(inner or MemoryStore(), run_path or _run_path(), read_only=read_only)


class OursOverZarr(Ours):
    """A store of zarr-python as shardwrite sees it, and back."""

    def __init__(self, memory=None, run_path=None, *, read_only=False):
        memory = zarr.storage.MemoryStore() if memory is None else memory
        inner = ZarrStore(memory, {Capability.ATOMIC})
        super().__init__(inner, run_path or _run_path(), read_only=read_only)

    def with_read_only(self, read_only=False):
        return Ours(self.inner, self.run_path, read_only=read_only)
