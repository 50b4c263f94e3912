"""dask's `to_zarr` and `store`, replaced where they would write shards.

Tasks of dask's own functions write chunks of the dask array. Two of them that share a shard read
it, change it and write it, and one of them loses. So a call that writes shards is made here by
:func:`to_sharded_zarr` or :func:`shardwrite.store`, whose tasks write whole shards.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self

import numpy as np
from dask import config

import shardwrite._dask as dask
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.operations.write import store, to_sharded_zarr
from shardwrite.runs.stored_array import empty_after

_LOCK = threading.Lock()
_live: set[DaskPatch] = set()
# For each module and name: the function of dask, and the one of this module.
_replaced: dict[tuple[Any, str], tuple[Callable[..., Any], Callable[..., Any]]] = {}


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
    patch = DaskPatch()
    with _LOCK:
        if not _live:
            _install()
        _live.add(patch)
    return patch


class DaskPatch:
    """A patch of dask that :func:`patch_dask` has made."""

    def restore(self) -> None:
        """Take the patch back. To do so twice changes nothing."""
        with _LOCK:
            if self in _live:
                _live.remove(self)
                if not _live:
                    _uninstall()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()


def _install() -> None:
    """Put functions of this module in the place of dask's, in both modules that name them."""
    core: Any = dask.array.core
    makers: dict[str, Callable[..., Call | StoreCall]] = {
        "to_zarr": Call.of,
        "store": StoreCall.of,
    }
    modules: tuple[Any, ...] = (core, dask.array)
    for name, of in makers.items():
        ours = _in_place_of(getattr(core, name), of)
        for module in modules:
            _replaced[module, name] = (getattr(module, name), ours)
            setattr(module, name, ours)


def _in_place_of(
    original: Callable[..., Any], of: Callable[..., Call | StoreCall]
) -> Callable[..., Any]:
    """A function that makes the calls which write shards, and leaves the others to dask's."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def patched(*arguments: Any, **keywords: Any) -> Any:
        # Others may still hold this function when the patch has been taken back.
        call = of(signature, arguments, keywords) if _live else None
        if call is None or not call.is_ours:
            return original(*arguments, **keywords)
        return call.write()

    return patched


def _uninstall() -> None:
    """Put dask's functions back, unless somebody else has replaced them meanwhile."""
    for (module, name), (original, ours) in _replaced.items():
        if getattr(module, name) is ours:
            setattr(module, name, original)
    _replaced.clear()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `dask.array.to_zarr`, of any version of dask."""

    x: Any  # the array to write
    url: Any  # where to write it
    # The parameters that dask names, such as `component` and `region`, as far as they were given
    given: Mapping[str, Any]
    keywords: Mapping[str, Any]  # all other keywords, which dask hands on to zarr

    @classmethod
    def of(
        cls, signature: inspect.Signature, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Call:
        """Name the arguments of a call as the installed version of dask does."""
        given = dict(signature.bind(*arguments, **keywords).arguments)
        others: dict[str, Any] = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                others = given.pop(name, {})
        # Versions of late 2025 take them in a mapping.
        others = {**(given.pop("zarr_array_kwargs", None) or {}), **others}
        return cls(given.pop("arr"), given.pop("url"), given, others)

    @property
    def is_ours(self) -> bool:
        """Whether the call writes shards."""
        if _is_array(self.url):
            return _has_shards(self.url)
        return self.keywords.get("shards") is not None

    def write(self) -> Any:
        """Make the call by `to_sharded_zarr`."""
        known = inspect.signature(to_sharded_zarr).parameters
        of_array = {field.name for field in fields(ArrayOptions)}
        ours = {name: self.keywords[name] for name in self.keywords if name in known}
        others = {name: self.keywords[name] for name in self.keywords if name not in known}
        if _is_array(self.url):
            region = self.given.get("region")
            ours = {"casting": "same_kind", **ours, "region": ... if region is None else region}
            where = self.url
        else:
            ours.pop("mode", None)  # some versions of dask do not name it
            ours = {"shards": None, "chunks": self._chunks, **ours, **self._how_new}
            where = _store_of(self.url)
            if isinstance(where, str) and ours.get("storage_options") is None:
                ours["storage_options"] = {}  # so that it may be a URL
        of_zarr = {name for name in ours if name in of_array}
        kept = {name: value for name, value in ours.items() if name not in of_zarr}
        compute = self.given.get("compute", True)
        return_stored = self.given.get("return_stored", False)
        done = to_sharded_zarr(
            self.x,
            where,
            compute=compute,
            return_stored=return_stored,
            zarr_array_kwargs={**{name: ours[name] for name in of_zarr}, **others},
            **kept,
        )
        if compute or return_stored or not _stores_as_arrays():
            return done
        return empty_after(done, self.x)

    @property
    def _chunks(self) -> tuple[int, ...]:
        """Shape of an inner chunk, if the call does not say it: a chunk of the dask array."""
        return tuple(max(1, *sizes) for sizes in getattr(self.x, "chunks", ()))

    @property
    def _how_new(self) -> dict[str, Any]:
        """How a new array is begun, from the parameters that dask names."""
        how = {
            name: self.given[name]
            for name in ("component", "storage_options", "region", "overwrite")
            if self.given.get(name) is not None
        }
        opening = self.given.get("zarr_read_kwargs") or {}
        mode = self.keywords.get("mode") or opening.get("mode") or self.given.get("mode", "a")
        if mode in ("r", "r+"):
            raise SpecError(
                "Cannot use this mode to write an array that is new",
                field="mode",
                value=mode,
                remedy='give "w-" or "w", or write into a zarr.Array',
            )
        # dask opens the store with "a", and then creates an array that must not exist.
        return how if mode == "a" else {**how, "mode": mode}


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A call of `dask.array.store`."""

    sources: Sequence[Any]  # the arrays, and where they go
    targets: Sequence[Any]
    given: Mapping[str, Any]  # the other parameters that dask names, as far as they were given
    keywords: Mapping[str, Any]  # all other keywords, which dask hands on to `dask.compute`

    @classmethod
    def of(
        cls, signature: inspect.Signature, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> StoreCall:
        """Name the arguments of a call as the installed version of dask does."""
        given = dict(signature.bind(*arguments, **keywords).arguments)
        others = given.pop("kwargs", {})
        sources, targets = given.pop("sources"), given.pop("targets")
        if isinstance(sources, dask.array.Array):
            sources, targets = [sources], [targets]
        return cls(list(sources), list(targets), given, others)

    @property
    def is_ours(self) -> bool:
        """Whether the call writes shards."""
        are = [_has_shards(target) for target in self.targets]
        if any(are) and not all(are):
            raise SpecError(
                "some of them are arrays of zarr with shards, and others are not",
                field="targets",
                value=[type(target).__name__ for target in self.targets],
                remedy="store those with shards by a call of their own",
            )
        return any(are)

    def write(self) -> Any:
        """Make the call by `shardwrite.store`."""
        compute = self.given.get("compute", True)
        return_stored = self.given.get("return_stored", False)
        regions = self.given.get("regions")
        if regions is None or isinstance(regions, tuple):
            regions = [regions] * len(self.targets)
        others = dict(self.keywords)
        scheduler = others.pop("scheduler", None)
        with config.set({} if scheduler is None else {"scheduler": scheduler}):
            done: Any = store(
                list(self.sources),
                list(self.targets),
                regions=[... if region is None else region for region in regions],
                compute=compute,
                return_stored=return_stored,
                **{"casting": "same_kind", **others},
            )
        if not compute and not return_stored:
            if not _stores_as_arrays():
                return done
            done = [empty_after(done, source) for source in self.sources]
        return done[0] if len(done) == 1 else tuple(done)


def _is_array(target: Any) -> bool:
    """Whether a target is a `zarr.Array`."""
    if type(target).__module__.partition(".")[0] != "zarr":
        return False
    import zarr

    return isinstance(target, zarr.Array)


def _has_shards(target: Any) -> bool:
    """Whether a target is a `zarr.Array` with shards."""
    return _is_array(target) and target.shards is not None


def _store_of(url: Any) -> Any:
    """The store that dask means: a mapping is one of memory, or one of fsspec."""
    if not isinstance(url, MutableMapping):
        return url
    from zarr.storage import FsspecStore, MemoryStore

    if isinstance(url, dict):
        return MemoryStore(url)
    return FsspecStore.from_mapper(url) if hasattr(url, "fs") else url


@functools.cache
def _stores_as_arrays() -> bool:
    """Whether `dask.array.store` returns an array for ``compute=False``, not a `Delayed`."""
    one = dask.array.zeros(1, chunks=1)
    return isinstance(dask.array.core.store(one, np.zeros(1), compute=False), dask.array.Array)
