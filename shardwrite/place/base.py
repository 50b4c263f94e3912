"""What a place is: where the documents and objects of one array lie.

An array lies in a directory (`place.directory`) or in a store (`place.objects`). The journal and
the operations know only this protocol. The state of a run is not part of it: that lies in a
directory of its own, which `place.target` names.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError
from shardwrite.format.node import (
    DATA,
    DOCUMENT,
    DOCUMENTS_OF_V2,
    META,
    documents_of,
    is_hierarchy,
    kind_of_document,
    shape_in,
)
from shardwrite.place.seen import Seen
from shardwrite.stores.base import Store
from shardwrite.stores.looking import (
    as_store_error,
    is_bucket_url,
    is_file,
    is_there,
    mode_of,
    parse_document,
    read_json,
    read_limit,
)
from shardwrite.stores.removal import Proof

RECEIPT_NAME = "shardwrite-receipt.json"

REPORT_NAME = "shardwrite-report.json"

MARK_NAME = "shardwrite-run.json"

UPDATES = "updates"
"""Directory of the runs that update some shards, among the state of the runs of an array."""

STATE_PREFIX = "shardwrite-run/"
"""Prefix of the objects that hold the state of a run in a bucket, inside the array."""

MARKS = STATE_PREFIX.rstrip("/")
"""Name of the directory with the marks of runs in an array that is a directory."""

MARKED = "marked"
"""Directory of a run whose mark is in the array; see :meth:`Place.make_room`."""

QUARANTINE_PREFIX = "shardwrite-quarantine/"
"""Prefix of copies of bad shards in a bucket, inside the array."""


# ---- The protocol


class UnknownRun(NamedTuple):
    """What is said of a run on an array whose state is not known here."""

    run: str  # its name
    makes_array: bool  # whether it makes the array, rather than changing it
    told: str  # which run that is, and by which call it goes on
    remedy: str  # what to do if its state is lost


class Owner(Protocol):
    """A run, as a place sees it: it may set the old array aside, or take its own away."""

    @property
    def run(self) -> str:
        """Name of the run."""

    @property
    def path(self) -> Path:
        """Directory of the run."""

    def proof(self, keys: Callable[[], Collection[str]] = tuple) -> Proof:
        """Proof of which data are the run's own."""

    def alone(self, *, puts: bool = True) -> AbstractContextManager[Callable[[], None]]:
        """Let one process of the run at a time into the block.

        - `puts`: whether all that the state of the run has is in its bucket before the block.

        The value is a function that raises once the process is no longer alone, or the run is over.
        """

    def check_held(self) -> None:
        """Raise if another process may have ended or settled the run, without asking a service."""

    def check_alone(self) -> None:
        """Raise if another run on the array has its state in a bucket inside of the array."""

    @property
    def keeper(self) -> Mapping[str, str]:
        """What the mark of the run says of the array that holds its state; see `Mark`."""


class Over(NamedTuple):
    """What a document must replace."""

    data: bytes | None  # its content; None if there is none


class Place(Protocol):
    """Place of an array or a group."""

    @property
    def label(self) -> str:
        """Text that names the place in messages and results: its path, if it has one."""

    @property
    def array_name(self) -> str:
        """Name of the place in ``plan.json``: a run goes on only where it is the same."""

    @property
    def name(self) -> str:
        """Path inside the store; empty for the store itself."""

    @property
    def rights_like(self) -> Path | None:
        """Directory whose mode and group the directory of a run takes, if there is one."""
        return None

    @property
    def store(self) -> Store:
        """Store of the array's objects."""

    @property
    def local_path(self) -> Path | None:
        """Directory of this machine in which the objects lie, if it is known."""

    @property
    def groups(self) -> Sequence[Place]:
        """Groups above the array inside the store, outermost first."""

    @property
    def nodes_above(self) -> Sequence[Place]:
        """Nodes above the array inside the store, none of which may be an array, outermost first.

        A format that keeps no documents of groups has no `groups`, but it has these.
        """
        return self.groups

    @property
    def hierarchy(self) -> str:
        """Text that names the kind of hierarchy, if groups have no documents in it; else empty."""
        return ""

    def arrays_in_hierarchy(self) -> Iterator[str]:
        """Names of the arrays in such a hierarchy."""
        return iter(())

    def sibling(self, own: str, other: str) -> Place:
        """Another node of the hierarchy, in which this one has the path `own`."""

    @property
    def top(self) -> Place | None:
        """The store as a whole, if this is a node inside of it that a run may write with others."""
        return None

    def check_new(self, layout: str | None) -> None:  # noqa: ARG002
        """Refuse a new array that does not fit where it is to lie.

        - `layout`: see `place.target.resolve_place`.
        """
        return

    @property
    def tree_path(self) -> Path | None:
        """Directory of all that lies here, if it can be converted in its place."""
        return None

    @property
    def default_run_dir(self) -> Path | None:
        """Directory for the state of runs where a user has named none; None if there is none."""
        return None

    def groups_above(self) -> Iterator[Place]:
        """Groups above that have a document, nearest first, up to the first gap."""

    def name_in(self, group: Place) -> str:
        """Name of this place inside a group that `groups_above` has given."""

    def member(self, name: str) -> Place:
        """Place of a node inside this group."""

    def kind(self) -> str:
        """Kind of what stands there."""

    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return False

    def is_mount_point(self) -> bool:
        """Whether another file system is mounted there."""
        return False

    def is_occupied(self) -> bool:
        """Whether anything stands there, be it an empty directory."""

    def kind_for_group(self) -> str:
        """As `kind`, but ``"nothing"`` also where a group can be made of what stands there."""

    def array_around(self) -> str | None:
        """Label of an array that contains this place; None if there is none."""

    def node_inside(self) -> str | None:
        """Label of a node that lies inside this array; None if there is none."""

    def has_object(self, key: str) -> bool:
        """Whether an object that can be read stands at the key of a shard."""

    def has_something(self, key: str) -> bool:
        """Whether something of which a copy can be kept stands at the key of a shard."""
        return self.has_object(key)

    def has(self, leaf: str) -> bool:
        """Whether there is a document or a receipt of this name."""

    def read(self, leaf: str) -> bytes | None:
        """Content of a document or a receipt; None if it is missing."""

    def read_if_there(self, leaf: str) -> bytes | None:
        """The same, or None if `has` says that there is none, such as where a directory stands."""
        return self.read(leaf) if self.has(leaf) else None

    def write(
        self,
        leaf: str,
        data: bytes,
        *,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        over: Over | None = None,
    ) -> None:
        """Write a document or a receipt.

        - `over`: what it must replace, if the place `compares`; by default anything. Else `guard`
          looks.
        - Raises StoreError if it cannot be written. Its `errno` is ESTALE if another process has
          changed it meanwhile, in a store that can tell.
        """

    @property
    def compares(self) -> bool:
        """Whether `write` replaces nothing that another process puts there meanwhile."""
        return False

    @property
    def seen(self) -> Seen | None:
        """What the call has seen of its places, where a look is a request; else None."""
        return None

    def forget(self) -> None:
        """Have documents read again in a block of `place.seen.remembering`."""
        return

    def last(self, leaf: str) -> bytes | None:  # noqa: ARG002
        """Content of a document as this call has seen it last; None if it is not known.

        It may be out of date. It is for what is put `over` just that.
        """
        return None

    def discard(self, leaf: str, attempt: str) -> None:
        """Remove the temporary that an attempt of `write` has left behind, if there is one."""

    def make_room(self, run: Owner, durability: str, *, replaces: bool, is_new: bool) -> None:
        """Set the old array aside, or remove it, and make a place for the new one.

        Any number of processes of a run may do this, in any order. What the run has written is
        never taken for the old array.

        - `is_new`: whether no array stood there when the run began.
        """

    def clear(self, run: Owner, keys: Collection[str]) -> None:  # noqa: ARG002
        """Remove what is left of the old array, right before the new one is published."""
        return

    def take_away(self, run: Owner) -> None:
        """Remove the array that a run was making, and put back the old one, if it was set aside."""

    def check_mark(self, run: Owner) -> None:  # noqa: ARG002
        """Verify that what stands there is still what the run has written."""
        return

    def remove_mark(self, run: Owner) -> None:
        """Remove what marks the array as that of the run, at the end of the run."""

    def unknown_run(self, known: Collection[str] = ()) -> UnknownRun | None:
        """The run that makes the array, or changes it together with others, as its mark says.

        - `known`: names of runs that the caller has found by their plans; it is none of them.
        """

    def foreign(self, is_shard: Callable[[str], bool]) -> Iterator[str]:
        """Names of what lies there and is no shard, no temporary of one, and no state of a run."""

    def stale_temporaries(self, drivers_alive: Callable[[], set[str]]) -> Collection[str]:  # noqa: ARG002
        """List the array, and find the temporaries of drivers that are not alive.

        - `drivers_alive`: gives the names of the living drivers. It is called after the array was
          listed.
        """
        return ()

    def sweep(self, drivers_alive: Callable[[], set[str]]) -> int:
        """Remove `stale_temporaries`, and return how many there were."""
        return remove_temporaries(self.stale_temporaries(drivers_alive))

    def make_directories(self, keys: Iterable[str], durability: str) -> None:  # noqa: ARG002
        """Make the directories of some objects before many processes need them."""
        return

    def keep_copy(self, key: str, copy: Path, durability: str) -> None:
        """Copy an object to a new file of this machine."""


def remove_temporaries(paths: Iterable[str]) -> int:
    """Remove temporary files, of which some may be gone, and return how many were there."""
    n_removed = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            n_removed += 1
    return n_removed


def names_above(name: str) -> list[str]:
    """Names of the groups above a node, outermost first; the first is that of the store itself."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:n]) for n in range(len(parts) + 1)] if name else []


# ---- Components and options of a URL, as dask names them


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(::|://)")

_LOCAL = ("file", "local")

_KIND = "precomputed://"


def named(name: str | None, component: str | None) -> str | None:
    """Path of the array in its store, from the two words for it."""
    if component is None:
        return name
    if name is not None and name != component:
        raise SpecError(
            f"is another word for name, and name={name!r} is given, too",
            field="component",
            value=component,
            remedy="give one of the two",
        )
    return component


def without_kind(path: Any) -> Any:
    """The address of a volume without ``precomputed://``, by which Neuroglancer tells its kind.

    Examples
    --------
    >>> from shardwrite.place.base import without_kind
    >>> without_kind("precomputed://s3://bucket/volume"), without_kind("volume")
    ('s3://bucket/volume', 'volume')
    """
    return path.removeprefix(_KIND) if isinstance(path, str) else path


def at_url(store: Any, storage_options: Mapping[str, Any] | None, *, is_read: bool = False) -> Any:
    """The store at a URL, opened with options of obstore for a bucket, else with those of fsspec.

    - `storage_options`: the options. Without them, `store` is returned as it is. The path of a
      directory needs none and is returned as it is, too.
    - `is_read`: whether the store will only be read.
    """
    if storage_options is None:
        return store
    if not isinstance(storage_options, Mapping):
        raise _refused("not a mapping", "storage_options", type(storage_options).__name__)
    if not isinstance(store, str):
        if storage_options and not hasattr(store, "__fspath__"):
            raise SpecError(
                "is for a URL, and the store is no URL",
                field="storage_options",
                value=sorted(map(str, storage_options)),  # the values may be credentials
                remedy="leave it out: a store has its options already",
            )
        return store
    if is_bucket_url(store):
        from shardwrite.stores.bucket_url import open_bucket  # for buckets

        return open_bucket(store, storage_options, is_read=is_read)
    url = _URL.match(store)
    if url is None or url[1].lower() in _LOCAL:
        return store
    # zarr is imported late, because its import takes long.
    from zarr.storage import FsspecStore

    try:
        return FsspecStore.from_url(store, storage_options=dict(storage_options), read_only=is_read)
    except (ImportError, TypeError, ValueError, OSError) as error:
        raise _refused(f"cannot be opened ({error})", "store", store) from None


def opened_once(store: Any, storage_options: Mapping[str, Any] | None = None) -> Any:
    """The store as `at_url` returns it, but a bucket at a URL is opened.

    Places in it then share its connections, and what was found out about the service.
    """
    if storage_options is None and isinstance(store, str) and is_bucket_url(store):
        from shardwrite.stores.bucket_url import open_bucket  # for buckets

        return open_bucket(store)
    return at_url(store, storage_options)


def _refused(why: str, field: str, value: Any) -> SpecError:
    remedy = "give what fsspec needs for this protocol, such as {'anon': True}, or a store of zarr"
    return SpecError(why, field=field, value=value, remedy=remedy)


# ---- What stands at a path: a node of Zarr, something else, or nothing


_ENDS_OF_ARRAYS = (".array.json", f".{MARK_NAME}")  # in a hierarchy of 2022


def kind_of(path: Path) -> str:
    """Kind of what stands at a path."""
    kind, _ = node_at(path)
    return kind


def node_at(path: Path) -> tuple[str, Any]:
    """Kind of what stands at a path, and its document if it is a node of Zarr v3; else None."""
    mode = mode_of(path, follow=False)
    if not mode:
        return "nothing", None
    if not stat.S_ISDIR(mode):
        return "link" if stat.S_ISLNK(mode) else "other", None
    of_array, of_group = DOCUMENTS_OF_V2
    if is_there(path / of_array):
        return "v2", None
    mode = mode_of(path / DOCUMENT)
    if not mode and is_there(path / of_group):
        return "v2 group", None
    if not stat.S_ISREG(mode):
        return "other" if mode or _has_entries(path) else "nothing", None
    try:
        document = read_json(path / DOCUMENT)
        return kind_of_document(document), document
    except ValueError:
        return "torn", None


def hierarchy_document(store: Store) -> Document | None:
    """Document of the hierarchy of 2022 that a store holds; None if it holds none."""
    data = store.read_whole(DOCUMENT, read_limit())
    if data is None or len(data) > read_limit() or b"purl.org" not in data:
        return None
    try:
        document: Document = parse_document(data, DOCUMENT)
    except SpecError:  # broken documents are told by those who read them
        return None
    return document if is_hierarchy(document) else None


def array_of_2022_around(path: Path) -> Path | None:
    """Directory of the array of 2022 that contains a path, or of a run that makes one there."""
    for root in path.parents:
        for begin in documents_of(path.parent.relative_to(root).as_posix()):
            is_node = any(is_file(root / f"{begin}{end}") for end in _ENDS_OF_ARRAYS)
            if is_node and _is_hierarchy(root / DOCUMENT):
                return root / f"{DATA}{begin.removeprefix(META)}"
    return None


def _is_hierarchy(document: Path) -> bool:
    """Whether a document is there, and is that of a hierarchy of 2022."""
    try:
        return is_file(document) and is_hierarchy(read_json(document))
    except ValueError:
        return False


def shape_of(document: Any, name: str) -> list[int]:
    """Shape of the array in a metadata document."""
    shape = shape_in(document)
    if shape is None:
        raise SpecError(
            "not an array's",
            field=DOCUMENT,
            value=name,
            remedy="write the array again, or remove the document",
        )
    return shape


def _has_entries(path: Path) -> bool:
    """Whether a directory holds anything but empty directories, which a killed run may leave."""
    with as_store_error(str(path), "cannot list"), os.scandir(path) as entries:
        return any(
            not stat.S_ISDIR(mode_of(entry.path, follow=False)) or _has_entries(Path(entry.path))
            for entry in entries
        )
