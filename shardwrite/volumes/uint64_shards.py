"""The sharded container of Neuroglancer precomputed by itself: `UInt64Shards`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import choice, whole
from shardwrite.codecs import stages
from shardwrite.entry.public import public
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.host.threads import in_threads
from shardwrite.options import DURABILITIES
from shardwrite.place.base import without_kind
from shardwrite.place.target import durability_in
from shardwrite.plan.options import parse_nbytes
from shardwrite.results import Facts, Result, counted, human
from shardwrite.stores.base import Capability, Store, require
from shardwrite.stores.directories import make_directories
from shardwrite.stores.looking import as_store_error, is_file
from shardwrite.stores.opening import open_store
from shardwrite.volumes.reading import read_sharding
from shardwrite.volumes.sharding import (
    ShardingParameters,
    as_id,
    as_ids,
    by_shard,
    check_minishards,
    check_shard_index,
)
from shardwrite.volumes.uint64_shard import UInt64ShardFiles, UInt64ShardReader
from shardwrite.volumes.uint64_writing import Change, ValueOf, commit_changes, sweep

# ---- Results


@dataclass(frozen=True, slots=True)
class UInt64Written(Result):
    """Result of :meth:`UInt64Shards.write` and :meth:`UInt64Shards.remove`.

    Attributes
    ----------
    n_shards, n_chunks : int
        Number of shards, and of the chunks given, that were written.
    n_kept : int
        Number of shards that were there and were left as they are.
    nbytes : int
        Bytes of the shards that were written.
    """

    n_shards: int
    n_chunks: int
    n_kept: int
    nbytes: int

    @property
    def _amount(self) -> str:
        shards = counted(self.n_shards, "shard")
        return f"{counted(self.n_chunks, 'chunk')} in {shards}, {human(self.nbytes)}"

    def __repr__(self) -> str:
        return f"<UInt64Written: {self._amount}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_chunks:,}", "chunks written"),
            (f"{self.n_shards:,}", "shards"),
            (human(self.nbytes), "stored"),
        ]
        rows = [("written", self._amount), ("kept", counted(self.n_kept, "shard"))]
        return Facts(title="chunks by id", headline=headline, rows=rows)


@dataclass(frozen=True, slots=True)
class UInt64Report(Result):
    """Report of :meth:`UInt64Shards.verify`.

    Attributes
    ----------
    n_shards, n_chunks : int
        Number of shards, and of chunks in shards without faults.
    stored_nbytes, unused_nbytes : int
        Bytes of the shards without faults, and those of them that no index names. They may lie
        before chunks, such as the fragments of a mesh before its manifest.
    problems : tuple of (str, str)
        Key and fault of each shard that is damaged; empty if none is.
    warnings : tuple of str
        What is no fault of a shard, and should be known.
    """

    n_shards: int
    n_chunks: int
    stored_nbytes: int
    unused_nbytes: int
    problems: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether no fault was found."""
        return not self.problems

    @property
    def _amount(self) -> str:
        return f"{counted(self.n_chunks, 'chunk')} in {counted(self.n_shards, 'shard')}"

    def __repr__(self) -> str:
        found = counted(len(self.problems), "problem") if self.problems else "no problems"
        return f"<UInt64Report: {self._amount}, {found}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        rows = [("good", f"{self._amount}, {human(self.stored_nbytes)}")]
        if self.unused_nbytes:
            rows.append(("unused", f"{human(self.unused_nbytes)} are named by no index"))
        return Facts(
            title="verified",
            headline=[
                (f"{self.n_chunks:,}", "chunks"),
                (f"{self.n_shards:,}", "shards"),
                (human(self.stored_nbytes), "stored"),
                (f"{len(self.problems):,}" if self.problems else "no", "problems"),
            ],
            problems=self.problems,
            notes=[("warning", text) for text in self.warnings],
            rows=rows,
        )


# ---- The container


Ids = npt.NDArray[np.uint64]

T = TypeVar("T")

_OfId = Callable[[UInt64ShardReader, int], bytes | None]

_EXISTING = ("refuse", "keep", "replace", "update")

_BATCH = 64  # shards of a transaction whose files are synced together


class UInt64Shards(Mapping[int, bytes]):
    """Chunks of bytes by 64-bit id, in shards of the format ``neuroglancer_uint64_sharded_v1``.

    This is the container that Neuroglancer reads meshes, skeletons, annotations and volumes from.
    An object is a mapping from ids to bytes. It can be read by many threads, and sent to other
    processes.

    Parameters
    ----------
    store : path, zarr store, or Store
        The directory with the shards, or another place as `to_sharded_zarr` takes it. A URL may
        begin with ``precomputed://``, as in Neuroglancer.
    sharding : mapping or ShardingParameters, optional
        The parameters, as under ``sharding`` in ``info``. By default they are read from there.
    index_limit : str or int
        Largest index that is written or read. The index of a shard takes
        ``16 * 2**minishard_bits`` bytes. By default ``shardwrite.precomputed.index-limit`` in
        dask's configuration, which is 64 MiB unless you change it.
    cache_limit : str or int
        Memory for indexes of minishards that were read.

    Raises
    ------
    SpecError
        If a parameter is not valid, or there is no ``info`` with parameters.

    See Also
    --------
    to_sharded_zarr : Writes arrays.

    Notes
    -----
    Shards are written whole. Each appears when it is complete, and is synced as `durability` says.
    So a call that was killed has left whole shards, and perhaps hidden temporaries that end in
    ``.swtmp``. The next call of the same user removes them, once the process is gone. If that was
    on another host, it does so after a day. No two processes may write the same shard at a time;
    one that notices a change by another stops. `shards_of` helps to share the ids among processes.

    Examples
    --------
    >>> import shardwrite, tempfile
    >>> sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "murmurhash3_x86_128",
    ...             "preshift_bits": 0, "minishard_bits": 4, "shard_bits": 2,
    ...             "minishard_index_encoding": "gzip", "data_encoding": "gzip"}
    >>> meshes = shardwrite.UInt64Shards(tempfile.mkdtemp() + "/mesh", sharding)
    >>> meshes.write({720575940621039145: b"mesh", 7: b"another"}).n_chunks
    2
    >>> meshes[7], 8 in meshes
    (b'another', False)
    >>> meshes.verify(deep=True).is_good
    True
    """

    @public
    def __init__(
        self,
        store: Any,
        sharding: Mapping[str, Any] | ShardingParameters | None = None,
        *,
        index_limit: str | int | None = None,
        cache_limit: str | int = "64 MiB",
    ) -> None:
        store = without_kind(store)
        opened = open_store(store, is_read=True)
        self._refusal = _refusal_to_write(store)
        place: Store = opened.store.at(opened.path)
        if place.local_root is not None and is_file(place.local_root):
            raise SpecError(
                "it is a file, and shards lie in a directory",
                field="store",
                value=str(place.local_root),
                remedy="give that directory",
            )
        if sharding is None:
            sharding = read_sharding(place)
        if not isinstance(sharding, ShardingParameters):
            sharding = ShardingParameters.from_dict(sharding)
        if index_limit is None:
            index_limit = stages.index_limit()
        limits = [
            parse_nbytes(f"{limit}", field)
            for limit, field in ((index_limit, "index_limit"), (cache_limit, "cache_limit"))
        ]
        self._files = UInt64ShardFiles(place, sharding, *limits)

    def __reduce__(self) -> tuple[Any, ...]:
        files = self._files
        return _again, (
            files.store,
            files.sharding.to_dict(),
            files.index_limit_nbytes,
            files.cache_limit_nbytes,
            self._refusal,
        )

    def __repr__(self) -> str:
        return f"UInt64Shards({self._files.store!r}, {self.sharding})"

    @property
    def sharding(self) -> ShardingParameters:
        """The parameters."""
        return self._files.sharding

    def shards_of(self, ids: Iterable[int]) -> dict[int, list[int]]:
        """Ids by the number of the shard that they belong to.

        Processes that each write other shards can write at the same time.

        Parameters
        ----------
        ids : iterable of int
            The ids.

        Raises
        ------
        SpecError
            If an id is no whole number of 64 bits.
        """
        return {shard: part.tolist() for shard, part in self._grouped(as_ids(ids))}

    @public
    def write(
        self,
        values: Mapping[int, Any],
        *,
        data_offset: Mapping[int, int] | None = None,
        existing: str = "refuse",
        durability: str | None = None,
        threads: int | None = None,
    ) -> UInt64Written:
        """Write chunks.

        Parameters
        ----------
        values : mapping of int to bytes
            Bytes of each chunk by id. A value is looked up when it is written, by several threads
            at a time, and is not kept. So a mapping may read or make its values late. From another
            `UInt64Shards`, the bytes that lie before chunks are copied, too.
        data_offset : mapping of int to int, optional
            For meshes of several resolutions, whose fragments lie before each manifest. A value is
            then the fragments followed by the manifest. This is the number of bytes of the
            manifest, by id. (cloud-volume's ``synthesize_shard_files`` has the same argument.) The
            fragments are stored as they are, whatever `data_encoding` says. Values of other ids are
            chunks as a whole. An id that `values` do not have is refused.
        existing : {"refuse", "keep", "replace", "update"}
            What to do with shards that exist. ``"refuse"`` raises before anything is written.
            ``"keep"`` leaves them as they are, so that a call that was killed can be repeated.
            ``"replace"`` makes them anew from `values` alone: what else they held is gone.
            ``"update"`` makes them anew, with their other chunks copied as they are, together with
            the bytes that lie before them. The objects of a shard in the obsolete format are
            removed when the new shard is there.
        durability : {"full", "batch", "none"}, optional
            As for `to_sharded_zarr`.
        threads : int, optional
            Number of shards that are written at a time. By default the number of cores.

        Raises
        ------
        SpecError
            Before anything is written, if an option or an id is not valid, the store is read-only
            or cannot replace objects, or an index would be larger than `index_limit`. Later, if a
            value is no bytes, or is too large to be read again, or an index becomes too large with
            the chunks that stay. Also if bytes lie before a chunk that is updated, and
            `data_offset` does not name it.
        StoreError
            If a shard exists and may not, if another writer changes a shard meanwhile, or if the
            storage fails.
        CorruptShardError
            If an index of a shard that is updated is damaged, or some of its bytes belong to
            nothing, so that they would be lost.
        """
        choice("existing", existing, _EXISTING)
        if not hasattr(values, "keys"):  # as not only instances of Mapping have
            raise SpecError(
                "not a mapping",
                field="values",
                value=type(values).__name__,
                remedy="give a mapping of ids to bytes, such as {7: data}",
            )
        if data_offset is not None and not hasattr(data_offset, "keys"):
            raise SpecError(
                "not a mapping",
                field="data_offset",
                value=type(data_offset).__name__,
                remedy="give a mapping of ids to numbers of bytes, such as {7: 68}",
            )
        ids = as_ids(values.keys())
        data_offset = {} if data_offset is None else data_offset
        named = data_offset.keys()  # A Series of pandas would give its values.
        divided = np.array([as_id(each, "data_offset") for each in named], np.uint64)
        for chunk_id in divided[~np.isin(divided, ids, kind="sort")].tolist():
            raise SpecError(
                "an id that values do not have",
                field="data_offset",
                value=chunk_id,
                remedy="leave it out, or give its value, too",
            )
        # What could not be read again is refused before anything is written.
        check_shard_index(self.sharding, self._files.index_limit_nbytes)
        check_minishards(self.sharding, ids, self._files.index_limit_nbytes)
        value_of, divides = _source_of(values, data_offset)
        groups = self._grouped(ids)
        there = {shard for shard, _ in groups if self._files.has(shard)}
        if there and existing == "refuse":
            key = self.sharding.key_of(min(there))
            raise StoreError(
                f"{counted(len(there), 'shard')} {'exists' if len(there) == 1 else 'exist'}, the "
                f"first is {key!r}; give existing= one of {list(_EXISTING[1:])}",
                key=key,
            )
        kept = there if existing == "keep" else set()
        nothing = np.zeros(0, np.uint64)
        changes = [
            Change(
                shard,
                part,
                removed=nothing,
                divided=part[[divides(each) for each in part.tolist()]],
                keeps=existing == "update",
                may_exist=existing in _EXISTING[2:],
            )
            for shard, part in groups
            if shard not in kept
        ]
        nbytes = self._commit(changes, value_of, durability, threads)
        n_chunks = sum(len(change.ids) for change in changes)
        return UInt64Written(len(changes), n_chunks, len(kept), nbytes)

    @public
    def remove(self, ids: Iterable[int], *, durability: str | None = None) -> UInt64Written:
        """Remove chunks: the shards that hold them are written anew without them.

        What lies before a chunk goes with it, such as the fragments of a mesh. A shard that loses
        its last chunk stays, with an empty index. Ids that are not there are no error.

        Parameters
        ----------
        ids : iterable of int
            The ids.
        durability : {"full", "batch", "none"}, optional
            As for `to_sharded_zarr`.

        Raises
        ------
        SpecError, StoreError, CorruptShardError
            As :meth:`write` does.
        """
        nothing = np.zeros(0, np.uint64)
        changes = [
            Change(shard, nothing, part, nothing, keeps=True, may_exist=True)
            for shard, part in self._grouped(as_ids(ids))
            if self._files.has(shard)
        ]
        nbytes = self._commit(changes, _source_of({}, {})[0], durability, None)
        return UInt64Written(len(changes), 0, 0, nbytes)

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        """Read chunks, and open each shard once. Chunks that are missing are left out.

        Parameters
        ----------
        ids : iterable of int
            The ids.

        Raises
        ------
        SpecError, StoreError, CorruptShardError
            If an id is not valid, the storage fails, or an index or a chunk is damaged.
        """
        return self._read(ids, UInt64ShardReader.chunk)

    def read_fragments(self, ids: Iterable[int]) -> dict[int, bytes]:
        """Read the bytes that lie immediately before chunks. Chunks that are missing are left out.

        In the sharded format for meshes of several resolutions, a chunk is the manifest of a mesh,
        and the fragments of the mesh lie before it.

        Parameters
        ----------
        ids : iterable of int
            The ids.

        Raises
        ------
        SpecError, StoreError, CorruptShardError
            As :meth:`read` does. All indexes of the shards are read.
        """
        return self._read(ids, UInt64ShardReader.fragments)

    def _read(self, ids: Iterable[int], of_id: _OfId) -> dict[int, bytes]:
        """What a method of the readers of shards gives for those of some ids that are there."""
        values: dict[int, bytes] = {}
        for shard, part in self._grouped(as_ids(ids)):
            values |= self._files.read(shard, partial(_bytes_of, of_id=of_id, ids=part.tolist()))
        return values

    def __getitem__(self, chunk_id: int) -> bytes:
        chunks = self.read([chunk_id])
        if not chunks:
            raise KeyError(chunk_id)
        return chunks[int(chunk_id)]

    def __contains__(self, chunk_id: object) -> bool:
        try:
            (one,) = as_ids([chunk_id]).tolist()
        except SpecError:
            return False  # as of any mapping that is asked for a key that it cannot have
        (shard,), (minishard,) = self.sharding.locate([one])

        def has(reader: UInt64ShardReader | None) -> bool:
            return reader is not None and reader.minishard(int(minishard)).find(one) is not None

        return self._files.read(int(shard), has)

    def __iter__(self) -> Iterator[int]:
        for shard in self._files.numbers():
            yield from self.ids_of(shard)

    def __len__(self) -> int:
        return sum(len(self.ids_of(shard)) for shard in self._files.numbers())

    def ids_of(self, shard: int) -> list[int]:
        """Ids of the chunks of a shard, ascending; none if there is no such shard.

        Parameters
        ----------
        shard : int
            Number of the shard.

        Raises
        ------
        SpecError
            If the number is no whole one, or the index of a shard is larger than `index_limit`.
        StoreError, CorruptShardError
            If the storage fails, or an index is damaged.
        """
        return self._files.read(
            as_id(shard, "shard"), lambda reader: reader.contents().ids.tolist() if reader else []
        )

    @public
    def verify(self, *, deep: bool = False, threads: int | None = None) -> UInt64Report:
        """Check all shards.

        Indexes must lie in their shard and share no byte, chunks too, and each id must belong to
        the minishard that names it. Several chunks may have the same bytes. Bytes that no index
        names are counted. They may lie immediately before a chunk. If they lie elsewhere,
        `warnings` says so, since a part of the index may be lost. Objects of the obsolete format
        that stand beside the shard itself are named there, too, because they may hold other values.

        Parameters
        ----------
        deep : bool
            Whether to read and decode each chunk, too.
        threads : int, optional
            Number of shards that are checked at a time. By default the number of cores.

        Raises
        ------
        SpecError
            If the index of a shard is larger than `index_limit`.
        """
        check_shard_index(self.sharding, self._files.index_limit_nbytes)
        numbers = self._files.numbers()
        no_shard = "no shard with these parameters has this key"
        problems = [(key, no_shard) for key in self._files.strays()]
        n_chunks = stored = unused = 0
        unowned: list[tuple[str, int]] = []

        def checked(shard: int) -> tuple[int, int, int, int] | tuple[str, str]:
            try:
                return self._files.read(shard, partial(_check, deep=deep)) or (
                    self.sharding.key_of(shard),
                    "was removed during the check",
                )
            except (CorruptShardError, StoreError) as error:
                return self.sharding.key_of(shard), str(error)

        for shard, found in zip(
            numbers, in_threads(checked, numbers, _threads(threads)), strict=True
        ):
            if len(found) == 2:
                problems.append(found)
            else:
                stored += found[0]
                n_chunks += found[1]
                unused += found[2] + found[3]
                unowned += [(self.sharding.key_of(shard), found[3])] * (found[3] > 0)
        obsolete = self._files.obsolete()
        warnings = [_about_unowned(unowned)] if unowned else []
        warnings += [_about_obsolete(obsolete)] if obsolete else []
        return UInt64Report(
            len(numbers), n_chunks, stored, unused, tuple(problems), tuple(warnings)
        )

    def _whole(self, chunk_id: int) -> tuple[bytes, int]:
        """See `ValueOf`: a value for another shard."""
        (shard,), _ = self.sharding.locate([chunk_id])
        value = self._files.read(int(shard), partial(_whole, chunk_id=chunk_id))
        if value is None:
            raise KeyError(chunk_id)
        return value

    def _grouped(self, ids: Ids) -> list[tuple[int, Ids]]:
        """Ids of each shard, by its number."""
        return [(shard, ids[positions]) for shard, positions in by_shard(self.sharding, ids)]

    def _commit(
        self,
        changes: list[Change],
        value_of: ValueOf,
        durability: str | None,
        threads: int | None,
    ) -> int:
        reading = self._files
        store = reading.store
        choice("durability", durability, (None, *DURABILITIES))
        level = durability_in(store, durability)
        for capability in (Capability.PATCH, Capability.SKIP, Capability.COPY):
            require(store, capability, field="store", value=type(store).__name__)
        if self._refusal is not None:
            raise self._refusal
        if changes:
            store.prepare()  # which finds out if it can refuse to replace what others have put
        if changes and store.local_root is not None:
            with as_store_error(str(store.local_root), "cannot make"):
                make_directories(store.local_root, level)
        sweep(store)
        size = _BATCH if level == "batch" else 1
        batches = [changes[i : i + size] for i in range(0, len(changes), size)]

        limits = reading.index_limit_nbytes, reading.cache_limit_nbytes
        files = UInt64ShardFiles(store, self.sharding, *limits)

        def commit(batch: list[Change]) -> int:
            return commit_changes(files, batch, value_of, level)

        return sum(in_threads(commit, batches, _threads(threads)))


def _source_of(
    values: Mapping[int, Any], data_offset: Mapping[int, int]
) -> tuple[ValueOf, Callable[[int], bool]]:
    """Values by their ids; and whether the value of an id says what lies before the chunk."""
    if isinstance(values, UInt64Shards) and not data_offset:
        return values._whole, lambda _: True  # noqa: SLF001 (of this class)

    def value_of(chunk_id: int) -> tuple[Any, int | None]:
        value = values[chunk_id]
        return value, as_id(data_offset[chunk_id], "data_offset") if divides(chunk_id) else None

    def divides(chunk_id: int) -> bool:
        return chunk_id in data_offset

    return value_of, divides


def _bytes_of(reader: UInt64ShardReader | None, of_id: _OfId, ids: list[int]) -> dict[int, bytes]:
    """See `UInt64Shards._read`; of one shard."""
    values = {} if reader is None else {each: of_id(reader, each) for each in ids}
    return {each: data for each, data in values.items() if data is not None}


def _whole(reader: UInt64ShardReader | None, chunk_id: int) -> tuple[bytes, int] | None:
    """What lies before a chunk and the chunk, and the size of the chunk; None if it is missing."""
    before = None if reader is None else reader.fragments(chunk_id)
    chunk = None if reader is None else reader.chunk(chunk_id)
    return None if before is None or chunk is None else (before + chunk, len(chunk))


def _check(reader: UInt64ShardReader | None, *, deep: bool) -> tuple[int, int, int, int] | None:
    """Size of a shard, and what `UInt64ShardReader.check` returns; None if it is missing."""
    return None if reader is None else (reader.source.nbytes, *reader.check(deep=deep))


def _again(
    store: Store,
    sharding: dict[str, Any],
    index_limit: int,
    cache_limit: int,
    refusal: SpecError | None,
) -> UInt64Shards:
    shards = UInt64Shards(store, sharding, index_limit=index_limit, cache_limit=cache_limit)
    shards._refusal = refusal  # noqa: SLF001 (of this class)
    return shards


def _about_unowned(shards: list[tuple[str, int]]) -> str:
    """Warning about bytes that belong to nothing, by the keys of their shards."""
    nbytes = sum(each for _, each in shards)
    return (
        f"{nbytes} bytes in {counted(len(shards), 'shard')}, first {shards[0][0]!r}, belong to no "
        "chunk and to no index, as if a part of the index was lost. Changes of such shards are "
        "refused, because they would lose these bytes"
    )


def _about_obsolete(keys: list[str]) -> str:
    """Warning about objects of the obsolete format that a shard has taken the place of."""
    return (
        f"{counted(len(keys), 'object')} of the obsolete format, first {keys[0]!r}, stand beside "
        "shards that are read in their place. If such a shard is lost, the old values are read "
        "again: remove these objects"
    )


def _threads(given: int | None) -> int | None:
    """A number of threads that a user gives, or None."""
    if given is not None:
        whole("threads", given, "a number of threads")
    return given


def _refusal_to_write(given: Any) -> SpecError | None:
    """Why a store cannot be written that a user has given, and that was opened to be read.

    - Returns: the error of `open_store`; None if it can be written.
    """
    if isinstance(given, str | os.PathLike | Store):
        return None
    try:
        open_store(given)
    except SpecError as error:
        return error.with_traceback(None)
    return None
