"""Shards of the format ``neuroglancer_uint64_sharded_v1`` in a store, and a cache of indexes."""

from __future__ import annotations

import contextlib
import errno
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from shardwrite.encode.uint64_shard import Joined, UInt64ShardReader
from shardwrite.errors import StoreError
from shardwrite.format.precomputed.parameters import ShardingParameters
from shardwrite.format.precomputed.shard import Minishard
from shardwrite.stores import Capability, Store, listed, mode_of
from shardwrite.stores.base import ObjectReader

T = TypeVar("T")
Indexed = TypeVar("Indexed", bound=Minishard)
_MORE_TRIES = 2
_OBSOLETE = ("index", "data")
_ENDINGS = (".shard", ".index", ".data")


class IndexCache:
    """Indexes of minishards that were read last, up to a number of bytes. Threads may share it."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit_nbytes = limit_nbytes
        self._kept: OrderedDict[tuple[object, ...], Any] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, name: tuple[object, ...], load: Callable[[], Indexed]) -> Indexed:
        """The index with a name, which `load` reads if it is not kept."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                kept: Indexed = self._kept[name]
                return kept
        found = load()
        with self._lock:
            if name not in self._kept:
                self._kept[name] = found
                self._nbytes += found.memory_nbytes
            while self._nbytes > self._limit_nbytes:
                self._nbytes -= self._kept.popitem(last=False)[1].memory_nbytes
        return found


class UInt64ShardFiles:
    """The shards in a store."""

    def __init__(
        self,
        store: Store,
        sharding: ShardingParameters,
        index_limit_nbytes: int,
        cache_limit_nbytes: int,
    ) -> None:
        self.store, self.sharding = store, sharding
        self.index_limit_nbytes = index_limit_nbytes
        self.cache_limit_nbytes = cache_limit_nbytes
        self._cache = IndexCache(cache_limit_nbytes)

    def numbers(self) -> list[int]:
        """Numbers of the shards that exist, those of the obsolete format included.

        Links and directories that stand in place of a shard count, and raise when they are opened.
        """
        keys = (*self.store.list_keys(), *self._no_files())
        return sorted({n for key in keys if (n := self._number_of(key)) >= 0})

    def strays(self) -> list[str]:
        """Keys that look like shards, and are none with these parameters."""
        return sorted(
            key
            for key in self.store.list_keys()
            if "/" not in key and key.endswith(_ENDINGS) and self._number_of(key) < 0
        )

    def obsolete(self) -> list[str]:
        """Keys of the obsolete format that no reader looks at, since the shard is there itself."""
        keys = set(self.store.list_keys())
        return sorted(
            key
            for key in keys
            for ending in (".index", ".data")
            if key.endswith(ending) and self._number_of(key, (ending,)) >= 0
            if f"{key.removesuffix(ending)}.shard" in keys
        )

    def _no_files(self) -> list[str]:
        """Names in a directory that are those of no regular files, so that no store lists them."""
        root = self.store.local_root
        if root is None:
            return []
        modes = ((path.name, mode_of(path, follow=False)) for path in listed(root))
        return [name for name, mode in modes if mode and not stat.S_ISREG(mode)]

    def _number_of(self, key: str, endings: tuple[str, ...] = _ENDINGS) -> int:
        """Number of the shard of a key; -1 if it belongs to none."""
        for ending in endings:
            if key.endswith(ending):
                number = self.sharding.shard_of(key.removesuffix(ending) + ".shard")
                return -1 if number is None else number
        return -1

    def has(self, shard: int) -> bool:
        """Whether a shard has an object, or one of the two of the obsolete format."""
        keys = (self.sharding.key_of(shard), *self.obsolete_keys(shard))
        return any(self.store.size(key) is not None for key in keys)

    @contextlib.contextmanager
    def open(self, shard: int) -> Iterator[UInt64ShardReader | None]:
        """Open a shard for reading; None if it is missing.

        - Raises StoreError at the end of the block, with ESTALE, if the shard was replaced
          meanwhile and the store does not keep open objects as they are.
        - Raises CorruptShardError if the object is too short, or only one of two objects of the
          obsolete format is there.
        """
        with self.parts(shard) as parts:
            yield self.reader(shard, parts)
        # Readers are closed first, as some then forget what they kept of a shard that is replaced.
        if Capability.SNAPSHOT not in self.store.capabilities:
            self.check_current(parts)

    def read(self, shard: int, use: Callable[[UInt64ShardReader | None], T]) -> T:
        """What a function makes of a shard; None is given to it if the shard is missing.

        It is called again if the shard was replaced meanwhile, or since its end was kept.
        """
        for _ in range(_MORE_TRIES):
            try:
                with self.open(shard) as reader:
                    return use(reader)
            except StoreError as error:
                if error.fields["errno"] != errno.ESTALE:
                    raise
        with self.open(shard) as reader:
            return use(reader)

    @contextlib.contextmanager
    def parts(self, shard: int) -> Iterator[dict[str, ObjectReader]]:
        """Open the objects of a shard, by their keys: one, two of the obsolete format, or none."""
        with contextlib.ExitStack() as stack:
            yield self._opened(shard, stack)

    def reader(self, shard: int, parts: dict[str, ObjectReader]) -> UInt64ShardReader | None:
        """Reader of a shard whose objects are open; None if it has none.

        - Raises CorruptShardError if the object is too short.
        """
        if not parts:
            return None
        version: Any = tuple(part.version for part in parts.values())

        def cached(minishard: int, load: Callable[[], Any]) -> Any:
            return self._cache.get((shard, minishard, version), load)

        readers = list(parts.values())
        source = readers[0] if len(readers) == 1 else Joined(*readers)
        return UInt64ShardReader(self.sharding, shard, source, self.index_limit_nbytes, cached)

    def check_current(self, parts: dict[str, ObjectReader]) -> None:
        """Refuse what was read of objects that were replaced meanwhile.

        - Raises StoreError with ESTALE, if one of them was.
        """
        for key, reader in parts.items():
            if self.store.version(key) != reader.version:
                message = f"{key!r} was replaced while it was read; read it again"
                raise StoreError(message, key=key, errno=errno.ESTALE)

    def obsolete_keys(self, shard: int) -> list[str]:
        """Keys of a shard in the obsolete format."""
        return [self.sharding.key_of(shard, ending) for ending in _OBSOLETE]

    def _opened(self, shard: int, stack: contextlib.ExitStack) -> dict[str, ObjectReader]:
        """Open readers of the objects of a shard, by their keys."""

        def opened(keys: list[str]) -> dict[str, ObjectReader]:
            found = ((key, self.store.open(key)) for key in keys)
            return {key: stack.enter_context(one) for key, one in found if one is not None}

        whole, two = [self.sharding.key_of(shard)], self.obsolete_keys(shard)
        found = opened(whole) or opened(two)
        if len(found) == 2 or whole[0] in found:
            return found
        # The two may have been there, and were removed since a new shard has taken their place.
        again = opened(whole)
        if found and not again:
            (there,) = found
            (missing,) = set(two) - {there}
            raise StoreError(f"{there!r} is there, but {missing!r} is missing", key=missing)
        return again
