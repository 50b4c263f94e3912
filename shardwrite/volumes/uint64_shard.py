"""Shards of the format ``neuroglancer_uint64_sharded_v1``, read from a store.

No size that the shard itself tells is trusted: ranges are checked in whole numbers before they are
read, and what is decoded has a limit.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer, Ranges, chunk_limit
from shardwrite.errors import CorruptShardError, StoreError, damage_in
from shardwrite.read.indexes import Cache
from shardwrite.stores.base import Capability, ObjectReader, Store
from shardwrite.stores.looking import listed, mode_of
from shardwrite.volumes.sharding import (
    ENTRY_NBYTES,
    Contents,
    Minishard,
    ShardingParameters,
    check_ranges,
    check_shard_index,
    contents_of,
    decode_minishard,
    most_gzip_nbytes,
    parse_entries,
    stage_of,
)

_PIECE_NBYTES = 2**20

_ALL = -1  # in place of the number of a minishard

Cached = Callable[[int, Callable[[], Any]], Any]


# ---- One shard


@dataclass(frozen=True, slots=True)
class Joined:
    """Two objects that are read as one: the index and the data of the obsolete format."""

    index: Ranges
    data: Ranges

    @property
    def nbytes(self) -> int:
        """Size of both."""
        return self.index.nbytes + self.data.nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See :meth:`Ranges.read`."""
        split = self.index.nbytes
        if offset >= split:
            return self.data.read(offset - split, nbytes)
        if offset + nbytes <= split:
            return self.index.read(offset, nbytes)
        head = self.index.read(offset, split - offset)
        return b"".join((head, self.data.read(0, offset + nbytes - split)))


class UInt64ShardReader:
    """Reader of the chunks of a shard.

    To find a chunk, it reads 16 bytes of the shard index and the index of one minishard.

    - `cached`: called with the number of a minishard, or -1 for all of them, and a function that
      reads the index. It returns the index, from a cache if it has one.
    - Raises CorruptShardError if the object is too short for the shard index.
    """

    def __init__(
        self,
        sharding: ShardingParameters,
        shard: int,
        source: Ranges,
        limit_nbytes: int,
        cached: Cached | None = None,
    ) -> None:
        self.sharding, self.shard, self.source = sharding, shard, source
        self.key = sharding.key_of(shard)
        self._limit_nbytes = limit_nbytes
        self._cached = cached
        self._stage = stage_of(sharding.data_encoding)
        if source.nbytes < sharding.shard_index_nbytes:
            raise CorruptShardError(
                f"{source.nbytes} bytes are too few for an index of {sharding.shard_index_nbytes}",
                key=self.key,
            )

    @property
    def data_nbytes(self) -> int:
        """Size of all that follows the shard index."""
        return self.source.nbytes - self.sharding.shard_index_nbytes

    def minishard(self, number: int) -> Minishard:
        """Chunks of a minishard.

        - Raises CorruptShardError if its index is damaged.
        """

        def load() -> Minishard:
            (entry,) = parse_entries(self.source.read(ENTRY_NBYTES * number, ENTRY_NBYTES))
            return self._load(number, int(entry[0]), int(entry[1]))

        index: Minishard = load() if self._cached is None else self._cached(number, load)
        return index

    def contents(self) -> Contents:
        """All chunks, and the bytes that no index names; read anew, and not from the cache.

        - Raises CorruptShardError if an index is damaged, or the indexes of two minishards overlap.
        """
        entries, base = self._entries(), self.sharding.shard_index_nbytes
        indexes = np.array([[base + a, base + b] for _, a, b in entries], np.uint64)
        minishards = [self._load(*entry) for entry in entries]
        return contents_of(minishards, indexes.reshape(-1, 2), base, self.source.nbytes)

    def owned_contents(self) -> Contents:
        """See :meth:`contents`; each byte must be one of an index or a chunk, or lie before one."""
        contents = self.checked_contents()
        n_unowned, offset = contents.unowned
        if n_unowned:
            raise CorruptShardError(
                f"{n_unowned} bytes, the first at {offset}, belong to no chunk and to no index, as "
                "if a part of the index was lost. A change of this shard would lose them, and is "
                'refused; existing="replace" makes it anew from the chunks that you give',
                key=self.key,
            )
        return contents

    def checked_contents(self) -> Contents:
        """See :meth:`contents`; no byte may be one of two chunks, or of a chunk and an index."""
        contents = self.contents()
        with damage_in(key=self.key):
            check_ranges(contents.ranges, self.source.nbytes, "chunk or index")
        return contents

    def _load(self, number: int, start: int, end: int) -> Minishard:
        what = f"index of minishard {number}"
        entry = np.array([[start, end]], np.uint64)
        with damage_in(key=self.key):
            if not len(check_ranges(entry, self.data_nbytes, what)):
                nothing = np.zeros(0, np.uint64)
                return Minishard(nothing, nothing, nothing)
            if end - start > self._limit_nbytes:
                raise CorruptShardError(
                    f"{what} takes {end - start} bytes, and {self._limit_nbytes} are allowed; "
                    "if that is right, raise index_limit. For a volume, raise "
                    "shardwrite.precomputed.index-limit in dask's configuration"
                )
            return decode_minishard(
                self.sharding,
                self.source.read(start + self.sharding.shard_index_nbytes, end - start),
                self.source.nbytes,
                (self.shard, number),
                self._limit_nbytes,
            )

    def _entries(self) -> list[tuple[int, int, int]]:
        """Number, start and end of the index of each minishard that has one."""
        nbytes = self.sharding.shard_index_nbytes
        check_shard_index(self.sharding, self._limit_nbytes)
        entries: list[tuple[int, int, int]] = []
        for at in range(0, nbytes, _PIECE_NBYTES):
            piece = parse_entries(self.source.read(at, min(_PIECE_NBYTES, nbytes - at)))
            for i in np.flatnonzero(piece[:, 0] != piece[:, 1]).tolist():
                start, end = piece[i].tolist()
                entries.append((at // ENTRY_NBYTES + i, start, end))
        ranges = np.array([entry[1:] for entry in entries], np.uint64).reshape(-1, 2)
        with damage_in(key=self.key):
            check_ranges(ranges, self.data_nbytes, "index of a minishard")
        return entries

    def chunk(self, chunk_id: int, most_nbytes: int | None = None) -> bytes | None:
        """Decoded bytes of a chunk; None if the shard does not have it.

        - `most_nbytes`: most bytes that a chunk can have, if that is known.
        - Raises CorruptShardError if an index or the chunk is damaged, or the chunk is larger than
          `most_nbytes` or than ``shardwrite.read.chunk-limit`` in dask's configuration allows.
        """
        _, minishard = self.sharding.locate([chunk_id])
        place = self.minishard(int(minishard[0])).find(chunk_id)
        return None if place is None else self.value(*place, most_nbytes)

    def value(self, offset: int, nbytes: int, most_nbytes: int | None = None) -> bytes:
        """Decoded bytes of the chunk at a place in the shard, which must lie in it.

        - Raises CorruptShardError as :meth:`chunk` does.
        """
        with damage_in(key=self.key, offset=offset, nbytes=nbytes):
            limit = chunk_limit()
            if most_nbytes is not None:
                limit = min(limit, most_nbytes)
                most = most_nbytes if self._stage is None else most_gzip_nbytes(most_nbytes)
                if nbytes > most:
                    raise CorruptShardError(f"takes {nbytes} bytes where at most {most} can be")
            data = self._limited(offset, nbytes)
            return bytes(data if self._stage is None else self._stage.decode(data, limit))

    def fragments(self, chunk_id: int) -> bytes | None:
        """Bytes that lie immediately before a chunk; None if the shard does not have the chunk."""
        load = self.contents
        contents: Contents = load() if self._cached is None else self._cached(_ALL, load)
        position = contents.position(chunk_id)
        if position is None:
            return None
        nbytes = int(contents.before[position])
        offset = int(contents.offsets[position]) - nbytes
        with damage_in(key=self.key, offset=offset, nbytes=nbytes):
            return bytes(self._limited(offset, nbytes))

    def _limited(self, offset: int, nbytes: int) -> Buffer:
        if nbytes > (allowed := chunk_limit()):
            raise CorruptShardError(
                f"takes {nbytes} bytes, and {allowed} are allowed; if that is right, raise "
                "shardwrite.read.chunk-limit in dask's configuration"
            )
        return self.source.read(offset, nbytes)

    def check(self, *, deep: bool = False) -> tuple[int, int, int]:
        """Check all indexes, and that no two chunks overlap. Several may have the same bytes.

        - `deep`: whether to decode each chunk, too.
        """
        contents = self.checked_contents()
        if deep:
            for position in np.argsort(contents.offsets, kind="stable").tolist():
                self.value(int(contents.offsets[position]), int(contents.nbytes[position]))
        # Chunks that have the same bytes have the same bytes before them.
        has_some = contents.before > 0
        _, first = np.unique(contents.offsets[has_some], return_index=True)
        before_nbytes = int(contents.before[has_some][first].sum())
        return len(contents.ids), before_nbytes, contents.unowned[0]


# ---- The shards of a store, and a cache of their indexes


T = TypeVar("T")

_MORE_TRIES = 2

_OBSOLETE = ("index", "data")

_ENDINGS = (".shard", ".index", ".data")


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
        self._cache: Cache[Minishard] = Cache(lambda: cache_limit_nbytes)

    def numbers(self) -> list[int]:
        """Numbers of the shards that exist, those of the obsolete format included.

        Links and directories that stand in place of a shard count, and raise when they are opened.
        """
        keys = list(self.store.list_keys())
        root = self.store.local_root
        for path in () if root is None else listed(root):  # no store lists these
            mode = mode_of(path, follow=False)
            if mode and not stat.S_ISREG(mode):
                keys.append(path.name)
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

            def opened(keys: list[str]) -> dict[str, ObjectReader]:
                readers = ((key, self.store.open(key)) for key in keys)
                return {key: stack.enter_context(one) for key, one in readers if one is not None}

            whole, two = [self.sharding.key_of(shard)], self.obsolete_keys(shard)
            parts = opened(whole) or opened(two)
            if len(parts) < 2 and whole[0] not in parts:
                # The two may have been there, and were removed since a new shard has taken their
                # place.
                lonely, parts = parts, opened(whole)
                if lonely and not parts:
                    (there,) = lonely
                    (missing,) = set(two) - {there}
                    message = f"{there!r} is there, but {missing!r} is missing"
                    raise StoreError(message, key=missing)
            yield parts

    def reader(self, shard: int, parts: dict[str, ObjectReader]) -> UInt64ShardReader | None:
        """Reader of a shard whose objects are open; None if it has none.

        - Raises CorruptShardError if the object is too short.
        """
        if not parts:
            return None
        readers = list(parts.values())
        identity = tuple(part.identity for part in readers)
        # What belongs to no one state of the shard is kept as long as this reader.
        cache = Cache(self._cache.limit_nbytes) if None in identity else self._cache

        def cached(minishard: int, load: Callable[[], Any]) -> Any:
            name = (shard, minishard, identity)
            kept = cache.find(name)
            if kept is None:
                kept = load()
                cache.keep(name, kept)
            return kept

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
