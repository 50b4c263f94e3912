"""Which arrays a source reads, as far as its graph shows, and whether a run is to change one.

Everything that tasks are given is looked at: arguments, containers, what a function has closed
over, and the attributes of objects. Blockwise layers are not made into tasks for that. What a
function opens itself is not seen, unless it is a function that opens Zarr arrays.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import numpy as np
from dask.base import is_dask_collection
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer
from dask.task_spec import Alias, DataNode, Task, TaskRef

from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.errors import JournalError, SpecError
from shardwrite.journal.receipt import read_receipt
from shardwrite.place.target import resolve_place
from shardwrite.runs.array_plan import ArrayChunks
from shardwrite.runs.job import Job, ReadsPlaces
from shardwrite.stores.base import Store
from shardwrite.stores.looking import is_bucket_url
from shardwrite.stores.opening import open_store

if TYPE_CHECKING:
    from shardwrite.runs.session import Session

# Objects of users are looked into, but not a whole program that hangs on one of them.
_MOST_OBJECTS = 20_000
_PLAIN = frozenset(
    {bool, bytes, complex, float, int, slice, str, type, Alias, TaskRef, np.ndarray, np.dtype}
    | {type(None), type(...), types.BuiltinFunctionType, types.ModuleType, np.ufunc}
)
# Their objects hold no array that a task reads, or hold what is written.
_OWN = tuple(f"shardwrite.{name}" for name in ("write", "stores", "place", "journal"))
_CLOSED = (
    "asyncio",
    "concurrent",
    "distributed",
    "logging",
    "numpy",
    "pandas",
    "threading",
    "zarr",
)
_OPENERS = frozenset({"h5py", "xarray", "zarr"})
# Kinds of obstore for the protocols of fsspec, and the schemes of URLs that mean the same.
_BUCKETS = {"s3": "S3Store", "s3a": "S3Store", "gs": "GCSStore", "gcs": "GCSStore"}
_BUCKETS |= {"az": "AzureStore", "abfs": "AzureStore", "abfss": "AzureStore"}


@dataclass(frozen=True, slots=True)
class _ReadPlace:
    """A place that something in a graph reads."""

    # What holds the objects: empty for the directories of this machine, ``"*"`` if unknown
    service: str
    path: str  # path of the objects there
    kind: str = "array"  # A group is read with all that lies in it, and a file may lie in an array

    def touches(self, target: _ReadPlace) -> bool:
        """Whether it reads the array at another place."""
        if self.service != target.service and "*" not in (self.service, target.service):
            return False
        if self.path == target.path or (not self.service and _is_same_file(self.path, target.path)):
            return True
        if self.kind == "file":
            return _is_below(self.path, target.path)
        return self.kind == "group" and _is_below(target.path, self.path)


def check_not_read(jobs: Sequence[Job]) -> None:
    """Refuse to change an array that a source reads.

    An interrupted run would read again what it has changed before. An array in a bucket that is
    replaced is hidden before the source is read, and would read as its fill value. Updates whose
    values are kept first may read what such updates change.
    """
    changed = [job for job in jobs if job.options.mode in ("w", "r+") or _is_public(job)]
    read = [(job, places) for job in jobs if changed and (places := _places_read(job))]
    is_known_again = all(job.plan.source.is_stable for job in jobs)
    for job in changed if read else ():
        if not job.target.is_published:
            continue
        is_kept, store, label = job.plan.staged_with is not None, job.target.store, job.target.label
        places = frozenset[_ReadPlace]().union(
            *(places for one, places in read if not (is_kept and one.plan.staged_with))
        )
        if not job.keeps_old:
            _refuse(places, store, label, is_replaced=job.options.mode == "w")
        elif _any_touches(places, store):
            _refuse_once_more(job, is_known_again=is_known_again)


def _refuse_once_more(job: Job, *, is_known_again: bool) -> None:
    """Refuse to replace an array by what is read from it if that may have been done before."""
    if not is_known_again:
        raise SpecError(
            "the source reads the array that it is to replace, and has no name by which the "
            "same call is known again, which must not change the values once more",
            field="source_id",
            value=None,
            remedy='give one, such as source_id="doubled"',
        )
    receipt = read_receipt(job.target) if job.options.restart else None
    if receipt is not None and receipt.is_of(job.plan.digest):
        raise SpecError(
            "the same call has replaced the array before, and the source would read the new values",
            field="restart",
            value=True,
            remedy="leave it out; or give another source_id to change the values once more",
        )


def check_not_replaced(sessions: Sequence[Session]) -> None:
    """Refuse to compute what is missing from an array that the same run has replaced already.

    - Raises RunEndedError if another process has ended the run.
    """
    runs = {session.directory.shared: session.directory for session in sessions}.values()
    replaced = [one.target for run in runs for one in run.outputs() if one.is_handed_over]
    for session in sessions if replaced else ():
        places = _places_read(session.job) if len(session.missing) else frozenset[_ReadPlace]()
        gone = next((target for target in replaced if _any_touches(places, target.store)), None)
        if gone is not None:
            session.directory.check_held()  # the journals are gone where the run has ended
            raise JournalError(
                f"{len(session.missing):,} shards of {session.job.target.label} are missing, and "
                f"their source reads {gone.label}, which has its new values already. They cannot "
                "be computed again. Give the run up with abandon (shardwrite abandon)",
                path=str(session.directory.path),
            )


def reads_replaced(job: Job, jobs: Sequence[Job]) -> bool:
    """Whether the source of a job reads an array that it or another one of a call replaces."""
    return bool(readers([job], [one for one in jobs if one.options.mode == "w"]))


def readers(jobs: Sequence[Job], changed: Sequence[Job]) -> list[Job]:
    """Those of some jobs whose source reads the array of one of others, which is looked at once."""
    read = [(job, places) for job in jobs if changed and (places := _places_read(job))]
    targets = [_ReadPlace(*_location(one.target.store)) for one in changed] if read else []
    return [
        job
        for job, places in read
        if any(place.touches(target) for target in targets for place in places)
    ]


def are_read(jobs: Sequence[Job]) -> bool:
    """Whether the source of one of some updates reads an array that one of them changes."""
    return bool(readers(jobs, jobs))


def _is_public(job: Job) -> bool:
    return job.options.publish == "first"


def refuse_reading(x: Any, store: Store, label: str) -> None:
    """Refuse an array as the source of a change of itself; see `check_not_read`."""
    _refuse(set(_places([x])), store, label, is_replaced=False)


def _refuse(places: Iterable[_ReadPlace], store: Store, label: str, *, is_replaced: bool) -> None:
    """Refuse to change or replace the array of a store if it is read at one of the places."""
    if not _any_touches(places, store):
        return
    if is_replaced:
        raise SpecError(
            "the source reads the array that it is to replace",
            field="store",
            value=label,
            remedy="write to another path, or compute the source first",
        )
    raise SpecError(
        "the source reads the array that it is to change",
        field="x",
        value=label,
        remedy="write the source to another path, and then that array into this one",
    )


def _any_touches(places: Iterable[_ReadPlace], store: Store) -> bool:
    """Whether the array of a store is read at one of the places."""
    target = _ReadPlace(*_location(store))
    return any(place.touches(target) for place in places)


_of_sources: WeakKeyDictionary[ArrayChunks, frozenset[_ReadPlace]] = WeakKeyDictionary()


def _places_read(job: Job) -> frozenset[_ReadPlace]:
    """Places that a job's source reads, which are looked for once."""
    source = job.source
    if not isinstance(source, ArrayChunks):
        return frozenset()
    if source not in _of_sources:
        _of_sources[source] = frozenset(_places([source.x]))
    return _of_sources[source]


def _places(values: Iterable[Any]) -> Iterator[_ReadPlace]:
    """Places that graphs and objects read."""
    todo, objects, seen = deque(values), deque[object](), dict[int, object]()
    n_objects = 0
    while todo or objects:
        value = todo.popleft() if todo else objects.popleft()
        is_call = type(value) in (Task, tuple)  # of which there are many, and none holds itself
        if not is_call:
            if id(value) in seen or isinstance(value, type):
                continue
            seen[id(value)] = value  # which keeps it, so that no other object gets its identity
        parts = _parts_of(value)
        if parts is not None:
            todo.extend([part for part in parts if type(part) not in _PLAIN])
            if is_call:
                yield from _opened(value)
            continue
        reads = list(_reads_of(value))
        yield from reads
        if not reads and n_objects < _MOST_OBJECTS:
            n_objects += 1
            objects.extend(part for part in _attributes(value) if type(part) not in _PLAIN)


def _parts_of(value: Any) -> Iterable[Any] | None:
    """What a piece of a graph, a container or a function holds; None for any other object."""
    if isinstance(value, Task):
        return (value.func, *value.args, *(value.kwargs or {}).values())
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, HighLevelGraph):
        return value.layers.values()
    if isinstance(value, Blockwise):
        literals = (literal for literal, indices in value.indices if indices is None)
        return (*literals, value.task, *value.io_deps.values())
    if isinstance(value, Layer):
        return value.values() if value.is_materialized() else vars(value).values()
    if isinstance(value, DataNode):
        return (value.value,)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, types.FunctionType):
        return _closed_over(value)
    if is_dask_collection(value):
        return (value.__dask_graph__(), *_attributes(value))
    return None


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    """Values that a function takes along."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing was assigned yet
            yield cell.cell_contents


def _opened(call: Any) -> Iterator[_ReadPlace]:
    """Places whose paths or stores a task gives to a function that opens Zarr arrays."""
    function = call.func if isinstance(call, Task) else next(iter(call), None)
    if not callable(function) or _package(function) not in _OPENERS:
        return
    arguments = (*call.args, *call.kwargs.values()) if isinstance(call, Task) else call[1:]
    for argument in arguments:
        if isinstance(argument, str | os.PathLike) or _package(type(argument)) == "zarr":
            yield from _place_of(argument, "group")


def _reads_of(value: Any) -> Iterator[_ReadPlace]:
    """Places that an object reads by itself."""
    package, name = _package(type(value)), type(value).__name__
    if isinstance(value, if_loaded("shardwrite.read.array", "ShardedArray")):
        yield _ReadPlace(*_location(value.store))
    elif isinstance(value, ReadsPlaces):
        for where, inside, kind in value.places_read():
            yield from _place_in(where, inside, kind)
    elif isinstance(value, np.memmap):
        yield from _place_of(value.filename, "file")
    elif package == "h5py":
        with contextlib.suppress(ValueError):  # it is closed
            yield from _place_of(value.file.filename, "file")
    elif package == "tensorstore" and getattr(value, "kvstore", None) is not None:
        yield from _place_of(value.kvstore.url, "array")
    elif package == "zarr" and name in ("Array", "AsyncArray", "Group", "AsyncGroup"):
        yield from _place_of(value, "group" if name.endswith("Group") else "array")


def _place_in(where: Any, inside: str, kind: str) -> Iterator[_ReadPlace]:
    """A place that a source tells; see `ReadsPlaces`."""
    if kind == "objects" and isinstance(where, Store):
        yield _ReadPlace(*_location(where.at(inside)))
    elif kind == "array":
        # What cannot be opened as a store here is no place that is written, either.
        with contextlib.suppress(SpecError):
            place = resolve_place(where, inside or None, is_read=True)
            yield _ReadPlace(*_location(place.store))
    else:
        yield from _place_of(where, kind)


def _place_of(opened: Any, kind: str) -> Iterator[_ReadPlace]:
    """Place of a path, a URL, or a store, array or group of zarr-python, if it can be one."""
    if isinstance(opened, str) and is_bucket_url(opened):
        yield _ReadPlace("*", _without_quotes(opened), kind)  # nobody knows with which options
        return
    path = None
    if _package(type(opened)) == "zarr":
        where = getattr(opened, "store_path", opened)
        path, opened = getattr(where, "path", ""), _unwrapped(getattr(where, "store", where))
    with contextlib.suppress(SpecError):
        found = open_store(opened, is_read=True)
        yield _ReadPlace(
            *_location(found.store.at("/".join(filter(None, (found.path, path))))), kind
        )


def _location(store: Store) -> tuple[str, str]:
    """What holds the objects of a store, and their path there, however the store was opened."""
    prefix, root = getattr(store, "prefix", "").strip("/"), store.local_root
    if root is not None:
        return "", os.path.realpath(os.path.join(root, prefix))
    is_whole = isinstance(store, if_loaded("shardwrite.stores.whole", "WholeStore"))
    if not is_whole or store.commits_later:
        return "?", store.token.rstrip("/")
    owner: Any = _unwrapped(store.owner)
    fs: Any = getattr(owner, "fs", None)
    fs = getattr(fs, "sync_fs", fs)
    if store.is_in_memory:
        objects = getattr(owner, "_store_dict", owner)  # a view of a `MemoryStore` has the same
        if fs is not None:
            objects, prefix = fs.store, f"{owner.path}/{prefix}"
        return f"memory {id(objects)}", prefix.strip("/")
    if isinstance(store, if_loaded("shardwrite.stores.bucket", "BucketStore")):
        given = dict(getattr(owner, "config", {}))  # a web server has none
        return _service(type(owner).__name__, given), _without_quotes(store.url)
    if fs is not None:
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        scheme = next((name for name in sorted(protocols) if name in _BUCKETS), None)
        if scheme is not None:
            given = {**fs.storage_options, **fs.storage_options.get("client_kwargs", {})}
            given["endpoint"] = given.get("endpoint_url")
            url = f"{scheme}://{owner.path.strip('/')}/{prefix}"
            return _service(_BUCKETS[scheme], given), _without_quotes(url)
    return "?", store.token.rstrip("/")


def _unwrapped(store: Any) -> Any:
    """A store of zarr-python without others around it, which log its calls, for instance."""
    if _package(type(store)) != "zarr":
        return store
    from zarr.storage import WrapperStore

    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001 (the only name of it)
    return store


def _service(kind: str, given: Mapping[str, object]) -> str:
    """Service that has a bucket: its kind, and its address and account as far as they are given."""
    from shardwrite.stores.bucket_kinds import given_address  # for buckets only

    account = given.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    address = given_address(kind, given).rstrip("/")
    return f"{kind} {address} {account if kind == 'AzureStore' else ''}"


def _without_quotes(url: str) -> str:
    """Bucket of a URL and path in it, in one spelling."""
    return unquote(url.partition(":")[2]).strip("/")


def _is_below(path: str, above: str) -> bool:
    return path.startswith(f"{above.rstrip('/')}/")


def _is_same_file(one: str, other: str) -> bool:
    """Whether two paths lead to one file or directory, by whatever mounts."""
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(one, other)
    return False


def _package(thing: Any) -> str:
    """Name of the package that a class or a function comes from."""
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


def _attributes(value: Any) -> Iterator[Any]:
    """Attributes of an object, none of which is computed."""
    module = str(getattr(type(value), "__module__", ""))
    if module.partition(".")[0] in _CLOSED or module.startswith(_OWN):
        return
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(vars(kind).get(name), types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # nothing was assigned yet
                    yield getattr(value, name)
