"""xarray's `to_zarr`, replaced where it would write shards.

Tasks of xarray write chunks of dask arrays. It refuses those that do not fit the shards, or makes
them fit by chunks as large as shards. So a call that writes shards is made here as one run, whose
tasks write whole shards. Its keywords mean what they mean in xarray, or are refused.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import zarr
from zarr.storage import MemoryStore

from shardwrite.datasets.encode import as_dataset, import_xarray, is_tree
from shardwrite.datasets.keywords import PatchedArguments, SizeKeywords, WriteDatasetKeywords
from shardwrite.datasets.planned import store_of
from shardwrite.datasets.write import written
from shardwrite.entry.patch import Instead, Patch, Replacement
from shardwrite.entry.public import SENTENCES, taking
from shardwrite.errors import SpecError
from shardwrite.operations.dask_patch import store_of_mapping
from shardwrite.options import names
from shardwrite.stores.bucket import BucketStore

if TYPE_CHECKING:
    from xarray.backends import ZarrStore

_TAKEN = (
    *("store", "mode", "group", "encoding", "append_dim", "region", "consolidated"),
    *("storage_options", "write_empty_chunks"),
)
"""Parameters of xarray that this package has, too; None means the same."""
_NO_EFFECT = ("safe_chunks", "align_chunks")
"""Parameters by which xarray makes chunks fit; here all chunks fit."""
_OF_THE_METHOD = {*names(WriteDatasetKeywords)} - {*_TAKEN, *names(SizeKeywords)}
"""Keywords that only the method of this package takes."""
_REMEDIES = {
    **SENTENCES,
    "compute": "leave it out; ds.shardwrite.to_zarr(..., compute=False) returns a Delayed, and "
    "readers see the arrays when it has written all of them",
}


def patch_xarray() -> XarrayPatch:
    """Patch `to_zarr` of `Dataset`, `DataArray` and `DataTree` of xarray to write whole shards.

    :func:`shardwrite.write_dataset` then makes each call in which the encoding of any variable has
    ``shards``: in the argument `encoding`, or in the variable's own `encoding`. All other calls
    stay xarray's own.

    Returns
    -------
    XarrayPatch
        The patch. Its method `restore` takes it back; as a context manager it does so at the end
        of the block. The methods are xarray's own again when all patches are taken back.

    Raises
    ------
    SpecError
        If xarray is not installed.

    Notes
    -----
    Keywords mean what they mean in xarray, and the call returns a `ZarrStore`. Sizes in the own
    `encoding` of variables count, and chunks of dask arrays are inner chunks where no others are
    given. A call that writes shards differs from xarray's own in these ways:

    - The chunks of dask arrays need not fit the shards, so `safe_chunks` and `align_chunks` have no
      effect.
    - Inner chunks carry a crc32c, unless `compressors` are given.
    - Readers see nothing before all variables are whole. An interrupted call continues when you
      make it again.
    - With ``mode="w"``, a group that holds anything else is refused.
    - With ``mode="a"``, variables that the store lacks are refused.
    - ``compute=False``, `write_inherited_coords`, `chunkmanager_store_kwargs`, and keywords that
      old versions of xarray have, are refused.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile, xarray
    >>> ds = xarray.Dataset({"t2m": ("time", da.arange(100, chunks=30))})
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> with shardwrite.patch_xarray():
    ...     store = ds.to_zarr(path, encoding={"t2m": {"shards": (40,), "chunks": (8,)}})
    >>> xarray.open_zarr(path)["t2m"].encoding["shards"]
    (40,)
    """
    import_xarray("store")
    return XarrayPatch()


class XarrayPatch(Patch):
    """A patch of xarray that :func:`patch_xarray` has made."""

    @classmethod
    def replacements(cls) -> Iterator[Replacement]:
        """The methods `to_zarr` of all kinds of objects."""
        xarray = import_xarray("store")
        for kind in (xarray.Dataset, xarray.DataArray, xarray.DataTree):
            yield (kind,), "to_zarr", _instead_of_to_zarr


def _instead_of_to_zarr(given: Mapping[str, Any], others: Mapping[str, Any]) -> Instead:
    """What to call instead; None if the call writes no shards.

    - `given`: the parameters that xarray names, as far as they were given.
    - `others`: all other keywords, which a tree hands on.
    """
    call = {**given, **others}
    ds = call.pop("self", None)
    format_ = call.pop("zarr_format", None) or call.pop("zarr_version", None)
    if format_ is None:
        format_ = zarr.config.get("default_zarr_format")
    if format_ != 3:
        return None  # xarray refuses shards in other formats
    encodings = _encodings(ds, call.get("encoding"))
    has_shards = any(each.get("shards") is not None for each in encodings)
    return functools.partial(_write, ds, call) if has_shards else None


def _encodings(ds: Any, encoding: Any) -> Iterator[Mapping[str, Any]]:
    """The encoding of each variable: what a call gives for it, else its own."""
    asked = encoding if isinstance(encoding, Mapping) else {}
    if is_tree(ds):
        for node in ds.subtree:
            yield from _encodings(node.to_dataset(inherit=False), asked.get(node.path))
        return
    own = {name: variable.encoding for name, variable in as_dataset(ds).variables.items()}
    yield from (each for each in {**own, **asked}.values() if isinstance(each, Mapping))


@contextlib.contextmanager
def _naming_the_method() -> Iterator[None]:
    """Have errors about keywords that xarray does not have name the method that takes them."""
    try:
        yield
    except SpecError as error:
        field, remedy = error.fields["field"], error.fields["remedy"]
        if field not in _OF_THE_METHOD:
            raise
        told = f"call ds.shardwrite.to_zarr, which takes {field}, and {remedy}"
        raise SpecError(error.message, **{**error.fields, "remedy": told}) from None


_write_as_xarray: Callable[..., Any] = taking(PatchedArguments)(written)


def _write(ds: Any, call: Mapping[str, Any]) -> ZarrStore:
    """Make a call as one run."""
    from xarray.backends import ZarrStore

    ours = {name: call[name] for name in _TAKEN if call.get(name) is not None}
    if is_tree(ds) and ours.get("consolidated") is True:
        del ours["consolidated"]  # which is the default there
    for name, value in call.items():
        is_default = value is None or value is (name == "compute")
        if name not in (*_TAKEN, *_NO_EFFECT) and not is_default:
            raise SpecError(
                "is not taken by a call that writes shards",
                field=name,
                value=value,
                remedy=_REMEDIES.get(name, "leave it out, or make this call without the patch"),
            )
    writes_empty = ours.get("write_empty_chunks")
    for each in _encodings(ds, ours.get("encoding")) if writes_empty is not None else ():
        if each.get("write_empty_chunks", writes_empty) != writes_empty:
            raise SpecError(
                "the encoding of a variable says otherwise",
                field="write_empty_chunks",
                value=writes_empty,
                remedy="give it in one of both places",
            )
    given = store_of_mapping(ours.pop("store", MemoryStore()))
    store = store_of(given, ours.pop("storage_options", None))
    with _naming_the_method():
        _write_as_xarray(ds, store, **ours, shards=None)
    group = ours.get("group")
    is_bucket = isinstance(store, BucketStore)
    opened = store.as_zarr() if is_bucket else store
    made: ZarrStore = ZarrStore.open_group(opened, mode="r" if is_bucket else "r+", group=group)
    return made
