"""What xarray would write of an object: arrays with their values, and documents of groups.

xarray itself decides what becomes of values, fill values, times, texts and attributes. It is asked
to write into a store in memory, and what it would hand to zarr is kept. Values of dask arrays stay
lazy, so that they are encoded by the tasks which write them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import dask
import numpy as np
from dask.base import tokenize

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document, attributes_of, check_json
from shardwrite.datasets.fits import as_declared, checked
from shardwrite.datasets.layout import ONE_PIECE_NBYTES
from shardwrite.datasets.rounding import bits_by_name, described, rounded
from shardwrite.errors import CodecError, SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.format.node import DOCUMENT
from shardwrite.place.target import resolve_place
from shardwrite.read.stored_array import stored_at
from shardwrite.runs.source_array import lazy_variable
from shardwrite.stores.looking import is_file, is_there, names_in

if TYPE_CHECKING:
    import xarray
    import zarr

    from shardwrite.place.base import Place

_SIZES = ("chunks", "shards", "preferred_chunks")
_CODECS = ("compressors", "filters", "serializer")
_DESCRIPTORS = Path("/proc/self/fd")  # of Linux
_SEPARATORS = {"/": "a slash", "\\": "a backslash"}  # zarr takes the second for the first
# Names under which xarray writes a DataArray that has none, or that of one of its coordinates.
_VARIABLE, _NAME = "__xarray_dataarray_variable__", "__xarray_dataarray_name__"


# ---- Objects of users


@dataclass(frozen=True, slots=True)
class Node:
    """A dataset that becomes one group."""

    path: str  # in the object that a user has given; empty for the object itself
    dataset: xarray.Dataset
    encoding: Mapping[Any, Mapping[str, Any]]  # by variable, as a user has given it
    keep_bits: Mapping[Hashable, int]  # bits of the mantissa of the variables that are rounded

    own_sizes: bool = False  # whether sizes in the encoding of the variables themselves count
    # For a node of a tree, the dataset with the coordinates of the nodes above that it shares
    inherited: xarray.Dataset | None = None

    def sizes(self, name: Hashable) -> Mapping[str, Any]:
        """What decides on the sizes of a variable, before those that all variables have.

        Where own sizes count, chunks of dask are those of the array if there are no others. Sizes
        of another number of dimensions are left from another variable.
        """
        asked = self.encoding.get(name)
        if not self.own_sizes:
            return asked or {}
        variable = self.dataset.variables[name]
        found = dict(variable.encoding if asked is None else asked)
        for key in ("chunks", "shards") if asked is None else ():
            own = found.get(key)
            if not isinstance(own, tuple | list) or len(own) != variable.ndim:
                found.pop(key, None)
        if found.get("chunks") is None and variable.chunks is not None:
            found["chunks"] = tuple(max(1, *each) for each in variable.chunks)
        return found

    def label(self, name: Hashable) -> str:
        """Text that names a variable to people."""
        return f"{self.path}/{name}" if self.path else str(name)

    def into(self, place: Place) -> Node:
        """The node for a group that exists, and may have copies of coordinates that are shared."""
        coords = {} if self.inherited is None else self.inherited.coords
        own = {
            name: coords[name]
            for name in coords
            if name not in self.dataset.variables and place.member(str(name)).has(DOCUMENT)
        }
        return replace(self, dataset=self.dataset.assign_coords(own)) if own else self


def import_xarray(value: str) -> ModuleType:
    """The module of xarray; an error names the value that needs it."""
    if importlib.util.find_spec("xarray") is None:
        remedy = 'give an object of xarray; pip install "shardwrite[xarray]" installs it'
        raise SpecError("xarray is not installed", field="ds", value=value, remedy=remedy)
    return importlib.import_module("xarray")


def nodes_of(given: Any, encoding: Any, keep_bits: Any, *, own_sizes: bool = False) -> list[Node]:
    """The datasets of an object of xarray.

    - `encoding`: by variable; for a `DataTree`, by node and variable.
    - `keep_bits`: a number, or by variable; for a `DataTree`, by node, and that may be by variable.
    """
    xarray = import_xarray(type(given).__name__)
    asked = _mappings(encoding, "encoding")
    if isinstance(given, xarray.Dataset | xarray.DataArray):
        dataset = as_dataset(given)
        bits = bits_by_name(dataset, keep_bits, "keep_bits")
        return [Node("", dataset, _asked_for(dataset, asked), bits, own_sizes)]
    if not isinstance(given, xarray.DataTree):
        remedy = "give a Dataset, DataArray or DataTree of xarray"
        raise SpecError("not of xarray", field="ds", value=type(given).__name__, remedy=remedy)
    of_nodes = (
        keep_bits if isinstance(keep_bits, Mapping) else dict.fromkeys(given.groups, keep_bits)
    )
    for field, names in (("encoding", asked), ("keep_bits", of_nodes)):
        unknown = [name for name in names if name not in given.groups]
        if unknown:
            remedy = f"give nodes of the tree: {', '.join(given.groups)}"
            raise SpecError("no such node", field=field, value=unknown[0], remedy=remedy)
    found = []
    for path, node in given.subtree_with_keys:
        dataset = node.to_dataset(inherit=node is given)  # what is inherited is written once
        own = _mappings(asked.get(node.path), f"encoding[{node.path!r}]")
        bits = bits_by_name(dataset, of_nodes.get(node.path), f"keep_bits[{node.path!r}]")
        name = "" if path == "." else path
        whole = node.to_dataset(inherit=True)
        found.append(Node(name, dataset, _asked_for(dataset, own), bits, own_sizes, whole))
    return found


def is_tree(given: Any) -> bool:
    """Whether an object of xarray, as `nodes_of` takes it, has several nodes."""
    import xarray

    return isinstance(given, xarray.DataTree)


def as_dataset(array: xarray.Dataset | xarray.DataArray) -> xarray.Dataset:
    """The dataset as which xarray writes an array; a dataset itself."""
    import xarray

    if isinstance(array, xarray.Dataset):
        return array
    if array.name is not None and array.name not in array.coords and array.name not in array.dims:
        return array.to_dataset()
    dataset = array.to_dataset(name=_VARIABLE)
    if array.name is not None:
        dataset.attrs[_NAME] = array.name
    return dataset


def _mappings(given: Any, field: str) -> Mapping[Any, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(v, Mapping) for v in given.values()):
        raise SpecError(
            "no mapping of mappings",
            field=field,
            value=given,
            remedy='give for instance {"t2m": {"dtype": "int16", "scale_factor": 0.01}}',
        )
    return given


def _asked_for(dataset: xarray.Dataset, asked: Mapping[Any, Any]) -> Mapping[Any, Any]:
    for name in asked:
        if name not in dataset.variables:
            remedy = f"give variables of the dataset: {', '.join(map(str, dataset.variables))}"
            raise SpecError("no such variable", field="encoding", value=name, remedy=remedy)
    return asked


# ---- What xarray makes of them


@dataclass(frozen=True, slots=True)
class EncodedVariable:
    """A variable as xarray would write it."""

    name: str
    dims: tuple[str, ...]
    values: Any  # an array of numpy or dask
    options: ArrayOptions  # keywords of the new array, without sizes
    encoding: Mapping[str, Any]  # what a user asks for this variable alone


@dataclass(frozen=True, slots=True)
class EncodedNode:
    """A dataset as xarray would write it."""

    variables: tuple[EncodedVariable, ...]
    document: Document  # of the group


def prepared(node: Node, encodings: Mapping[Hashable, Mapping[str, Any]]) -> xarray.Dataset:
    """The dataset of a node, as it is handed to xarray; what xarray could not write is refused.

    - `encodings`: by variable, as far as they are known.
    """
    for name, variable in node.dataset.variables.items():
        _refuse(name, variable, node)
    dataset = _lazy(node)
    told = {
        name: {**encodings.get(name, {}), **node.encoding.get(name, {})}
        for name in dataset.variables
    }
    return rounded(checked(dataset, told), node.keep_bits, told)


def encoded(node: Node) -> EncodedNode:
    """What xarray would write of a dataset."""
    told = described(node.dataset, node.keep_bits, node.encoding)
    node = replace(node, dataset=told)
    dataset = prepared(
        node, {name: node.encoding.get(name, v.encoding) for name, v in told.variables.items()}
    )
    made = written(dataset, node, _dumped)
    refuse_no_json(made.document(""), node.path or "the dataset")
    for name in dataset.variables:
        refuse_no_json(made.document(str(name)), node.label(name))
    variables = tuple(
        EncodedVariable(
            array.path,
            tuple(map(str, dataset.variables[name].dims)),
            as_declared(values, dataset.variables[name]),
            _options(array, made.document(array.path), node, name),
            node.sizes(name),
        )
        for name, (values, array) in zip(dataset.variables, made.in_order(dataset), strict=True)
    )
    return EncodedNode(variables, made.document(""))


def _lazy(node: Node) -> xarray.Dataset:
    """The dataset with large variables as dask arrays, and without sizes of other places.

    Times stay as they are, because xarray chooses their units by their values; so do objects.
    """
    lazy, is_open = dict[Hashable, Any](), cache(_is_open)
    for name, variable in node.dataset.variables.items():
        is_number = variable.dtype.kind in "biufc" and name not in node.dataset.xindexes
        if is_number and variable.chunks is None and variable.nbytes > ONE_PIECE_NBYTES:
            lazy[name] = _chunked(variable, str(name), is_open)
    dataset = node.dataset.assign(lazy)
    for variable in dataset.variables.values():
        kept = {k: v for k, v in variable.encoding.items() if k not in _SIZES}
        variable.encoding = {k: v for k, v in kept.items() if k not in _CODECS or _is_v3(v)}
    return dataset


def _chunked(variable: xarray.Variable, name: str, is_open: _IsOpen) -> xarray.Variable:
    """A variable in chunks of its own file.

    What lies in memory is named by its values, and what lies in a file or a Zarr array by that.
    Anything else has no name that lasts, and so the source of a run is told by its dtype and
    chunks; a text of this form tells so, see `identity_of`.
    """
    in_memory = variable._in_memory  # noqa: SLF001 (asking for the data would load them)
    token = None if in_memory else _token_of_source(variable, is_open) or uuid.uuid4()
    made: xarray.Variable = lazy_variable(variable, None if in_memory else f"{name}-{token}")
    return made


def _token_of_source(variable: xarray.Variable, is_open: _IsOpen) -> str | None:
    """What tells lazy values of a file or a Zarr array from others; None for all other values.

    These are facts about the source, and what xarray does to the values: how it selects and decodes
    them.
    """
    data, layers = variable._data, list[Any]()  # noqa: SLF001 (asking for the data would load them)
    while hasattr(data, "array"):
        layers.append((type(data).__qualname__, _fields(data)))
        data = data.array
    array = getattr(data, "_array", None)
    facts = _facts_of_file(data, is_open) if array is None else _facts_of_array(array)
    if facts is None:
        return None
    try:
        with dask.config.set({"tokenize.ensure-deterministic": True}):
            return str(tokenize(facts, layers))
    except RuntimeError:  # of dask, for what it cannot name
        return None


def _facts_of_file(data: Any, is_open: _IsOpen) -> tuple[Any, ...] | None:
    """Path, size and time of a file of netCDF or HDF5, and the name in it; None for other data.

    None, too, if the file that is open is no longer the one at that path.
    """
    store, name = getattr(data, "datastore", None), getattr(data, "variable_name", None)
    manager: Any = getattr(store, "_manager", None)
    path = getattr(store, "_filename", None) or next(iter(getattr(manager, "_args", ())), None)
    if not (name and manager and isinstance(path, str) and is_file(path)):
        return None
    manager.acquire()  # opens it again if xarray has closed it meanwhile
    path, stat = os.path.realpath(path), os.stat(path)
    if not is_open(path, (stat.st_dev, stat.st_ino)):
        return None
    return path, stat.st_size, stat.st_mtime_ns, getattr(store, "_group", None), name


_IsOpen = Callable[[str, tuple[int, int]], bool]


def _is_open(path: str, file: tuple[int, int]) -> bool:
    """Whether what this process has open of a path is the file there; True if no system tells.

    - `file`: device and number of the file at the path.
    """
    if not is_there(_DESCRIPTORS):
        return True
    is_open = False
    for name in names_in(_DESCRIPTORS):
        try:
            found, opened = os.stat(_DESCRIPTORS / name), os.readlink(_DESCRIPTORS / name)
        except FileNotFoundError:  # closed meanwhile
            continue
        if opened == f"{path} (deleted)":
            return False
        is_open |= (found.st_dev, found.st_ino) == file
    return is_open


def _facts_of_array(array: Any) -> tuple[Any, ...] | None:
    """Place of a Zarr array, and version of its document; None if it lies in memory."""
    import zarr

    if not isinstance(array, zarr.Array):
        return None
    try:
        stored = stored_at(resolve_place(array, None, is_read=True))
    except (SpecError, CodecError):  # zarr-python alone can read it
        return None
    return None if stored.array.store.is_in_memory else (stored.identity,)


def _fields(wrapper: Any) -> list[tuple[str, Any]]:
    """Attributes of a lazy array of xarray, without the array that it wraps."""
    slots = (name for kind in type(wrapper).__mro__ for name in vars(kind).get("__slots__", ()))
    names = {*slots, *getattr(wrapper, "__dict__", {})} - {"array"}
    return [(name, getattr(wrapper, name, None)) for name in sorted(names)]


def _is_v3(codecs: Any) -> bool:
    """Whether codecs of a variable that was read can be those of a new array."""
    from zarr.abc.codec import Codec
    from zarr.codecs import ShardingCodec

    each = codecs if isinstance(codecs, tuple | list) else [codecs]
    return all(isinstance(c, Codec) and not isinstance(c, ShardingCodec) for c in each)


def _refuse(name: Hashable, variable: xarray.Variable, node: Node) -> None:
    """Refuse a variable that xarray would compute or could not name."""
    label = node.label(name)
    for what, text in (("variable", name), *(("dimension", dim) for dim in variable.dims)):
        if not isinstance(text, str) or not text:
            _refuse_name(f"the name of a {what} is no text, in the variable {label!r}", text)
    mark = next((told for sign, told in _SEPARATORS.items() if sign in str(name)), None)
    if mark is not None:
        why = f"the name of the variable {name!r} holds {mark}, so that xarray would not read it"
        _refuse_name(why, name, ", or make a DataTree of it")
    if str(name).startswith("__") and name != _VARIABLE:
        why = f"the name of the variable {name!r} begins with __, as Zarr reserves it"
        _refuse_name(why, name)
    told = f"the variable {label!r} with dimensions {variable.dims}"
    if any(math.isnan(n) for n in variable.shape):
        raise SpecError(
            f"{told} has unknown sizes",
            field="ds",
            value=label,
            remedy="call compute_chunk_sizes() of its dask array first",
        )
    if not isinstance(variable.dtype, np.dtype):
        raise SpecError(
            f"{told} is of {variable.dtype}, a type of pandas that xarray does not write",
            field="ds",
            value=label,
            remedy=f"make it one of numpy, for instance with ds[{name!r}].astype(float)",
        )
    is_time = "calendar" in variable.encoding  # of cftime, as xarray reads it from a file
    if variable.dtype.kind == "O" and variable.chunks is not None and not is_time:
        raise SpecError(
            f"{told} is a dask array of objects, whose type shows only when all of it is computed",
            field="ds",
            value=label,
            remedy="load it first if it is small (ds[name].load()), or convert it, text for "
            "instance with ds[name].astype(numpy.dtypes.StringDType())",
        )


def _refuse_name(why: str, name: Hashable, otherwise: str = "") -> NoReturn:
    raise SpecError(why, field="ds", value=name, remedy=f"rename it with ds.rename{otherwise}")


def refuse_no_json(document: Document, label: str) -> None:
    """Refuse what not every reader of JSON takes in attributes, and zarr would write."""
    for key, value in attributes_of(document).items():
        try:
            check_json({key: value})
        except ValueError as error:
            is_text = isinstance(error, UnicodeError)
            numbers = "holds NaN or an infinite number, and JSON has no such numbers"
            raise SpecError(
                f"the attribute {key!r} of {label!r} {error if is_text else numbers}",
                field="ds",
                value=label,
                remedy="decode it in the encoding that it has, such as latin-1"
                if is_text
                else "remove it, or make it text; missing_value may stand in the encoding of the "
                "variable, in place of its attrs",
            ) from None


class Written:
    """What xarray hands to zarr; it stands for xarray's own writer, which would write it."""

    def __init__(self) -> None:
        from zarr.storage import MemoryStore

        self.documents = dict[str, Any]()
        self.store = MemoryStore(self.documents)
        self.found: dict[str, tuple[Any, zarr.Array[Any]]] = {}
        self.regions: dict[str, tuple[slice, ...]] = {}

    def add(self, source: Any, target: zarr.Array[Any], region: Any = None) -> None:
        """Take an array, as xarray's writer does."""
        self.found[target.path] = source, target
        self.regions[target.path] = region

    def in_order(self, dataset: xarray.Dataset) -> Iterator[tuple[Any, zarr.Array[Any]]]:
        """Values and array of each variable of the dataset."""
        return (self.found[str(name)] for name in dataset.variables)

    def document(self, name: str) -> Document:
        """Document of an array, or of the group for an empty name."""
        key = f"{name}/{DOCUMENT}" if name else DOCUMENT
        document: Document = json.loads(self.documents[key].to_bytes())
        return document


Dump = Callable[["xarray.Dataset", Mapping[Any, Mapping[str, Any]]], "Written"]
"""Function that has xarray write a dataset with some encoding into memory."""


def written(dataset: xarray.Dataset, node: Node, dump: Dump) -> Written:
    """Have xarray write a dataset into memory; the error names the variable that it refuses."""
    try:
        return dump(dataset, node.encoding)
    # xarray and zarr raise many types; each of them means that they cannot write this.
    except Exception as error:
        import xarray

        for name, variable in dataset.variables.items():
            alone = xarray.Dataset({name: variable})
            try:
                dump(alone, {k: v for k, v in node.encoding.items() if k == name})
            except SpecError:
                continue  # of this package, with a remedy of its own
            except Exception as own:  # noqa: BLE001 (raised again with the name of the variable)
                raise refusal(own, node.label(name), variable.dims) from error
        if isinstance(error, SpecError):
            raise
        raise refusal(error, node.path or "the dataset", ()) from error


def refusal(error: Exception, label: str, dims: tuple[Hashable, ...]) -> SpecError:
    """Error of something that xarray refuses to write."""
    told = f" with dimensions {dims}" if dims else ""
    reason = str(error).rstrip(".")
    return SpecError(
        f"xarray cannot write {label!r}{told}: {reason}",
        field="ds",
        value=label,
        remedy="change it, or what encoding says of it, until ds.to_zarr takes it",
    )


def _dumped(dataset: xarray.Dataset, encoding: Mapping[Any, Mapping[str, Any]]) -> Written:
    from xarray.backends import ZarrStore

    made = Written()
    into = ZarrStore.open_group(made.store, mode="w", zarr_format=3, safe_chunks=False)
    own = {
        name: {k: v for k, v in each.items() if k not in _SIZES} for name, each in encoding.items()
    }
    # One element for each chunk fits every array; nothing is written, and sizes come later.
    for name, variable in dataset.variables.items():
        if variable.ndim:
            own.get(name, variable.encoding)["chunks"] = (1,) * variable.ndim
    dataset.dump_to_store(into, writer=made, encoding=own)
    return made


# ---- Keywords of the new arrays


def _options(array: Any, document: Document, node: Node, name: Hashable) -> ArrayOptions:
    """Keywords of a new array that is described as xarray would describe it.

    Codecs that nobody has asked for are those of this package, which add a checksum.
    """
    own = node.encoding.get(name)
    asked = node.dataset.variables[name].encoding if own is None else own
    given: Any = asked.get("compressors", "auto")
    is_chosen = not isinstance(given, str) and (own is not None or _is_v3(given))
    compressors: Any = [codec.to_dict() for codec in array.compressors] if is_chosen else "auto"
    if is_chosen and own is None and "crc32c" not in [codec["name"] for codec in compressors]:
        compressors.append({"name": "crc32c"})
    return ArrayOptions(
        compressors=compressors,
        filters=[codec.to_dict() for codec in array.filters],
        serializer=array.serializer.to_dict(),
        fill_value=array.fill_value,
        chunk_key_encoding=document["chunk_key_encoding"],
        dimension_names=document.get("dimension_names"),
        attributes=document["attributes"],
    )
