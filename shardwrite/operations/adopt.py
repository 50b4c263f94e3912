"""Files of HDF5 or NetCDF-4 that become the shards of one array."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from shardwrite.engines import active_engine
from shardwrite.entry.public import public
from shardwrite.errors import SpecError
from shardwrite.grid import Shape
from shardwrite.operations.adopted import Adopted
from shardwrite.operations.adopting import Call, adopt_files, look
from shardwrite.operations.adopting_copies import Copying, copy_files, look_for_copies
from shardwrite.operations.converting import Progress
from shardwrite.place.target import resolve_target
from shardwrite.stores import is_there, local_path

AnyPath = str | os.PathLike[str]


@public
def adopt(
    files: AnyPath | Sequence[AnyPath],
    array: Any,
    *,
    dataset: str | None = None,
    axis: int | None = None,
    grid: Sequence[int] | None = None,
    how: str = "copy",
    strategy: Any = None,
    durability: str | None = None,
    restart: bool = False,
    memory_limit: int | str | None = None,
    progress: Progress = False,
) -> Adopted:
    """Make one array of existing HDF5 or NetCDF-4 files, of which each becomes a shard.

    With ``how="move"`` or ``how="link"``, no chunk is copied. Each file gets an index of Zarr, and
    stays a valid HDF5 file. Nothing is decoded.

    Parameters
    ----------
    files : path or sequence of path
        The files, in their order along `axis` or in row-major order of `grid`. All have a dataset
        of the same kind: the same data type, chunks, filters and fill value. Along an axis with one
        file, all have the same length. Along an axis with several, all but the last have the same
        length, a multiple of the length of a chunk. The last may be shorter.
    array : str, path, or store or node of zarr-python
        Where the new array goes. With ``how="move"`` or ``how="link"`` it must be a directory in
        the file system of the files.
    dataset : str, optional
        Name of the dataset, such as ``"raw/data"``. It may be left out if each file has only one.
    axis : int, optional
        The axis along which the files follow one another, by default the first. A negative one
        counts from the end.
    grid : sequence of int, optional
        The number of files along each axis of the dataset, in place of `axis`. With ``(2, 3)``, the
        first three files lie side by side along axis 1, and the next three follow along axis 0.
    how : {"copy", "move", "link"}
        ``"copy"`` leaves the files as they are, and writes new shards with their encoded chunks.
        ``"move"`` moves the files into the array. ``"link"`` gives each file a second name there,
        and the file is changed under both names.
    strategy : Strategy or str, optional
        How the shards of copies are written, by default as HDF5 files, by :class:`Hdf5`, with the
        name that the dataset has in `files`. Only for ``how="copy"``.
    restart : bool
        Give up what an interrupted call has begun, and start over. Files that it has moved or
        changed are restored first.
    durability, memory_limit, progress
        See :func:`to_sharded_zarr`. Only for ``how="copy"``; otherwise all is durable.

    Returns
    -------
    Adopted
        What was done.

    Notes
    -----
    The call can be interrupted at any time. The same call finishes it. Until then,
    :func:`abandon` of `array` restores the bytes, sizes and times of all files that were moved or
    linked, and puts them back. The array appears when all files are in it.

    Files that were moved or linked are read-only afterwards, because a program that changes such a
    file would make its index wrong.

    Raises
    ------
    SpecError
        Before anything is changed, if a file cannot become a shard, the files do not fit each
        other, or something stands in the place of the array.
    PlanError
        If no plan for copies, or not the index of a file, fits into the memory.
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
    >>> shardwrite.adopt(files, path + "/days.zarr", how="move").shape
    (6, 4)
    >>> shardwrite.open_sharded(path + "/days.zarr")[:, 0].tolist()
    [0, 0, 1, 1, 2, 2]
    """
    call = _call_of(files, dataset, _arrangement(axis, grid), how)
    if how != "copy":
        for field, value in (
            ("strategy", strategy),
            ("durability", durability),
            ("memory_limit", memory_limit),
        ):
            if value is not None:
                raise SpecError(
                    "is only for chunks that are copied",
                    field=field,
                    value=value,
                    remedy=f'leave it out, or give how="copy" in place of how="{how}"',
                )
        return adopt_files(call, resolve_target(array, None), restart=restart)
    copying = Copying(strategy, durability, memory_limit, progress, restart=restart)
    return copy_files(call, resolve_target(array, None), copying, active_engine())


def preview_adopt(
    files: Sequence[AnyPath],
    array: Any,
    *,
    dataset: str | None,
    axis: int | None,
    grid: Sequence[int] | None,
    how: str,
    strategy: Any = None,
) -> Adopted:
    """What :func:`adopt` would do. It raises what that would raise before it changes anything."""
    call = _call_of(files, dataset, _arrangement(axis, grid), how)
    target = resolve_target(array, None)
    if how == "copy":
        found = look_for_copies(call)
        made = found.converting(strategy, None, target, active_engine())
        return found.told(target.label, made.metadata.index_codec.location)
    return replace(look(call, target).told(target.label, how), is_plan=True)


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


def _call_of(files: Any, dataset: Any, arrangement: int | Shape, how: str) -> Call:
    if how not in ("copy", "move", "link"):
        raise SpecError(
            "no such choice", field="how", value=how, remedy='give "copy", "move" or "link"'
        )
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
    return Call(paths, dataset, arrangement, how)


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
