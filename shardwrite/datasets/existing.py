"""What xarray would write into a group that exists: values for regions of its arrays.

xarray is asked as in `encode`. The store in memory has the documents of the group that exists, and
of its chunks only those which xarray looks at. So the encoding of the store is used, and what
xarray refuses is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.datasets.encode import (
    Node,
    Written,
    encoded,
    prepared,
    refusal,
    refuse_no_json,
    written,
)
from shardwrite.datasets.fits import OF_TIMES, as_declared, have_same_units
from shardwrite.datasets.keywords import Call
from shardwrite.datasets.rounding import refuse_other_rounding
from shardwrite.datasets.steps import Index, Overlap, overlap
from shardwrite.errors import SpecError
from shardwrite.format.metadata import metadata_of_document
from shardwrite.format.node import DOCUMENT, group_document, kind_of_document, with_attributes
from shardwrite.place.base import Place
from shardwrite.place.target import document_of
from shardwrite.read.source import unmasked_value
from shardwrite.stores.looking import parse_document, read_limit

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, slots=True)
class Values:
    """Values of a variable, as xarray would write them into an array that exists."""

    path: str  # in the object that a user has given
    dims: tuple[str, ...]
    values: Any  # an array of numpy or dask
    region: tuple[slice, ...]  # where they go; along the dimension of an append it has no meaning
    axis: int | None  # the axis along which they are appended
    is_sharded: bool

    @property
    def is_empty(self) -> bool:
        """Whether no element is written, and no step appended."""
        shape = self.values.shape
        return not (math.prod(shape) if self.axis is None else shape[self.axis])


@dataclass(frozen=True, slots=True)
class ValuesOfNode:
    """Values of a dataset, and the document that its group gets."""

    path: str  # in the object that a user has given
    variables: Sequence[Values]
    document: Document
    region: Mapping[Any, slice]  # where they go, as xarray has found it
    overlap: Overlap | None = None  # what is wrong with the steps of an append
    # For an append, the number of steps of the store, and of the dataset
    length: int = 0
    n_steps: int = 0

    @property
    def written(self) -> Sequence[Values]:
        """Those with an element that is written, or a step that is appended."""
        return [values for values in self.variables if not values.is_empty]

    def repeated(self, other: Overlap) -> Overlap | None:
        """What is wrong with the steps, if those of another node of the call are there already.

        A node may inherit its steps, or have none. Then the other ones tell.
        """
        if self.overlap is not None or not self.n_steps:
            return self.overlap
        return replace(other, length=self.length, n_steps=self.n_steps)


def call_of_node(call: Call, node: Node, above: Mapping[Any, slice]) -> Call | None:
    """The call for one node of a tree alone; None if it is left out.

    One without the dimension of an append has nothing to append. Its values are written again, as
    those of variables without that dimension are.

    - `above`: where the nodes above it go, by dimension. A node whose coordinate is theirs goes to
      the same place.
    """
    if call.region is not None:
        return replace(call, region=_region_of(node, call.region, above))
    if call.append_dim is None or call.append_dim in node.dataset.dims:
        return call
    return None if call.mode == "a-" else replace(call, append_dim=None)


def _region_of(node: Node, region: Any, above: Mapping[Any, slice]) -> Mapping[Any, Any]:
    """The part of a region that is about a node of a tree."""
    dims, own = node.dataset.dims, node.dataset.variables
    asked = region if isinstance(region, Mapping) else dict.fromkeys(dims, region)
    found = {dim: where for dim, where in asked.items() if dim in dims}
    if own and not found:
        raise SpecError(
            f"the variables of the node {node.path or '/'!r} have none of the dimensions of the "
            "region",
            field="region",
            value=region,
            remedy="leave the node out, or its variables",
        )
    return {
        dim: above.get(dim, where) if isinstance(where, str) and dim not in own else where
        for dim, where in found.items()
    }


def refuse_tree(nodes: Sequence[Node], documents: Mapping[str, Document], call: Call) -> None:
    """Refuse a tree that does not go into a group; of what lies below it, documents are given."""
    is_fixed = call.mode == "r+"
    for node in nodes:
        is_group = kind_of_document(documents.get(node.path, {})) == "group"
        if (node.dataset.variables or is_fixed) and node.path and not is_group:
            raise SpecError(
                f"the store has no group {node.path!r}",
                field="ds",
                value=node.path,
                remedy="leave the node out, or write it first, with group=",
            )
    region = call.region if isinstance(call.region, Mapping) else {}
    asked = [("region", dim) for dim in region]
    asked += [] if call.append_dim is None else [("append_dim", call.append_dim)]
    for field, dim in asked:
        if all(dim not in node.dataset.dims for node in nodes):
            raise SpecError(
                "no node of the tree has this dimension",
                field=field,
                value=dim,
                remedy="give a dimension of its variables",
            )


def refuse_left_out(
    nodes: Sequence[Node], place: Place, documents: Mapping[str, Document], dim: Any
) -> None:
    """Refuse an append after which an array that it leaves out would be shorter than others.

    All arrays of a group grow together. A group without a coordinate of the steps has those of the
    group above it, as xarray opens it. So they grow together, too: otherwise xarray would not open
    them as one tree any more. Groups that are of other lengths now are left alone.

    - `place`: where the group of the first node lies; the others lie in it.
    - `documents`: what lies below it, by path.
    """
    growing = [node for node in nodes if node.dataset.sizes.get(dim)]
    own = {node.label(name) for node in nodes for name in node.dataset.variables}
    for node in growing:
        length = _shortest(_arrays_of(documents, node.path), dim)
        for path, document in documents.items():
            if path in own or kind_of_document(document) != "array":
                continue
            group = path.rpartition("/")[0]
            upper, lower = sorted((group, node.path), key=len)
            if group == node.path and dim in _dims(document):
                raise _shorter(path, dim, *_OF_THIS_GROUP)
            is_shared = is_in(lower, upper) and not _has_steps(documents, upper, lower, dim)
            if is_shared and group != node.path and length in _lengths(document, dim):
                raise _shorter(path, dim, *_OF_ANOTHER_GROUP)
        if not _has_steps(documents, None, node.path, dim):
            _refuse_shorter_above(place, dim, length)


def _has_steps(documents: Mapping[str, Document], upper: str | None, lower: str, dim: Any) -> bool:
    """Whether a group, or one above it up to another, has a coordinate of the steps.

    - `upper`: the group above, which does not count itself; None to count all.
    """
    group: str | None = lower
    while group is not None and group != upper:
        if _dims(documents.get(f"{group}/{dim}".lstrip("/"), {})) == (dim,):
            return True
        group = group.rpartition("/")[0] if group else None
    return False


def _refuse_shorter_above(place: Place, dim: Any, length: int) -> None:
    """Refuse steps that a group above the place has, if they are of the same length."""
    for group in place.groups_above():
        data = group.member(str(dim)).read_if_there(DOCUMENT)
        document = {} if data is None else parse_document(data, f"{group.label}/{dim}/{DOCUMENT}")
        if _dims(document) == (dim,):
            if length in _lengths(document, dim):
                raise _shorter(group.member(str(dim)).label, dim, *_OF_ANOTHER_GROUP)
            return


def _shorter(path: str, dim: Any, why: str, remedy: str) -> SpecError:
    """Error of an array of the store that an append leaves out."""
    told = f"the store has {path!r} along {dim!r}, too, and {why}"
    return SpecError(told, field="ds", value=path, remedy=remedy)


_OF_THIS_GROUP = (
    "the dataset lacks it, so that it would be shorter than the others",
    "add it to the dataset",
)
_OF_ANOTHER_GROUP = (
    "it would be shorter, so that xarray would not open both groups as a tree",
    'append both in one call, as a tree: xarray.DataTree.from_dict({"/": ds, "/group": other})',
)


def is_in(path: str, group: str) -> bool:
    """Whether a group is another one, or lies in it."""
    return not group or path == group or path.startswith(f"{group}/")


def values_into(
    node: Node, place: Place, documents: Mapping[str, Document], call: Call
) -> ValuesOfNode:
    """What xarray would write of a dataset into the group at a place.

    - `documents`: what lies below the first node of the call, by path.
    """
    arrays = _with_units_of_bounds(_arrays_of(documents, node.path), node.dataset)
    if not node.dataset.variables:  # of a tree
        return ValuesOfNode(node.path, (), encoded(node).document, {})
    refuse_other_rounding(node.dataset, node.keep_bits, arrays)
    dataset = prepared(node, _encodings(node, arrays))
    store = _Store(place, _without_new_steps(arrays, call.append_dim))
    dataset, region = _placed(dataset, node, store, call)
    dim: Any = call.append_dim
    wrong = None
    length, n_steps = store.size(dim), node.dataset.sizes.get(dim, 0)
    if dim in arrays:
        wrong = overlap(node.dataset, dim, length, partial(store.steps, dim))
    made = written(dataset, node, partial(_dumped, store, call, region, node))
    refuse_no_json(made.document(""), node.path or "the dataset")
    found = tuple(_values(dataset, node, made, arrays, dim))
    return ValuesOfNode(node.path, found, made.document(""), region or {}, wrong, length, n_steps)


def _arrays_of(documents: Mapping[str, Document], group: str) -> dict[str, Document]:
    """Documents of the arrays that lie in a group, by their names."""
    each = ((path.rpartition("/"), document) for path, document in documents.items())
    return {
        name: document
        for (above, _, name), document in each
        if above == group and kind_of_document(document) == "array"
    }


def _encodings(node: Node, arrays: Mapping[str, Document]) -> Mapping[Hashable, Mapping[str, Any]]:
    """How numbers and times are stored: units, packing, fill values and dtypes."""
    found: dict[Hashable, Mapping[str, Any]] = {}
    for name, variable in node.dataset.variables.items():
        document = arrays.get(str(name))
        if document is None or variable.dtype.kind not in "biufcmMO":
            continue
        dtype, told = metadata_of_document(document).dtype, dict(attributes_of(document))
        if "_FillValue" in told:
            told["_FillValue"] = unmasked_value(told["_FillValue"], dtype)
        found[name] = {**told, "dtype": dtype}
    return found


def _with_units_of_bounds(
    arrays: Mapping[str, Document], dataset: xarray.Dataset
) -> Mapping[str, Document]:
    """The documents, where bounds of times have the units of these, which CF lets them leave out.

    Those of bounds that get numbers stay as they are.
    """
    made = dict(arrays)
    for document in arrays.values():
        times = attributes_of(document)
        name, is_of_times = str(times.get("bounds")), " since " in str(times.get("units"))
        variable = dataset.variables.get(name) if is_of_times and name in arrays else None
        if variable is not None and variable.dtype.kind in "MO":
            units = {key: times[key] for key in OF_TIMES if key in times}
            made[name] = with_attributes(arrays[name], {**units, **attributes_of(arrays[name])})
    return made


def _dims(document: Document) -> tuple[Any, ...]:
    return tuple(document.get("dimension_names") or ())


def _lengths(document: Document, dim: Any) -> list[int]:
    """Length of an array along each axis of that name; none for None."""
    pairs = zip(document["shape"], _dims(document), strict=False)
    return [n for n, name in pairs if dim is not None and name == dim]


def _shortest(arrays: Mapping[str, Document], dim: Any) -> int:
    """The shortest length of all arrays along a dimension."""
    return min((n for document in arrays.values() for n in _lengths(document, dim)), default=0)


def _without_new_steps(arrays: Mapping[str, Document], dim: Any) -> dict[str, Document]:
    """The documents, with one length along a dimension: the shortest of all.

    An append that was interrupted may have made some of the arrays longer already.
    """
    shortest, made = _shortest(arrays, dim), {}
    for name, document in arrays.items():
        pairs = zip(document["shape"], _dims(document), strict=False)
        shape = [shortest if dim is not None and own == dim else n for n, own in pairs]
        made[name] = {**document, "shape": shape} if _dims(document) else document
    return made


class _Store:
    """A store in memory with the documents of a group, and the chunks that xarray looks at."""

    def __init__(self, place: Place, arrays: Mapping[str, Document]) -> None:
        self._place, self._arrays = place, arrays
        group = document_of(place)
        attributes = {"attributes": attributes_of(group)}
        self._group: Document = {**group_document(), **attributes}
        self._read = cache(self._read_chunk)

    def size(self, dim: Any) -> int:
        """Number of steps along a dimension; 0 without one."""
        return _shortest(self._arrays, dim)

    def steps(self, name: str, like: Index, is_whole: bool) -> Index:
        """Steps of the store, decoded as others are: all, or those in the first and last shard."""
        import xarray

        length = self.size(name)
        shard = length if is_whole else metadata_of_document(self._arrays[name]).grid.shards[0]
        begin = (length - 1) // shard * shard
        made = self.filled([name] if is_whole else ())
        opened = xarray.backends.ZarrStore.open_group(made.store, mode="r")
        stored: xarray.Variable = opened.open_store_variable(name)
        is_of_cf = isinstance(like, xarray.CFTimeIndex)
        decoded = xarray.conventions.decode_cf_variable(
            name,
            stored,
            concat_characters=False,  # a step of one byte is no character of a longer one
            decode_times=xarray.coders.CFDatetimeCoder(use_cftime=is_of_cf or None),
            decode_timedelta=like.dtype.kind == "m",
        )
        parts = [decoded[: min(shard, length)]] if begin else []
        joined: xarray.Variable = xarray.concat(
            [xarray.DataArray(each) for each in (*parts, decoded[begin:])], name
        ).variable
        return joined.to_index()

    def filled(self, whole: Collection[str] = ()) -> Written:
        """What xarray may write into.

        - `whole`: names of arrays that xarray reads. Of other coordinates, it reads the first and
          the last time.
        """
        from zarr.buffer.cpu import Buffer

        made = Written()
        for name, document in (("", self._group), *self._arrays.items()):
            key = f"{name}/{DOCUMENT}" if name else DOCUMENT
            made.documents[key] = Buffer.from_bytes(json.dumps(document).encode())
        for name, document in self._arrays.items():
            for key, data in self._chunks(name, document, is_whole=name in whole):
                made.documents[f"{name}/{key}"] = Buffer.from_bytes(data)
        return made

    def opened(self, made: Written, call: Call, region: Any, dataset: xarray.Dataset) -> Any:
        """The store of xarray, in which it finds what is in memory.

        It refuses times that are no whole numbers of the units of the array. xarray would encode
        them with other units, and leave those of the array as they are.
        """
        from xarray.backends import ZarrStore

        arrays = self._arrays

        class Checking(ZarrStore):
            def set_variables(self, variables: Any, *rest: Any, **how: Any) -> None:
                for name, variable in variables.items():
                    there = attributes_of(arrays.get(name, {}))
                    is_time = dataset.variables[name].dtype.kind in "mMO"
                    has_times = is_time or _has_times(there)
                    if has_times and not have_same_units(there, variable.attrs):
                        raise _other_units(name, variable.attrs, there, is_time=is_time)
                super().set_variables(variables, *rest, **how)

        mode: Any = call.mode
        dim = call.append_dim
        return Checking.open_group(
            made.store, mode=mode, append_dim=dim, write_region=region, safe_chunks=False
        )

    def _chunks(
        self, name: str, document: Document, *, is_whole: bool
    ) -> Iterator[tuple[str, bytes]]:
        if not is_whole and _dims(document) != (name,):
            return
        metadata = metadata_of_document(document)
        n, limit = metadata.grid.n_shards, max(read_limit(), 2 * metadata.plain_nbytes)
        for rank in range(n) if is_whole else sorted({0, n - 1} if n else ()):
            key = metadata.key_of_rank(rank)
            data = self._read(name, key, limit)
            if data is not None:
                yield key, data

    def _read_chunk(self, name: str, key: str, limit: int) -> bytes | None:
        return self._place.member(name).store.read_whole(key, limit)


def _has_times(attributes: Document) -> bool:
    """Whether an array has times, or durations as xarray marks them."""
    is_duration = str(attributes.get("dtype")).startswith("timedelta64")
    return is_duration or " since " in str(attributes.get("units"))


def _other_units(
    name: str, own: Mapping[str, Any], there: Mapping[str, Any], *, is_time: bool
) -> SpecError:
    """Error of values that would mean other times in an array that exists."""
    what = "the values need units" if is_time else "the values are numbers with units"
    return SpecError(
        f"{what} {own.get('units')!r}, and {name!r} of the store has {there.get('units')!r}",
        field="ds",
        value=name,
        remedy="round the times to the units of the store, or make the store again with units in "
        "encoding that hold all times"
        if is_time
        else "give times, or numbers whose attributes have these units",
    )


def _placed(
    dataset: xarray.Dataset, node: Node, store: _Store, call: Call
) -> tuple[xarray.Dataset, Any]:
    """The dataset without what a region leaves out, and the slices of the region."""
    region = dict(call.region) if isinstance(call.region, Mapping) else call.region
    asked = region if isinstance(region, Mapping) else dict.fromkeys(dataset.dims, region)
    whole = [str(dim) for dim, where in asked.items() if isinstance(where, str)]
    label = node.path or "the dataset"
    for dim in whole:
        # xarray would write them to the beginning.
        if dim not in dataset.variables and 0 < dataset.sizes.get(dim, 0) < store.size(dim):
            raise SpecError(
                f"{label!r} has no coordinate {dim!r}, so that nothing tells where its steps go",
                field="region",
                value=call.region,
                remedy=f"give it one, or give a slice, such as {{{dim!r}: slice(24, 48)}}",
            )
    into = store.opened(store.filled(whole), call, region, dataset)
    # xarray raises many types; each of them means that it cannot write this.
    try:
        dataset = into._validate_and_autodetect_region(dataset)  # noqa: SLF001 (nothing else does)
    except Exception as error:
        raise SpecError(
            f"xarray finds no such place for {label!r}: {str(error).rstrip('.')}",
            field="region",
            value=call.region,
            remedy="give slices of dimensions of the dataset; or steps that the store has, one "
            "after the other",
        ) from error
    try:
        into._validate_encoding(node.encoding)  # noqa: SLF001
    except Exception as error:
        raise refusal(error, label, ()) from error
    return dataset, into._write_region  # noqa: SLF001


def _dumped(
    store: _Store,
    call: Call,
    region: Any,
    node: Node,
    dataset: xarray.Dataset,
    encoding: Mapping[Any, Mapping[str, Any]],
) -> Written:
    made = store.filled()
    into = store.opened(made, call, region, dataset)
    unknown = [name for name in dataset.variables if str(name) not in into.array_keys()]
    if unknown and call.mode != "r+":  # which xarray refuses itself
        raise SpecError(
            f"the store has no variable {node.label(unknown[0])!r}",
            field="ds",
            value=node.label(unknown[0]),
            remedy="leave it out, or add it to the store with to_zarr of xarray first",
        )
    dataset.dump_to_store(into, writer=made, encoding=encoding)
    return made


def _values(
    dataset: xarray.Dataset,
    node: Node,
    made: Written,
    arrays: Mapping[str, Document],
    append_dim: Any,
) -> Iterator[Values]:
    """Values of each variable that xarray writes."""
    for name in [str(name) for name in dataset.variables if str(name) in made.found]:
        (values, _), document = made.found[name], arrays[name]
        dims = _dims(document)
        yield Values(
            node.label(name),
            tuple(map(str, dims)),
            as_declared(values, node.dataset.variables[name]),
            made.regions[name],
            dims.index(append_dim) if append_dim in dims else None,
            metadata_of_document(document).is_sharded,
        )
