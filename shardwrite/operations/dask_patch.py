"""dask's `to_zarr` and `store`, replaced where they would write shards.

Tasks of dask's own functions write chunks of the dask array. Two of them that share a shard read
it, change it and write it, and one of them loses. So a call that writes shards is made here by
:func:`to_sharded_zarr` or :func:`shardwrite.store`, whose tasks write whole shards.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import fields
from typing import Any

import numpy as np
from dask import config

import shardwrite._dask as dask
from shardwrite.entry.patch import Instead, Patch, Replacement
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.operations.write import store, to_sharded_zarr
from shardwrite.runs.stored_array import empty_after


def patch_dask() -> DaskPatch:
    """Patch `dask.array.to_zarr`, `dask.array.store` and both methods to write whole shards.

    :func:`to_sharded_zarr` or :func:`shardwrite.store` then makes each call that writes shards: a
    call with ``shards=``, or one that writes into a `zarr.Array` with shards. All other calls stay
    dask's own.

    Returns
    -------
    DaskPatch
        The patch. Its method `restore` takes it back; as a context manager it does so at the end
        of the block. The function is dask's own again when all patches are taken back.

    Notes
    -----
    A call that writes shards then differs from dask's own in five ways:

    - The chunks of the dask array need not fit the shards, and it is never rechunked.
    - Inner chunks carry a crc32c, unless `compressors` are given as a list or as codecs.
    - With ``compute=True``, the call returns a `WriteResult`; `dask.array.store` returns a tuple of
      them if there are several arrays.
    - A cast that loses more than precision is an error, unless ``casting="unsafe"`` is given.
    - An interrupted call continues when you make it again.

    You can also give keywords of :func:`to_sharded_zarr`, such as `source_id`. Without `chunks`,
    an inner chunk is a chunk of the dask array, as in dask.

    Targets of one call of `dask.array.store` must all be arrays of zarr with shards, or none of
    them. A `lock` has no effect, since no two tasks write the same shard. Of the keywords for
    `dask.compute`, `scheduler` is taken.

    If you keep a reference to dask's function from before the patch, it stays dask's own.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(100, chunks=30); path = tempfile.mkdtemp() + "/x.zarr"
    >>> with shardwrite.patch_dask():
    ...     result = x.to_zarr(path, shards=(40,), chunks=(8,))
    >>> result.n_shards
    3
    """
    return DaskPatch()


class DaskPatch(Patch):
    """A patch of dask that :func:`patch_dask` has made."""

    @classmethod
    def replacements(cls) -> Iterator[Replacement]:
        """Functions of this module for dask's, in both modules that name them."""
        core: Any = dask.array.core
        yield (core, dask.array), "to_zarr", instead_of_to_zarr
        yield (core, dask.array), "store", _instead_of_store


# ---- Calls of `dask.array.to_zarr`, of any version of dask


def instead_of_to_zarr(given: Mapping[str, Any], others: Mapping[str, Any]) -> Instead:
    """What to call instead; None if the call writes no shards.

    - `given`: the parameters that dask names, as far as they were given.
    - `others`: all other keywords, which dask hands on to zarr.
    """
    # Versions of late 2025 take them in a mapping.
    keywords = {**(given.get("zarr_array_kwargs") or {}), **others}
    if not writes_shards(given["url"], keywords):
        return None
    return functools.partial(write_to_zarr, given["arr"], given["url"], given, keywords)


def writes_shards(url: Any, keywords: Mapping[str, Any]) -> bool:
    """Whether a call writes shards."""
    return _has_shards(url) if _is_array(url) else keywords.get("shards") is not None


def write_to_zarr(x: Any, url: Any, given: Mapping[str, Any], keywords: Mapping[str, Any]) -> Any:
    """Make a call by `to_sharded_zarr`."""
    parameters = inspect.signature(to_sharded_zarr).parameters
    of_array = {field.name for field in fields(ArrayOptions)}
    ours = {name: keywords[name] for name in keywords if name in parameters}
    others = {name: keywords[name] for name in keywords if name not in parameters}
    if _is_array(url):
        region = given.get("region")
        ours = {"casting": "same_kind", **ours, "region": ... if region is None else region}
        where = url
    else:
        ours.pop("mode", None)  # some versions of dask do not name it
        # An inner chunk is a chunk of the dask array, if the call does not say it.
        chunks = tuple(max(1, *sizes) for sizes in getattr(x, "chunks", ()))
        ours = {"shards": None, "chunks": chunks, **ours, **_how_new(given, keywords)}
        where = store_of_mapping(url)
        if isinstance(where, str) and ours.get("storage_options") is None:
            ours["storage_options"] = {}  # so that it may be a URL
    of_zarr = {name: ours[name] for name in ours if name in of_array}
    rest = {name: ours[name] for name in ours if name not in of_array}
    compute, return_stored = given.get("compute", True), given.get("return_stored", False)
    done = to_sharded_zarr(
        x,
        where,
        compute=compute,
        return_stored=return_stored,
        zarr_array_kwargs={**of_zarr, **others},
        **rest,
    )
    if compute or return_stored or not _stores_as_arrays():
        return done
    return empty_after(done, x)


def _how_new(given: Mapping[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """How a new array is begun, from the parameters that dask names."""
    how = {
        name: given[name]
        for name in ("component", "storage_options", "region", "overwrite")
        if given.get(name) is not None
    }
    opening = given.get("zarr_read_kwargs") or {}
    mode = keywords.get("mode") or opening.get("mode") or given.get("mode", "a")
    if mode in ("r", "r+"):
        raise SpecError(
            "Cannot use this mode to write an array that is new",
            field="mode",
            value=mode,
            remedy='give "w-" or "w", or write into a zarr.Array',
        )
    # dask opens the store with "a", and then creates an array that must not exist.
    return how if mode == "a" else {**how, "mode": mode}


# ---- Calls of `dask.array.store`


def _instead_of_store(given: Mapping[str, Any], others: Mapping[str, Any]) -> Instead:
    """What to call instead; None if no target has shards.

    - `others`: keywords that dask hands on to `dask.compute`.
    """
    sources, targets = given["sources"], given["targets"]
    if isinstance(sources, dask.array.Array):
        sources, targets = [sources], [targets]
    sources, targets = list(sources), list(targets)
    are_ours = [_has_shards(target) for target in targets]
    if any(are_ours) and not all(are_ours):
        raise SpecError(
            "some of them are arrays of zarr with shards, and others are not",
            field="targets",
            value=[type(target).__name__ for target in targets],
            remedy="store those with shards by a call of their own",
        )
    return functools.partial(_store, sources, targets, given, others) if any(are_ours) else None


def _store(
    sources: list[Any], targets: list[Any], given: Mapping[str, Any], others: Mapping[str, Any]
) -> Any:
    """Make a call by `shardwrite.store`."""
    compute, return_stored = given.get("compute", True), given.get("return_stored", False)
    regions = given.get("regions")
    if regions is None or isinstance(regions, tuple):
        regions = [regions] * len(targets)
    keywords = {"casting": "same_kind", **others}
    scheduler = keywords.pop("scheduler", None)
    with config.set({} if scheduler is None else {"scheduler": scheduler}):
        done: Any = store(
            sources,
            targets,
            regions=[... if region is None else region for region in regions],
            compute=compute,
            return_stored=return_stored,
            **keywords,
        )
    if not compute and not return_stored:
        if not _stores_as_arrays():
            return done
        done = [empty_after(done, source) for source in sources]
    return done[0] if len(done) == 1 else tuple(done)


# ---- Targets


def _is_array(target: Any) -> bool:
    """Whether a target is a `zarr.Array`."""
    if type(target).__module__.partition(".")[0] != "zarr":
        return False
    import zarr

    return isinstance(target, zarr.Array)


def _has_shards(target: Any) -> bool:
    """Whether a target is a `zarr.Array` with shards."""
    return _is_array(target) and target.shards is not None


def store_of_mapping(url: Any) -> Any:
    """The store that dask and xarray mean: a mapping is one of memory, or one of fsspec."""
    if not isinstance(url, MutableMapping):
        return url
    from zarr.storage import FsspecStore, MemoryStore

    if isinstance(url, dict):
        return MemoryStore(url)
    return FsspecStore.from_mapper(url) if hasattr(url, "fs") else url


@functools.cache
def _stores_as_arrays() -> bool:
    """Whether `dask.array.store` returns an array for ``compute=False``, not a `Delayed`."""
    zero = dask.array.zeros(1, chunks=1)
    return isinstance(dask.array.core.store(zero, np.zeros(1), compute=False), dask.array.Array)
