"""What a user gives as an array -> a dask array, and what it knows besides its values.

Every operation that takes an array calls `take` first. Nothing is computed here. What lies in
memory is wrapped; what can be sliced is read by slices, when tasks need them.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from dask.base import is_dask_collection, tokenize
from dask.blockwise import Blockwise
from dask.delayed import delayed
from dask.task_spec import TaskRef

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.codecs.datatypes import is_same_type
from shardwrite.codecs.documents import attributes_of
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.format.metadata import ArrayMetadata, SourceMetadata
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.grid import Shape
from shardwrite.seams import Ref, find
from shardwrite.stores.looking import size_and_time

_MASKS = ("_FillValue", "missing_value")
# What an object says of these, or leaves out, does not change how its values are stored.
_OF_WORDS = ("units", "flag_values", "flag_masks", "flag_meanings")

_OF_PATHS = (
    "give the array first, and the path of the store second; a file is opened with "
    "shardwrite.sources.open_source(path)"
)
# In the encoding of an object of xarray: how values are packed, and how times are.
_OF_VALUES = ("scale_factor", "add_offset", "_Unsigned")
_OF_TIMES = ("units", "calendar")
_REMEDY = (
    "give a dask or numpy array, a zarr.Array, an xarray.DataArray, or an object with __array__ "
    "and a shape"
)


@dataclass(frozen=True, slots=True)
class SourceArray:
    """An array that a user has given."""

    array: dask.array.Array  # its values
    # What the user's object knows of a fill value, names of the axes, and attributes
    known: SourceMetadata = field(default_factory=SourceMetadata)
    # Shards, chunks and compressors that an object of xarray asks for
    layout: ArrayOptions = field(default_factory=ArrayOptions)
    not_applied: tuple[str, ...] = ()  # what an object of xarray asks for besides, and does not get

    def described(self, options: ArrayOptions) -> ArrayOptions:
        """Keywords of a new array, where what the object knows stands for what was left out."""
        known, layout = self.known, options
        if self.not_applied:
            warnings.warn(
                f"the encoding of the xarray array is not applied: {', '.join(self.not_applied)}. "
                f"Its values are stored as they are, as {self.array.dtype}. Apply it before with "
                "xarray.conventions.encode_cf_variable(x.variable), or leave it out with "
                "x.drop_encoding()",
                UserWarning,
                stacklevel=4,
            )
        if all(isinstance(v, str) and v == "auto" for v in (options.shards, options.chunks)):
            layout = replace(layout, shards=self.layout.shards, chunks=self.layout.chunks)
        if isinstance(options.compressors, str) and options.compressors == "auto":
            layout = replace(layout, compressors=self.layout.compressors)
        if options.fill_value is None:
            layout = replace(layout, fill_value=known.fill_value)
        if options.dimension_names is None:
            layout = replace(layout, dimension_names=known.dimension_names)
        if options.attributes is None and known.attributes:
            layout = replace(layout, attributes=known.attributes)
        if options.serializer == "auto" and known.serializer is not None:
            layout = replace(layout, serializer=known.serializer)
        return layout


def as_source_array(x: Any, field: str = "x") -> SourceArray:
    """Make a dask array of what a user has given.

    - `x`: A dask array, a numpy array, a `zarr.Array`, an `xarray.DataArray` or a source of
      :mod:`shardwrite.sources`. It may also be a `SourceArray`, which was taken before. Another
      collection of dask needs a shape and a dtype. Any other object needs ``__array__`` and a
      shape.
    """
    given = _given(x, field)
    if any(math.isnan(n) for n in given.array.shape):  # as a sum with an unknown size is
        remedy = (
            f"call {field}.compute_chunk_sizes() first"
            if isinstance(x, dask.array.Array)
            else f"give {field}.to_dask_array(lengths=True)"
        )
        raise SpecError(
            "unknown chunk sizes", field=f"{field}.chunks", value=given.array.chunks, remedy=remedy
        )
    meta = getattr(given.array, "_meta", None)
    _refuse_masked(meta, field)
    if meta is not None:
        _refuse_other_blocks(meta, field)
    return given


def ref_of(x: dask.array.Array) -> Ref | None:
    """What a dask array reads, as a record names it for other processes.

    None if it computes something, or only this process has what it reads.
    """
    core, layer = dask.array.core, x.dask.layers.get(x.name)
    if not isinstance(layer, Blockwise):
        return None
    if layer.task.func not in (core.getter, core.getter_inline, core.getter_nofancy):
        return None
    read: Any = next((value for value, indices in layer.indices if indices is None), None)
    if isinstance(read, TaskRef):  # a layer of its own has what is read
        read = x.dask.layers.get(read.key, {}).get(read.key)
    ref = getattr(read, "ref", None)
    if not isinstance(ref, Ref):  # datasets of h5py have another thing of this name
        ref = None
    root = getattr(getattr(read, "store", None), "root", None)
    if isinstance(root, Path) and type(read).__module__.startswith("zarr."):
        ref = Ref("source", "zarr", {"path": os.path.abspath(root / read.path)})
    return ref if getattr(read, "shape", None) == x.shape else None


def check_meaning(known: SourceMetadata, metadata: ArrayMetadata, field: str) -> None:
    """Refuse values that mean something else than equal values of the array that they go to.

    The array's attributes tell how its values are packed, and in which units. So a file that is
    packed otherwise does not fit, and a packed file does not fit an array of decoded values. An
    object without any attributes says nothing. Units and flags are compared if both have them,
    since computing often loses them; units of a time are always compared. An array of floats has
    NaN for missing values, and takes them from a source that has no other value for these.
    """
    from shardwrite.format.node import changed_meaning  # where both have attributes

    kept, own = attributes_of(metadata.document), known.attributes
    if not own:
        return
    if metadata.dtype.kind == "f":
        own = {**{name: kept[name] for name in _MASKS if name in kept}, **own}
    unsaid = {name for name in _OF_WORDS if name not in kept or name not in own}
    if " since " in str(kept.get("units", own.get("units"))):
        unsaid.discard("units")
    if "units" in unsaid:
        unsaid.add("calendar")  # which tells what the units of times mean
    name = changed_meaning(
        *({key: value for key, value in said.items() if key not in unsaid} for said in (kept, own))
    )
    if name is not None:
        raise SpecError(
            f"the source has {own.get(name)!r}, and the array {kept.get(name)!r}, so equal values "
            "would mean different things",
            field=f"{field}.attributes[{name!r}]",
            value=own.get(name),
            remedy="convert its values to those of the array first (--decode-cf if the array was "
            "written with it); if they mean the same, give the values alone, as an array of dask "
            "or numpy",
        )


def as_source_for(x: Any, metadata: ArrayMetadata, field: str) -> dask.array.Array:
    """Make a dask array of what a user has given as the values of an array that exists.

    The byte order of the dtypes may differ. If the inner chunks of the array come from everywhere
    in another one, the values are those of the other; see `ScatteredChunks`.
    """
    source = as_source_array(x, field).array
    shape, dtype = metadata.values_shape, metadata.dtype
    if isinstance(metadata.placed, ScatteredChunks) and source.shape == (1, *shape):
        source = source[0]
    if source.shape != shape:
        raise SpecError(
            "is not the array's",
            field=f"{field}.shape",
            value=source.shape,
            remedy=f"give a source of shape {shape}",
        )
    if not is_same_type(source.dtype, dtype):
        remedy = f'convert it with astype("{dtype}")'
        raise SpecError(
            "is not the array's", field=f"{field}.dtype", value=str(source.dtype), remedy=remedy
        )
    return source


class SourceAxes(Protocol):
    """What a wing brings for arrays of a shard format, under the kind ``source axes``.

    The array that was written may have had its axes in another order than the array here.
    """

    def __call__(
        self, metadata: ArrayMetadata, names: Sequence[str | None] | None, shape: Shape, field: str
    ) -> tuple[int | None, ...] | None:
        """For each axis of the values here, that of a source of this shape, which may have names.

        - Returns: None for an axis that the source lacks; None alone if all are in order. Axes of
          the source that are left out have the length 1.
        - Raises SpecError if the shape does not fit.
        """


def _source_axes(
    metadata: ArrayMetadata, names: Sequence[str | None] | None, shape: Shape, field: str
) -> tuple[int | None, ...] | None:
    """See `SourceAxes`; None also if the axes it tells are in order."""
    ask: SourceAxes | None = find("source axes", metadata.format_name)
    axes = None if ask is None else ask(metadata, names, shape, field)
    return None if axes == tuple(range(len(shape))) else axes


def is_in_order(metadata: ArrayMetadata, names: Sequence[str | None] | None, field: str) -> bool:
    """Whether another array of the same shape has the values of an array in the same order."""
    return _source_axes(metadata, names, metadata.grid.shape, field) is None


def as_written_array(x: Any, metadata: ArrayMetadata, field: str) -> dask.array.Array:
    """Make a dask array of what a user has given as the array that was written, or one like it.

    The axes of what was written may have had another order; see `SourceAxes`. They are put into
    the order of the array.
    """
    given = as_source_array(x, field)
    source = given.array
    names = given.known.dimension_names or _names_of(x)
    axes = _source_axes(metadata, names, source.shape, field)
    if axes is not None:
        left_out = [axis for axis in range(source.ndim) if axis not in axes]
        source = source.transpose([*left_out, *(axis for axis in axes if axis is not None)])
        source = source[(0,) * len(left_out)]
        source = source[tuple(np.newaxis if axis is None else slice(None) for axis in axes)]
    return as_source_for(source, metadata, field)


def _names_of(x: Any) -> Sequence[str | None] | None:
    """Names of the dimensions of an open array."""
    found: Sequence[str | None] | None = None
    if isinstance(x, if_loaded("shardwrite.read.array", "ShardedArray")):
        found = x.metadata.document.get("dimension_names")
    return found


def _given(x: Any, field: str) -> SourceArray:
    if isinstance(x, SourceArray):
        return x
    if isinstance(x, dask.array.Array):
        return SourceArray(x)
    packages = {kind.__module__.partition(".")[0] for kind in type(x).__mro__}
    if "xarray" in packages:
        return _of_xarray(x, field)
    if "zarr" in packages:
        return _of_zarr(x, field)
    if isinstance(x, if_loaded("shardwrite.read.array", "ShardedArray")):
        from shardwrite.read.array import as_dask_array  # for arrays that are open

        return SourceArray(as_dask_array(x, x.metadata.grid.shards))
    if isinstance(getattr(x, "metadata", None), SourceMetadata):
        from shardwrite.read.source import as_dask  # for other arrays than dask's

        return SourceArray(as_dask(x), x.metadata)
    if isinstance(x, np.ndarray | np.generic):
        _refuse_masked(x, field)
        return SourceArray(_in_memory(x))
    if is_dask_collection(x):
        return SourceArray(_of_collection(x, field))
    shape = _shape_of(x)
    if shape is not None and hasattr(type(x), "__array__"):
        _refuse_other_blocks(x, field, is_given=True)
    if shape is None or not hasattr(type(x), "__array__"):
        remedy = _OF_PATHS if isinstance(x, str | os.PathLike) else _REMEDY
        if isinstance(x, Mapping) and len(x):  # a group or a file of h5py, among others
            remedy = f"give one of its members, such as {field}[{next(iter(x))!r}]"
        raise _refusal(x, field, "not an array", remedy)
    dtype = getattr(x, "dtype", None)
    dtype = getattr(dtype, "numpy_dtype", dtype)  # as tensorstore calls it
    # The columns of a table are no axis that can be sliced by numbers.
    if isinstance(dtype, np.dtype) and hasattr(x, "__getitem__") and not hasattr(x, "iloc"):
        return SourceArray(_by_slices(x, shape, dtype))
    values = np.asarray(x)
    if values.shape != shape:
        why = f"its shape is {shape}, and numpy makes an array of shape {values.shape} of it"
        raise _refusal(x, field, why, _REMEDY)
    return SourceArray(_in_memory(values))


def _of_xarray(x: Any, field: str) -> SourceArray:
    """A `DataArray` or `Variable`; its dimensions become names of axes."""
    variable = getattr(x, "variable", x)
    if not hasattr(type(variable), "data"):
        first = next(iter(getattr(x, "data_vars", ())), None)
        such = "" if first is None else f", such as {field}[{first!r}]"
        raise _refusal(x, field, "not an array", f"give one of its variables{such}")
    if variable.chunks is None:
        variable = lazy_variable(variable)
    if not isinstance(variable.data, dask.array.Array):
        raise _refusal(variable.data, field, "not an array of dask", "chunk it with dask")
    return SourceArray(
        variable.data,
        known_of_xarray(variable, field),
        _layout_of(variable),
        _not_applied(variable),
    )


def lazy_variable(variable: Any, name: str | None = None) -> Any:
    """A `Variable` of xarray as one of dask, in chunks of its own file; values are not copied.

    - `name`: name of the dask array, for values that do not lie in memory.
    """
    from shardwrite.read.array import merge_chunks  # not for arrays of dask

    preferred = variable.encoding.get("preferred_chunks", {})
    unit = tuple(int(np.max(preferred.get(dim, 1))) for dim in variable.dims)
    sizes = merge_chunks(unit, variable.shape, variable.dtype.itemsize)
    base = variable.to_base_variable()  # that of a coordinate with an index stays in memory
    in_memory = base._in_memory  # noqa: SLF001 (asking for the data would load them)
    if in_memory and isinstance(base.data, np.ndarray):
        return base.copy(deep=False, data=_in_views(base.data, sizes))
    return base.chunk(dict(zip(variable.dims, sizes, strict=True)), name=name)


def known_of_xarray(x: Any, field: str) -> SourceMetadata:
    """What a `DataArray` or `Variable` says besides its values."""
    from shardwrite.read.source import as_attributes  # for arrays of xarray

    names = tuple(name if isinstance(name, str) else None for name in x.dims)
    return SourceMetadata(dimension_names=names, attributes=as_attributes(x.attrs, field))


def _layout_of(variable: Any) -> ArrayOptions:
    """Shards, chunks and compressors of Zarr v3 in the encoding of a `Variable`.

    A checksum is added to the compressors, which those that are used by default have, too.
    """
    encoding, layout = variable.encoding, ArrayOptions()
    shards, chunks = encoding.get("shards"), encoding.get("chunks")
    if isinstance(chunks, tuple) and len(chunks) == variable.ndim and min(chunks, default=0) > 0:
        layout = replace(layout, chunks=chunks)
        if isinstance(shards, tuple) and len(shards) == variable.ndim:
            layout = replace(layout, shards=shards)
    compressors = encoding.get("compressors")
    if isinstance(compressors, tuple | list):
        from zarr.abc.codec import BytesBytesCodec
        from zarr.codecs import Crc32cCodec

        if all(isinstance(codec, BytesBytesCodec) for codec in compressors):
            has_checksum = any(isinstance(codec, Crc32cCodec) for codec in compressors)
            checksum = () if has_checksum else (Crc32cCodec(),)
            layout = replace(layout, compressors=(*compressors, *checksum))
    return layout


def _not_applied(variable: Any) -> tuple[str, ...]:
    """What the encoding of a `Variable` says of how values are packed, and would change them."""
    encoding, dtype = variable.encoding, variable.dtype
    names = [name for name in _OF_VALUES if encoding.get(name) is not None]
    names += [name for name in _OF_TIMES if name in encoding and dtype.kind in "mM"]
    if dtype.kind not in "fc":  # whose missing values are NaN already
        names += [name for name in _MASKS if encoding.get(name) is not None]
    packed = encoding.get("dtype")
    if packed is not None and not is_same_type(np.dtype(packed), dtype):
        names.insert(0, "dtype")
    return (*names, *(["filters"] if encoding.get("filters") else []))


def _of_zarr(x: Any, field: str) -> SourceArray:
    """A `zarr.Array`, read by chunks of whole shards."""
    import zarr

    if not isinstance(x, zarr.Array):
        remedy = "give one of its arrays" if isinstance(x, zarr.Group) else "give a zarr.Array"
        raise _refusal(x, field, "not an array", remedy)
    from shardwrite.read.stored_array import check_names_in  # for arrays of zarr-python

    check_names_in(x)
    dtype = np.dtype(x.dtype)
    from shardwrite.read.source import metadata_of, natural_chunks

    chunks, document = natural_chunks(x), None
    if isinstance(x.store, zarr.storage.LocalStore):  # so one that was replaced is another source
        name = DOCUMENT if x.metadata.zarr_format == 3 else DOCUMENTS_OF_V2[0]
        document = size_and_time(x.store.root / x.path / name)
    array = dask.array.from_array(
        x,
        chunks,
        name=f"array-{tokenize(x, chunks, document)}",
        asarray=True,
        meta=np.empty((0,) * x.ndim, dtype),
        inline_array=True,
    )
    return SourceArray(array, metadata_of(x))


def _in_memory(x: Any) -> dask.array.Array:
    """A numpy array or scalar, in slabs; they are views, and copy nothing."""
    from shardwrite.read.array import merge_chunks  # not for arrays of dask

    values = x if type(x) is np.memmap else np.asarray(x)
    return _in_views(values, merge_chunks((1,) * values.ndim, values.shape, values.dtype.itemsize))


def _in_views(values: npt.NDArray[Any], sizes: Shape) -> dask.array.Array:
    """A dask array of views of a numpy array, with the name that dask gives it.

    The function of dask, `from_array`, copies the whole array first, and a memory map, too.
    """
    core = dask.array.core
    chunks = core.normalize_chunks(sizes, values.shape, dtype=values.dtype)
    token = tokenize(
        values, chunks, False, not hasattr(values, "__array_function__"), True, None, False
    )
    name = f"array-{token}"
    keys = itertools.product([name], *(range(len(along)) for along in chunks))
    views = (values[(*cut, ...)] for cut in core.slices_from_chunks(chunks))
    return dask.array.Array(dict(zip(keys, views, strict=True)), name, chunks, meta=values)


def _by_slices(x: Any, shape: Shape, dtype: np.dtype[Any]) -> dask.array.Array:
    """An object that can be sliced, one slice at a time: it may not be ready for threads."""
    from shardwrite.read.array import merge_chunks  # not for arrays of dask

    unit = getattr(x, "chunks", None)
    if not isinstance(unit, tuple) or not all(isinstance(n, int) for n in unit):
        unit = (1,) * len(shape)
    array: dask.array.Array = dask.array.from_array(
        _Sliceable(x, shape, dtype),
        merge_chunks(unit, shape, dtype.itemsize),
        lock=True,
        fancy=False,
        meta=np.empty((0,) * len(shape), dtype),
    )
    return array


@dataclass(frozen=True, slots=True)
class _Sliceable:
    """An object that can be sliced, with a shape and a dtype of numpy."""

    x: Any
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        return np.asarray(self.x[key])


def _of_collection(x: Any, field: str) -> dask.array.Array:
    """A collection of dask that is no dask array, in its own chunks if it tells them."""
    array: dask.array.Array
    if hasattr(type(x), "to_dask_array"):
        array = x.to_dask_array()
        return array
    shape, dtype = _shape_of(x), getattr(x, "dtype", None)
    if shape is None or not isinstance(dtype, np.dtype):
        raise _refusal(x, field, "a collection of dask without a shape and a dtype", _REMEDY)
    chunks, name = getattr(x, "chunks", None), getattr(x, "name", None)
    if isinstance(name, str) and isinstance(chunks, tuple):
        array = dask.array.Array(x.__dask_graph__(), name, chunks, dtype=dtype)
    else:
        array = dask.array.from_delayed(delayed(np.asarray)(x), shape, dtype=dtype)
    return array


def _shape_of(x: Any) -> Shape | None:
    """Shape of an object, if it has one."""
    shape = getattr(x, "shape", None)
    if not isinstance(shape, tuple) or not all(isinstance(n, int | np.integer) for n in shape):
        return None
    return tuple(int(n) for n in shape)


def _refuse_masked(x: Any, field: str) -> None:
    if isinstance(x, np.ma.MaskedArray):
        raise SpecError(
            "masked values have no stored form",
            field=field,
            value="masked array",
            remedy=f"give them a value: dask.array.ma.filled({field}, value)",
        )


def _refuse_other_blocks(x: Any, field: str, *, is_given: bool = False) -> None:
    """Refuse what does not become an array of numpy, as an empty piece of it shows.

    - `x`: an array without elements, as blocks of a dask array are; or what a user has given.
    """
    reason = ""
    if hasattr(x, "__array__"):
        # Most with a method to become one refuse to do so without it. Tables have another `get`.
        if is_given and (_method_of(x) is None or hasattr(x, "keys")):
            return
        try:
            np.asarray(x[(slice(0, 0),) * len(x.shape)] if is_given else x)
        except (TypeError, RuntimeError, ValueError) as error:
            reason = f" ({type(error).__name__}: {error})"
        else:
            return
    method, what = (
        _method_of(x) or "toarray",
        "it is no array" if is_given else "its chunks are no arrays",
    )
    to_numpy = (
        f"{field}.{method}()"
        if is_given
        else f"{field}.map_blocks(lambda a: a.{method}(), dtype={field}.dtype)"
    )
    raise SpecError(
        f"{what} of numpy{reason}",
        field=field,
        value=type(x).__name__,
        remedy=f"convert {'it' if is_given else 'them'}: {to_numpy}",
    )


def _method_of(x: Any) -> str | None:
    """Method by which an object becomes an array of numpy, in sparse, cupy and scipy."""
    return next((name for name in ("toarray", "todense", "get") if hasattr(x, name)), None)


def _refusal(x: Any, field: str, why: str, remedy: str) -> SpecError:
    # Only the type is shown, since the text of an object may contain credentials.
    return SpecError(why, field=field, value=type(x).__name__, remedy=remedy)
