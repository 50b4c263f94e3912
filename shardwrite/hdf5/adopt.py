"""Files of HDF5 or NetCDF-4 that become the shards of one array."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shardwrite.convert.arrays import Progress
from shardwrite.convert.run import ArrayConversion, ConversionOptions, convert_array
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.entry.public import public
from shardwrite.errors import SpecError, printable
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import as_strategy
from shardwrite.grid import Shape, ceil_div
from shardwrite.hdf5.format import describe
from shardwrite.hdf5.joined import Joined, JoinedStore, join
from shardwrite.hdf5.reading import DECODE, GIVE_FILES, NO_FILE, as_array, refusing
from shardwrite.hdf5.strategy import Hdf5
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target, resolve_target
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import check_indexes
from shardwrite.read.stored_array import stored_at
from shardwrite.results import Facts, Result, counted, human
from shardwrite.runs.execute import execute, reporting
from shardwrite.runs.job import Job, RunOptions, for_new_array
from shardwrite.stores.looking import as_store_error, is_there, local_path

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

    def to_dict(self) -> dict[str, Any]:
        """All fields as a dictionary that can be stored as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Adopted:
        """Make a result of the fields that `to_dict` returns."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return cls(**fields)

    @property
    def _title(self) -> str:
        return "to adopt" if self.is_plan else "adopted before" if self.is_skipped else "adopted"

    def _rows(self) -> list[tuple[str, str]]:
        counts = tuple(ceil_div(n, s) for n, s in zip(self.shape, self.shards, strict=True))
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
        return rows

    def __repr__(self) -> str:
        return f"<Adopted {printable(self.path)}, {counted(self.n_shards, 'file')}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [(f"{self.n_shards:,}", "files"), (human(self.nbytes), "in all")]
        return Facts(title=self._title, subject=self.path, headline=headline, rows=self._rows())


# ---- The adoption


AnyPath = str | os.PathLike[str]

_ELSEWHERE = "give another path, or remove it yourself"


@public
def adopt(
    files: AnyPath | Sequence[AnyPath],
    array: Any,
    *,
    dataset: str | None = None,
    axis: int | None = None,
    grid: Sequence[int] | None = None,
    strategy: Any = None,
    durability: str | None = None,
    restart: bool = False,
    memory_limit: int | str | None = None,
    progress: Progress = False,
) -> Adopted:
    """Make one array of existing HDF5 or NetCDF-4 files, with a shard for each file.

    The encoded chunks are copied, and nothing is decoded. The files stay as they are.

    Parameters
    ----------
    files : path or sequence of path
        The files, in their order along `axis` or in row-major order of `grid`. All have a dataset
        of the same kind: the same data type, chunks, filters and fill value. Along an axis with one
        file, all have the same length. Along an axis with several, all but the last have the same
        length, a multiple of the length of a chunk. The last may be shorter.
    array : str, path, or store or node of zarr-python
        Where the new array goes.
    dataset : str, optional
        Name of the dataset, such as ``"raw/data"``. It may be left out if each file has only one.
    axis : int, optional
        The axis along which the files follow one another, by default the first. A negative one
        counts from the end.
    grid : sequence of int, optional
        The number of files along each axis of the dataset, in place of `axis`. With ``(2, 3)``, the
        first three files lie side by side along axis 1, and the next three follow along axis 0.
    strategy : Strategy or str, optional
        How the shards are written, by default as HDF5 files, by :class:`Hdf5`, with the name that
        the dataset has in `files`.
    durability, restart, memory_limit, progress
        See :func:`to_sharded_zarr`.

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
    found = _look(_call_of(files, dataset, _arrangement(axis, grid)))
    target, engine = resolve_target(array, None), active_engine()
    made = found.converting(strategy, memory_limit, target, engine)
    run = for_new_array(
        RunOptions(durability=durability, restart=restart, remedy_if_there=_ELSEWHERE)
    )
    with reporting(progress, made.plan.raw_nbytes) as on_report:
        (result,) = execute([Job(made.chunks, made.plan, target, run)], engine, on_report)
    is_skipped = not result.seconds  # the run had ended before
    planned = found.planned(target.label, made.metadata.index_codec.location)
    return replace(planned, is_plan=False, is_skipped=is_skipped)


def preview_adopt(
    files: Sequence[AnyPath],
    array: Any,
    *,
    dataset: str | None,
    axis: int | None,
    grid: Sequence[int] | None,
    strategy: Any = None,
) -> Adopted:
    """What :func:`adopt` would do. It raises what that would raise before it changes anything."""
    found = _look(_call_of(files, dataset, _arrangement(axis, grid)))
    target = resolve_target(array, None)
    made = found.converting(strategy, None, target, active_engine())
    return found.planned(target.label, made.metadata.index_codec.location)


@dataclass(frozen=True, slots=True)
class _Call:
    files: tuple[str, ...]  # absolute paths of the files, in their order
    dataset: str | None  # name of the dataset in each file
    # The axis along which the files follow one another, or the number of files along each axis
    arrangement: int | Shape


@dataclass(frozen=True, slots=True)
class _Files:
    """Files that were looked at, and whose chunks can be copied."""

    joined: Joined  # the array that they make
    store: JoinedStore  # their chunks
    dataset: str  # name of the dataset
    n_files: int  # number of the files, and their size in bytes
    nbytes: int

    def planned(self, path: str, index_location: str) -> Adopted:
        """What would be done."""
        grid = self.joined.whole.grid
        return Adopted(
            path=path,
            dataset=self.dataset,
            shape=grid.shape,
            shards=self.joined.shards,
            chunks=grid.chunks,
            index_location=index_location,
            n_shards=self.n_files,
            nbytes=self.nbytes,
            left_out=self.joined.left_out,
            is_plan=True,
        )

    def converting(
        self, strategy: Any, memory_limit: int | str | None, target: Target, engine: Engine
    ) -> ArrayConversion:
        """Plan the copies."""
        if strategy is None:
            _check_fits(self.joined.sharded("end"), self.dataset)
        chosen = Hdf5() if strategy is None else as_strategy(strategy)
        if isinstance(chosen, Hdf5) and chosen.dataset is None:
            chosen = replace(chosen, dataset=self.dataset)
        options = PlanOptions(strategy=chosen, memory_limit=memory_limit)
        layout = ConversionOptions(shards=self.joined.chunks_per_part)
        source = stored_at(InStore(self.store))
        return convert_array(source, engine, layout, options, target.store)


def _look(call: _Call) -> _Files:
    """Look at all files, before anything is written."""
    _refuse_patterns(call)
    files, names, sizes = [], [], []

    def each() -> Iterator[tuple[str, ArrayMetadata]]:
        for path in call.files:
            with as_store_error(path, "cannot look at"):
                is_file = stat.S_ISREG(os.stat(path).st_mode)
            if not is_file:
                raise _refused(path, NO_FILE, GIVE_FILES)
            files.append(JoinedStore.file_of(path))
            with refusing(path, _refused):
                found = as_array(path, call.dataset or "")
            if found.codecs.why_not:
                raise _refused(path, f"it has {found.codecs.why_not}")
            names.append(found.source.dataset)
            if names[-1] != names[0]:
                raise _refused(
                    path,
                    f"its dataset is {names[-1]!r}, and that of the first is {names[0]!r}",
                    "give the name of the dataset that all files have (--dataset)",
                )
            sizes.append(files[-1][1][1])
            yield path, found.metadata

    joined = join(each(), len(call.files), call.arrangement)
    check_indexes(joined.sharded("end").grid, call.files, sum(sizes))
    store = JoinedStore(files, names[0], joined.counts, joined.chunks_per_part, joined.whole.text)
    return _Files(joined, store, names[0], len(files), sum(sizes))


def _refuse_patterns(call: _Call) -> None:
    """Refuse names with which a shell would find files, if there is no file of that name."""
    pattern = next((name for name in call.files if "*" in name and not is_there(name)), None)
    if pattern is not None:
        raise SpecError(
            "no such file, and a pattern is not expanded here",
            field="files",
            value=pattern,
            remedy="give a list of paths in their order, such as sorted(glob.glob(...))",
        )


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
        if not _is_integer(axis):
            raise SpecError("no axis", field="axis", value=axis, remedy="give a number, such as 0")
        return int(axis)
    if axis is not None:
        raise SpecError(
            "says where files lie, and so does grid",
            field="axis",
            value=axis,
            remedy="leave one of the two out",
        )
    given = grid.tolist() if isinstance(grid, np.ndarray) else grid
    counts = tuple(given) if isinstance(given, Sequence) else (given,)
    if not counts or not all(_is_integer(count) and count > 0 for count in counts):
        raise SpecError(
            "no grid of files",
            field="grid",
            value=grid,
            remedy="give the number of files along each axis, such as (2, 3)",
        )
    return tuple(map(int, counts))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _call_of(files: Any, dataset: Any, arrangement: int | Shape) -> _Call:
    if dataset is not None and not _is_name(dataset):
        remedy = 'give a name such as "data" or "raw/data"'
        raise SpecError("no name of a dataset", field="dataset", value=dataset, remedy=remedy)
    paths = _paths_of(files)
    if isinstance(arrangement, tuple) and math.prod(arrangement) != len(paths):
        raise SpecError(
            f"a grid of {math.prod(arrangement):,} files, and {len(paths):,} are given",
            field="grid",
            value=arrangement,
            remedy="give as many files as the grid has places, or another grid",
        )
    return _Call(paths, dataset, arrangement)


def _paths_of(files: Any) -> tuple[str, ...]:
    """Absolute paths of the files that a user gives."""
    given = [files] if isinstance(files, str | os.PathLike) else files
    try:
        names = [""] if isinstance(given, Set) else [os.fsdecode(path) for path in given]
    except TypeError:
        names = [""]
    if not all(name and "\0" not in name and _is_encodable(name) for name in names):
        raise SpecError(
            "no paths of files",
            field="files",
            value=files,
            remedy="give a list of paths, in their order",
        )
    names = [local_path(name, "files") for name in names]
    url = next((name for name in names if "://" in name and not is_there(name)), None)
    if url is not None:
        raise SpecError(
            "this is a URL, and only files of this machine can be given",
            field="files",
            value=url,
            remedy="give the path of a file, and copy files in buckets to this machine first",
        )
    return tuple(map(os.path.abspath, names))


def _is_name(dataset: Any) -> bool:
    """Whether HDF5 could have a dataset of this name; its library reads a name up to a zero."""
    if not isinstance(dataset, str) or "\0" in dataset:
        return False
    try:
        dataset.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_encodable(name: str) -> bool:
    """Whether a name can be that of a file on this system."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True
