"""Files of HDF5 or NetCDF-4 that become the shards of one array."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NoReturn

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.convert.plan import ConvertedLayout, converted
from shardwrite.convert.run import ArrayConversion, ConversionOptions, convert_array
from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError, printable
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document, parse_metadata
from shardwrite.format.node import DOCUMENT, changed_meaning
from shardwrite.format.strategies import as_strategy
from shardwrite.grid import Shape, ShardGrid, ceil_div, counts_of, ravel, unravel
from shardwrite.hdf5.format import describe
from shardwrite.hdf5.reading import DECODE, Hdf5Store, as_array, refusing
from shardwrite.hdf5.strategy import Hdf5
from shardwrite.operations.keywords import ProgressKeywords
from shardwrite.options import (
    STRATEGIES,
    BeginKeywords,
    ProcessKeywords,
    StrategyKeywords,
    argument,
    arguments,
    option,
    options_from,
)
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target, refuse_hierarchy, resolve_target
from shardwrite.plan.options import PlanOptions
from shardwrite.read.stored_array import stored_at
from shardwrite.results import Facts, Result, counted, human
from shardwrite.runs.execute import execute
from shardwrite.runs.job import Job, RunOptions, for_new_array
from shardwrite.stores.base import Capability, ObjectReader, Store
from shardwrite.stores.looking import as_store_error, is_there, local_path
from shardwrite.stores.whole import SnapshotReader

_ENTRY_NBYTES = 16  # an inner chunk's entry in an index
_FREE_INDEX_NBYTES = 2**24  # an index that costs little, however small its file is
_MAX_INDEX_SHARE = 4  # most bytes of indexes for each byte of the files that get them


# ---- The result


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Result):
    """Files of which the shards of an array were made. :func:`shardwrite.adopt` returns it.

    Attributes
    ----------
    path : str
        Path of the array.
    dataset : str
        Name of the dataset in each file.
    shape, shards, chunks : tuple of int
        Shapes in elements: of the array, of a shard, and of an inner chunk.
    index_location : {"start", "end"}
        Position of the index in each shard.
    n_shards : int
        Number of files.
    nbytes : int
        Size of all files, in bytes.
    left_out : tuple of str
        Names of attributes that are left out, because they differ from file to file.
    is_plan : bool
        Whether nothing was done, because only a plan was asked for.
    is_skipped : bool
        Whether nothing was done, because the same call had ended before.
    """

    path: str
    dataset: str
    shape: tuple[int, ...]
    shards: tuple[int, ...]
    chunks: tuple[int, ...]
    index_location: str
    n_shards: int
    nbytes: int
    left_out: tuple[str, ...] = ()
    is_plan: bool = False
    is_skipped: bool = False

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Adopted:
        """Make a result of the fields that `to_dict` returns."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return cls(**fields)

    def __repr__(self) -> str:
        return f"<Adopted {printable(self.path)}, {counted(self.n_shards, 'file')}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        title = "to adopt" if self.is_plan else "adopted before" if self.is_skipped else "adopted"
        counts = counts_of(self.shape, self.shards)
        is_grid = sum(count > 1 for count in counts) > 1
        where = f", in a grid of {' x '.join(map(str, counts))}" if is_grid else ""
        rows = [
            ("array", f"{self.path}, {self.shape}"),
            ("files", f"{self.n_shards:,}{where}, {human(self.nbytes)}, left as they are"),
            ("shards", f"{self.shards}, index at the {self.index_location}"),
            ("inner chunks", f"{self.chunks}, of the dataset {self.dataset!r}"),
        ]
        if self.left_out:
            rows.append(("left out", f"{', '.join(self.left_out)}: not the same in all files"))
        headline = [(f"{self.n_shards:,}", "files"), (human(self.nbytes), "in all")]
        return Facts(title=title, subject=self.path, headline=headline, rows=rows)


# ---- Arrays that lie side by side, as one


_SAME = {
    "data_type": "another data type",
    "fill_value": "another fill value",
    "codecs": "other filters",
    "chunk_grid": "other chunks",
    "dimension_names": "other names of dimensions",
}


@dataclass(frozen=True, slots=True)
class Joined:
    """Arrays that lie side by side in a grid, as one array."""

    whole: ArrayMetadata  # metadata of the array without shards that has the chunks of all of them
    shards: Shape  # shape of a shard in elements, of which each array fills one
    # Names of attributes that are left out, because the arrays have different values of them
    left_out: tuple[str, ...]

    @property
    def counts(self) -> Shape:
        """Number of arrays along each axis."""
        return counts_of(self.whole.grid.shape, self.shards)

    @property
    def chunks_per_part(self) -> Shape:
        """Number of chunks along each axis in all arrays but the last."""
        return tuple(s // c for s, c in zip(self.shards, self.whole.grid.chunks, strict=True))

    def sharded(self, index_location: str) -> ArrayMetadata:
        """Metadata of the array with shards, whose indexes lie at a place."""
        grid = self.whole.grid
        layout = ConvertedLayout(
            shards=self.shards, chunks=grid.chunks, index_location=index_location
        )
        return converted(self.whole, layout)


def join(
    parts: Iterable[tuple[str, ArrayMetadata]], n_parts: int, arrangement: int | Shape
) -> Joined:
    """Join arrays without shards that lie side by side.

    - `parts`: name and metadata of each array, in row-major order of the grid that they form. The
      arrays are looked at one by one.
    - `arrangement`: the axis along which the arrays follow one another, counted from the end if it
      is negative. Or the number of arrays along each axis. Along an axis with several arrays, all
      but the last have the same length, a multiple of the length of a chunk, and the last is not
      longer.
    """
    first: ArrayMetadata | None = None
    attributes: Document = {}
    differing: set[str] = set()
    fit: _Fit | None = None
    for number, (name, part) in enumerate(parts):
        own = attributes_of(part.document)
        if first is None or fit is None:
            first, attributes = part, own
            fit = _Fit(name, first, _counts_of(arrangement, n_parts, len(first.grid.shape)))
        _check_same(name, first, part)
        fit.check(name, part.grid.shape, number)
        differing |= _differing(name, attributes, own)
    if first is None or fit is None:
        raise SpecError(
            "no file is given", field="files", value=[], remedy="give the files in their order"
        )
    document = {
        **first.document,
        "shape": list(fit.shape),
        "attributes": {name: attributes[name] for name in attributes if name not in differing},
    }
    shards = tuple(
        ceil_div(n, c) * c for n, c in zip(first.grid.shape, first.grid.chunks, strict=True)
    )
    whole = metadata_of_document(document, writing=True)
    return Joined(whole, shards, tuple(sorted(differing)))


def _counts_of(arrangement: int | Shape, n_parts: int, ndim: int) -> Shape:
    """Number of arrays along each axis."""
    if isinstance(arrangement, tuple):
        if len(arrangement) != ndim:
            raise SpecError(
                f"the dataset has {ndim} axes, and this is a grid of {len(arrangement)}",
                field="grid",
                value=arrangement,
                remedy=f"give {ndim} numbers: how many files lie along each axis",
            )
        return arrangement
    if isinstance(arrangement, bool) or not -ndim <= arrangement < ndim:
        raise SpecError(
            "no axis of the dataset",
            field="axis",
            value=arrangement,
            remedy=f"give a number from {-ndim} to {ndim - 1}",
        )
    return tuple(n_parts if axis == arrangement % ndim else 1 for axis in range(ndim))


class _Fit:
    """Shapes of arrays that lie side by side, looked at one by one."""

    def __init__(self, name: str, first: ArrayMetadata, counts: Shape) -> None:
        self._counts, self._first = counts, first.grid.shape
        # For each axis, the last array along it that was seen first, and its length.
        self._last: list[tuple[str, int] | None] = [None] * len(counts)
        several = zip(self._first, first.grid.chunks, counts, strict=True)
        for axis, (n, chunk, count) in enumerate(several):
            if count > 1 and n % chunk:
                raise _misfit(
                    name,
                    f"it is {n:,} long along axis {axis}, which is no multiple of the length of a "
                    f"chunk, {chunk}, and other files follow it",
                )

    @property
    def shape(self) -> Shape:
        """Shape of all arrays together."""
        return tuple(
            (count - 1) * n + (n if last is None else last[1])
            for n, count, last in zip(self._first, self._counts, self._last, strict=True)
        )

    def check(self, name: str, shape: Shape, number: int) -> None:
        """Refuse an array whose shape does not fit its place."""
        if not all(shape):
            raise _misfit(name, "it has no elements")
        place = unravel(number, self._counts)
        for axis, (n, first, count) in enumerate(
            zip(shape, self._first, self._counts, strict=True)
        ):
            why, last = "", self._last[axis]
            long = f"it is {n:,} long along axis {axis}"
            if count == 1:
                if n != first:
                    why = f"its shape is {shape}, and that of the first file {self._first}"
            elif place[axis] + 1 < count:
                if n != first:
                    why = (
                        f"{long}, and the first file is {first:,} long; only the last file along "
                        "an axis may be shorter"
                    )
            elif n > first:
                why = f"{long}, longer than the others, which are {first:,} long"
            elif last is None:
                self._last[axis] = name, n
            elif n != last[1]:
                why = f"{long}, and {last[0]} is {last[1]:,} long; both lie at the end of this axis"
            if why:
                raise _misfit(name, why)


def _check_same(name: str, first: ArrayMetadata, part: ArrayMetadata) -> None:
    """Refuse a file whose dataset is of another kind than that of the first."""
    n_axes = [len(one.grid.shape) for one in (first, part)]
    if n_axes[0] != n_axes[1]:
        raise _misfit(name, f"it has {n_axes[1]} axes, and the first file has {n_axes[0]}")
    for field, why in _SAME.items():
        if _text(first.document.get(field)) == _text(part.document.get(field)):
            continue
        if field == "codecs" and first.document[field][0] != part.document[field][0]:
            why = "another order of bytes"
        raise _misfit(name, f"it has {why} than the first file")


def _differing(name: str, first: Document, own: Document) -> set[str]:
    """Attributes that differ from those of the first file, if they tell nothing of the values."""
    names = {*first, *own}
    differing = {n for n in names if _text(first.get(n, ...)) != _text(own.get(n, ...))}
    key = changed_meaning(first, own)
    if key is not None:
        raise _misfit(
            name,
            f"its attribute {key!r} is another than that of the first file, so equal values "
            "mean different things",
        )
    return differing


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _misfit(name: str, why: str) -> SpecError:
    return SpecError(
        f"does not fit the others: {why}",
        field="files",
        value=name,
        remedy="give files that have the same kind of dataset, in their order, or write their "
        "values with shardwrite write",
    )


# ---- Their chunks, as a store


_MAX_OPEN = 64

Version = tuple[int, int, int]


class JoinedStore(Store):
    """The chunks of datasets that lie side by side.

    - `files`: the files in row-major order of their grid, each with its version; see `file_of`.
    """

    capabilities = frozenset({Capability.SHARED})

    def __init__(
        self,
        files: Sequence[tuple[str, Version]],
        dataset: str,
        counts: Shape,
        n_chunks: Shape,
        document: str,
    ) -> None:
        self._files = tuple(files)
        self.dataset, self._counts, self._n_chunks = dataset, counts, n_chunks
        self._document = document

    @staticmethod
    def file_of(path: str) -> tuple[str, Version]:
        """A file, and the version that it has now."""
        store = Hdf5Store(path)
        return str(store.local_path), store.file_version

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self._files, self.dataset, self._counts, self._n_chunks, self._document
        return type(self), fields

    def __repr__(self) -> str:
        return f"{len(self._files):,} files from {self._files[0][0]} on"

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        names = [path for path, _ in self._files]
        axes = [axis for axis, count in enumerate(self._counts) if count > 1]
        where = self._counts if len(axes) > 1 else sum(axes)
        return f"{names[0]}:{_digest(names, self.dataset, where)}"

    @cached_property
    def _metadata(self) -> ArrayMetadata:
        return parse_metadata(self._document)

    def _find(self, key: str) -> tuple[Store, str] | None:
        """Store of a file, and the key of a chunk in it."""
        index = self._metadata.shard_index(key)
        if index is None:
            return None
        pairs = list(map(divmod, index, self._n_chunks))
        path, version = self._files[ravel([file for file, _ in pairs], self._counts)]
        inside = tuple(place for _, place in pairs)
        return _opened(path, version, self.dataset), self._metadata.shard_key(inside)

    def open(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open`."""
        if key == DOCUMENT:
            return SnapshotReader(key, self._document.encode(), self.version(key))
        chunk = self._find(key)
        return None if chunk is None else chunk[0].open(chunk[1])

    def open_again(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open_again`."""
        chunk = self._find(key)
        return self.open(key) if chunk is None else chunk[0].open_again(chunk[1])

    def version(self, key: str) -> Any:
        """See :meth:`Store.version`; that of the document is one of all files."""
        if key == DOCUMENT:
            return _digest([version for _, version in self._files])
        chunk = self._find(key)
        return None if chunk is None else chunk[0].version(chunk[1])

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Store.list_keys`."""
        if DOCUMENT.startswith(prefix):
            yield DOCUMENT
        for number, (path, version) in enumerate(self._files):
            file = unravel(number, self._counts)
            for key in _opened(path, version, self.dataset).list_keys():
                index = self._metadata.shard_index(key)
                if index is None:
                    continue
                places = zip(file, self._n_chunks, index, strict=True)
                name = self._metadata.shard_key(tuple(f * n + i for f, n, i in places))
                if name.startswith(prefix):
                    yield name

    def at(self, path: str) -> NoReturn:
        """Raise SpecError, because there is nothing below the array."""
        raise _read_only(path)

    def transaction(self, *arguments: Any, **keywords: Any) -> NoReturn:  # noqa: ARG002 (refused)
        """Raise SpecError, because nothing is written into the files."""
        raise _read_only(repr(self))


@lru_cache(maxsize=_MAX_OPEN)
def _opened(path: str, version: Version, dataset: str) -> Store:
    return Hdf5Store(path, version, part=dataset)


def _digest(*facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _read_only(value: str) -> SpecError:
    return SpecError(
        "files that are only read, as one array",
        field="store",
        value=value,
        remedy="write to a directory, or to a store of zarr-python",
    )


# ---- The adoption


AnyPath = str | os.PathLike[str]

_ELSEWHERE = "give another path, or remove it yourself"


@arguments
class AdoptArguments(ProgressKeywords, ProcessKeywords, BeginKeywords, StrategyKeywords):
    """Arguments of `adopt`."""

    section: ClassVar[str] = "Source"

    files: AnyPath | Sequence[AnyPath] = argument(
        """The files, in their order along `axis` or in row-major order of `grid`. All have a
        dataset of the same kind: the same data type, chunks, filters and fill value. Along an axis
        with one file, all have the same length. Along an axis with several, all but the last have
        the same length, a multiple of the length of a chunk. The last may be shorter.""",
        kind="path or sequence of path",
    )
    array: Any = argument(
        "Where the new array goes.", kind="str, path, or store or node of zarr-python"
    )
    _: KW_ONLY
    dataset: str | None = option(
        None,
        """Name of the dataset, such as ``"raw/data"``. It may be left out if each file has only
        one.""",
        command_help="Name of the dataset. Not needed if each file has only one.",
    )
    axis: int | None = option(
        None,
        """The axis along which the files follow one another, by default the first. A negative one
        counts from the end.""",
        command_help="The axis along which the files follow one another, counted from 0. Default: "
        "0.",
    )
    grid: Sequence[int] | None = option(
        None,
        """The number of files along each axis of the dataset, in place of `axis`. With ``(2, 3)``,
        the first three files lie side by side along axis 1, and the next three follow along axis
        0.""",
        kind="sequence of int",
        parser="extents",
        command_help="Number of files along each axis, such as 2,3, in place of --axis. The last "
        "axis runs fastest.",
    )
    strategy: Any = option(
        None,
        """How the shards are written, by default as HDF5 files, by :class:`Hdf5`, with the name
        that the dataset has in `files`.""",
        kind="Strategy or str",
        suggested=STRATEGIES,
        command_help="How the shards are written: fixed-order, append-only, C, F, morton, hdf5 or "
        "hdf5:NAME. Default: hdf5, with the name of the dataset in the files.",
    )


@taking(AdoptArguments)
def adopt(call: AdoptArguments) -> Adopted:
    """Make one array of existing HDF5 or NetCDF-4 files, with a shard for each file.

    The encoded chunks are copied, and nothing is decoded. The files stay as they are.

    Returns
    -------
    Adopted
        What was done.

    Notes
    -----
    The call can be interrupted at any time. The same call finishes it.

    Shards that are HDF5 files are read-only, because a program that changes such a file would make
    its index wrong.

    Raises
    ------
    SpecError
        Before anything is changed, if a file cannot become a shard, the files do not fit each
        other, or something stands in the place of the array.
    PlanError
        If no plan fits into the memory.
    JournalError
        If another process is at it, or something else was begun there.
    CorruptShardError
        If a chunk that is copied cannot be one.
    IncompleteError
        If the process was asked to stop and shards are missing.
    StoreError
        If the storage refuses, or another program changes a file meanwhile.

    Examples
    --------
    >>> import h5py, shardwrite, tempfile
    >>> path = tempfile.mkdtemp()
    >>> for day in range(3):
    ...     with h5py.File(f"{path}/{day}.h5", "w") as file:
    ...         _ = file.create_dataset("data", data=[[day] * 4] * 2, chunks=(1, 4))
    >>> files = [f"{path}/{day}.h5" for day in range(3)]
    >>> shardwrite.adopt(files, path + "/days.zarr").shape
    (6, 4)
    >>> shardwrite.open_sharded(path + "/days.zarr")[:, 0].tolist()
    [0, 0, 1, 1, 2, 2]
    """
    planned, target, conversion = _planned(call)
    options = options_from(call, RunOptions, remedy_if_there=_ELSEWHERE)
    job = Job(conversion.chunks, conversion.plan, target, for_new_array(options))
    (result,) = execute([job], active_engine(), call.progress)
    return replace(planned, is_plan=False, is_skipped=not result.seconds)  # the run had ended


def preview_adopt(call: AdoptArguments) -> Adopted:
    """What :func:`adopt` would do. It raises what that would raise before it changes anything."""
    return _planned(call)[0]


def _planned(call: AdoptArguments) -> tuple[Adopted, Target, ArrayConversion]:
    """What would be done, where, and the copies, after a look at all files."""
    store, joined, nbytes = _look(call.files, call.dataset, _arrangement(call.axis, call.grid))
    target, dataset = resolve_target(call.array, None), store.dataset
    refuse_hierarchy(target.place, "array")
    if call.strategy is None:
        _check_fits(joined.sharded("end"), dataset)
    strategy = Hdf5() if call.strategy is None else as_strategy(call.strategy)
    if isinstance(strategy, Hdf5) and strategy.dataset is None:
        strategy = replace(strategy, dataset=dataset)
    conversion = convert_array(
        stored_at(InStore(store)),
        active_engine(),
        ConversionOptions(shards=joined.chunks_per_part),
        PlanOptions(strategy=strategy, memory_limit=call.memory_limit),
        target.store,
    )
    grid = joined.whole.grid
    planned = Adopted(
        path=target.label,
        dataset=dataset,
        shape=grid.shape,
        shards=joined.shards,
        chunks=grid.chunks,
        index_location=conversion.metadata.index_codec.location,
        n_shards=math.prod(joined.counts),
        nbytes=nbytes,
        left_out=joined.left_out,
        is_plan=True,
    )
    return planned, target, conversion


def _look(given: Any, dataset: Any, arrangement: int | Shape) -> tuple[JoinedStore, Joined, int]:
    """Look at all files, before anything is written: their chunks, the array, and their size.

    - `arrangement`: the axis along which the files follow one another, or the number of files
      along each axis.
    """
    paths = _paths_of(given, dataset, arrangement)
    files, names, sizes = [], [], []

    def each() -> Iterator[tuple[str, ArrayMetadata]]:
        for path in paths:
            with as_store_error(path, "cannot look at"):
                is_file = stat.S_ISREG(os.stat(path).st_mode)
            if not is_file:
                remedy = "give files by their names, also those of a directory"
                raise _refused(path, "it is no regular file", remedy)
            files.append(JoinedStore.file_of(path))
            with refusing(path, _refused):
                array = as_array(path, dataset or "")
            if array.codecs.why_not:
                raise _refused(path, f"it has {array.codecs.why_not}")
            names.append(array.source.dataset)
            if names[-1] != names[0]:
                raise _refused(
                    path,
                    f"its dataset is {names[-1]!r}, and that of the first is {names[0]!r}",
                    "give the name of the dataset that all files have (--dataset)",
                )
            sizes.append(files[-1][1][1])
            yield path, array.metadata

    joined, nbytes = join(each(), len(paths), arrangement), sum(sizes)
    _check_indexes(joined.sharded("end").grid, paths, nbytes)
    store = JoinedStore(files, names[0], joined.counts, joined.chunks_per_part, joined.whole.text)
    return store, joined, nbytes


def _check_fits(metadata: ArrayMetadata, dataset: str) -> None:
    """Refuse an array whose shards :class:`Hdf5` could not write, and say what can be done."""
    try:
        describe(metadata, Hdf5(dataset=dataset))
    except SpecError as error:
        raise SpecError(
            f"shards that are HDF5 files cannot have it ({error.message})",
            field=error.fields["field"],
            value=error.fields["value"],
            remedy='copy its chunks into plain shards, with strategy="fixed-order"',
        ) from error


def _refused(path: str, why: str, remedy: str = DECODE) -> SpecError:
    return SpecError(
        f"its chunks cannot be copied: {why}",
        field="files",
        value=path,
        remedy=remedy,
    )


def _arrangement(axis: Any, grid: Any) -> int | Shape:
    """How files lie: along an axis, or in a grid."""
    if grid is None:
        if axis is None:
            return 0
        if not is_whole(axis):
            raise SpecError("no axis", field="axis", value=axis, remedy="give a number, such as 0")
        return int(axis)
    if axis is not None:
        raise SpecError(
            "says where files lie, and so does grid",
            field="axis",
            value=axis,
            remedy="leave one of the two out",
        )
    listed = grid.tolist() if isinstance(grid, np.ndarray) else grid
    counts = tuple(listed) if isinstance(listed, Sequence) else (listed,)
    if not counts or not all(is_whole(count, 1) for count in counts):
        raise SpecError(
            "no grid of files",
            field="grid",
            value=grid,
            remedy="give the number of files along each axis, such as (2, 3)",
        )
    return tuple(map(int, counts))


def _paths_of(files: Any, dataset: Any, arrangement: int | Shape) -> tuple[str, ...]:
    """Absolute paths of the files that a user gives, after a check of what goes with them."""
    # The library of HDF5 reads a name up to a zero.
    is_name = isinstance(dataset, str) and "\0" not in dataset and _is_unicode(dataset)
    if dataset is not None and not is_name:
        remedy = 'give a name such as "data" or "raw/data"'
        raise SpecError("no name of a dataset", field="dataset", value=dataset, remedy=remedy)
    given = [files] if isinstance(files, str | os.PathLike) else files
    try:
        is_set = isinstance(given, Set)
        names = [""] if is_set else [os.fsdecode(os.fsencode(path)) for path in given]
    except (TypeError, UnicodeEncodeError):
        names = [""]
    if not all(name and "\0" not in name for name in names):
        raise SpecError(
            "no paths of files",
            field="files",
            value=files,
            remedy="give a list of paths, in their order",
        )
    names = [local_path(name, "files") for name in names]
    for name in names:
        if "://" in name and not is_there(name):
            raise SpecError(
                "this is a URL, and only files of this machine can be given",
                field="files",
                value=name,
                remedy="give the path of a file, and copy files in buckets to this machine first",
            )
    if isinstance(arrangement, tuple) and math.prod(arrangement) != len(names):
        raise SpecError(
            f"a grid of {math.prod(arrangement):,} files, and {len(names):,} are given",
            field="grid",
            value=arrangement,
            remedy="give as many files as the grid has places, or another grid",
        )
    paths = tuple(map(os.path.abspath, names))
    for path in paths:
        if "*" in path and not is_there(path):
            raise SpecError(
                "no such file, and a pattern is not expanded here",
                field="files",
                value=path,
                remedy="give a list of paths in their order, such as sorted(glob.glob(...))",
            )
    return paths


def _is_unicode(text: str) -> bool:
    return text.encode(errors="ignore").decode() == text


def _check_indexes(grid: ShardGrid, files: Sequence[str], nbytes: int) -> None:
    """Refuse files that store few of their chunks, and whose indexes would be far larger."""
    n_chunks = grid.n_chunks_per_shard
    each = _ENTRY_NBYTES * n_chunks
    if each > _FREE_INDEX_NBYTES and each * len(files) > _MAX_INDEX_SHARE * nbytes:
        raise SpecError(
            f"the dataset has {n_chunks:,} chunks, of which few are stored. The index of Zarr has "
            f"an entry for each of them, and would take {each:,} bytes in each shard. All files "
            f"together have {nbytes:,} bytes",
            field="files",
            value=files[0],
            remedy="write the values in larger chunks, with shardwrite write --chunks",
        )
