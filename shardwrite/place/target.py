"""Where an array goes, and where the state of its runs lies, from what a user gives."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.codecs.documents import Document
from shardwrite.config.table import DURABILITY, RUN_DIR, value_of
from shardwrite.errors import JournalError, SpecError, StoreError
from shardwrite.format.node import DOCUMENT, DOCUMENTS, FORMAT
from shardwrite.format.sharding import why_kept
from shardwrite.options import DURABILITIES
from shardwrite.place.base import UPDATES, Place, hierarchy_document, node_at, shape_of
from shardwrite.place.directory import Directory, states_around
from shardwrite.place.seen import FEW, Seen
from shardwrite.seams import REMEDY, needed, resolve
from shardwrite.stores.base import Capability, Store, require
from shardwrite.stores.directories import CONVERSION_SUFFIX, RUN_SUFFIX
from shardwrite.stores.looking import (
    is_icechunk,
    is_store_url,
    is_there,
    listed,
    local_path,
    mode_of,
    names_in,
    owner_of,
    parse_document,
    parse_json,
)

if TYPE_CHECKING:
    from shardwrite.place.objects import InStore

__all__ = [
    "COMPACTION",
    "UPDATES",
    "Target",
    "document_of",
    "durability_in",
    "in_this_process",
    "is_array",
    "is_zip_store",
    "missing_document",
    "refuse_hierarchy",
    "refuse_names",
    "remembering",
    "resolve_new",
    "resolve_place",
    "resolve_target",
    "target_at",
    "untouched",
    "ways_to",
]


TOGETHER = "together"
"""Name of the directory of runs that write several arrays, beside the root of their hierarchy."""

ARRAYS = "arrays"
"""Name of the directory of these arrays, if the state of their run lies in a bucket."""

COMPACTION = "compaction"
"""Name of the directory of a compaction among those of the updates."""
# One slash is enough, since a path object makes one slash of two.
_SCHEME = re.compile(r"(file(?=:)|[A-Za-z][A-Za-z0-9+.-]+(?=:/)):", re.IGNORECASE)
# File systems allow 255 bytes, and directories beside the array have this suffix in addition.
_OF_XARRAY = "__xarray_dataarray_variable__"
"""Name that xarray gives to a DataArray without a name, although Zarr reserves such names."""

_MAX_NAME_NBYTES = 255 - len(CONVERSION_SUFFIX)
_MOST_PARTS = 250  # of a name; paths of run state, and keys in Azure, take few more


@dataclass(frozen=True, slots=True)
class StateInBucket:
    """Where the run state of an array lies, if it lies in a bucket."""

    place: InStore  # array that the state lies in: the first one, if one run writes several
    directory: Path  # directory of this process for all of that state


@dataclass(frozen=True, slots=True)
class Target:
    """Place of an array, or of one update of it, and of its run state."""

    place: Place  # where the documents and objects of the array lie
    # Directory of all run state of the array; see `place.directory` for that of a directory
    beside: Path
    update: str = ""  # name of the update's directory; empty if the array is written as a whole
    # Where the run state lies, if it lies in a bucket, and `beside` belongs to this process
    state: StateInBucket | None = None
    # What the array lies in, if one run may write others there, too, and it is no group of Zarr
    around: Place | None = None
    # Whether what stands there is the array's own, of a run whose state is lost
    recovers: bool = False

    @property
    def label(self) -> str:
        """Text that names the array in messages and results: its path, if it has one."""
        return self.place.label

    @property
    def directory(self) -> Directory:
        """The place of an array that is a directory."""
        if not isinstance(self.place, Directory):
            raise SpecError(
                "this works only with directories",
                field="store",
                value=self.label,
                remedy="give the path of a directory, or a zarr.storage.LocalStore",
            )
        return self.place

    @property
    def store(self) -> Store:
        """Store of the array's objects."""
        return self.place.store

    @property
    def in_store(self) -> bool:
        """Whether the run state lies in a bucket."""
        return self.state is not None

    @property
    def holder(self) -> Target:
        """The array whose lease this process holds to work on the run state in a bucket."""
        if self.state is None:
            raise ValueError("the run state lies in a directory")
        return Target(self.state.place, self.state.directory, state=self.state)

    @property
    def is_kept_elsewhere(self) -> bool:
        """Whether the run state lies in a bucket inside another array."""
        if self.state is None:
            return False
        return self.state.place.whole_name != cast("InStore", self.place).whole_name

    @property
    def leaves_marks(self) -> bool:
        """Whether runs leave marks in the array, since their state does not lie beside it."""
        return isinstance(self.place, Directory) and self.beside != self.place.own_state

    def state_around(self, state: Path) -> list[Path]:
        """Directories around one with run state, up to that beside the root; see `leaves_marks`."""
        return states_around(state) if isinstance(self.place, Directory) else []

    def in_directory(self, directory: Path) -> Target:
        """The target with another directory for all of the run state that lies in a bucket."""
        if self.state is None:
            raise ValueError("the run state lies in a directory")
        beside = directory / self.beside.relative_to(self.state.directory)
        return replace(self, beside=beside, state=replace(self.state, directory=directory))

    def kept_in(self, state: StateInBucket) -> Target:
        """The target whose run state lies with that of other arrays of its hierarchy."""
        kept = replace(self, beside=state.directory, state=state)
        if not kept.is_kept_elsewhere:
            return kept
        from shardwrite.place.run_state import name_in_state  # for states in buckets

        own = name_in_state(cast("InStore", self.place))
        return replace(kept, beside=state.directory / ARRAYS / own)

    @property
    def run_path(self) -> Path:
        """Directory of the run state; for an update, a directory in that of the array."""
        return self.beside / UPDATES / self.update if self.update else self.beside

    def with_run_path(self, path: Path) -> Target:
        """The target, with another directory for the run state of the same kind."""
        if not self.update:
            return replace(self, beside=path)
        return replace(self, beside=path.parent.parent, update=path.name)

    @property
    def home(self) -> Path | None:
        """Directory for runs that write several arrays of the hierarchy; None if there is none.

        It is beside the hierarchy's root, and so no reader of a group finds it there. If the state
        lies in a bucket, it lies inside an array, where no reader looks for one either.
        """
        top = self.top
        if top is None or not self.name:
            return None
        if self.state is not None:
            return self.state.directory / TOGETHER
        if isinstance(top, Directory):
            around, depth = states_around(self.beside), self.name.count("/") + 1
            return (around[depth - 1] if len(around) >= depth else top.own_state) / TOGETHER
        from shardwrite.place.run_state import state_name

        return self.beside.with_name(state_name(cast("InStore", top))) / TOGETHER

    @property
    def top(self) -> Place | None:
        """Root of the hierarchy that the array lies in, if it lies in one."""
        return self.place.top if self.around is None else self.around

    @property
    def above(self) -> object | None:
        """What is equal for arrays in the same groups of a store; None if there are no groups."""
        if isinstance(self.place, Directory):
            return self.place.root, self.place.path.parent, self.around
        if self.top is None or not self.name:
            return None
        return cast("InStore", self.place).base.token, self.name.rpartition("/")[0], self.around

    @property
    def name(self) -> str:
        """Path of the array in its hierarchy; empty if it lies in none."""
        return "" if self.top is None else self.place.name_in(self.top)

    @property
    def others(self) -> list[Target]:
        """The array as a whole and all updates of it that were begun, without this target."""
        return self.others_among(listed(self.beside / UPDATES))

    def others_among(self, seen: Iterable[Path]) -> list[Target]:
        """The same, if their directories are among some paths that were seen beside the array."""
        whole, directory = replace(self, update=""), self.beside / UPDATES
        names = sorted(path.name for path in seen if path.parent == directory)
        updates = [replace(self, update=name) for name in names]
        return [target for target in (whole, *updates) if target != self]

    @property
    def is_published(self) -> bool:
        """Whether the array has a document, which is what makes readers see it."""
        return self.place.has(DOCUMENT)

    @property
    def document(self) -> Any:
        """The array's document, parsed."""
        return document_of(self.place)

    @property
    def document_if_there(self) -> Any:
        """The same, or None if it is missing, as while another process replaces the array."""
        return document_if_there(self.place)

    @property
    def shape(self) -> list[int]:
        """Shape of the array that stands there."""
        return shape_of(self.document, f"{self.label}/{DOCUMENT}")

    @property
    def shape_if_there(self) -> list[int] | None:
        """The same, or None if the document is missing; see :attr:`document_if_there`."""
        document = self.document_if_there
        return None if document is None else shape_of(document, f"{self.label}/{DOCUMENT}")

    def exclusively(self, *, when: bool) -> Target:
        """The target as one that nobody else writes to meanwhile, if the user has said so."""
        place = self.place
        in_store = if_loaded("shardwrite.place.objects", "InStore")
        if not when or not isinstance(place, in_store):
            return self
        return replace(self, place=replace(place, base=place.base.exclusively()))

    def durability(self, given: str | None = None) -> str:
        """Durability level of a run."""
        return durability_in(self.store, given)


def in_this_process(target: Target) -> Target:
    """The target in this process, if another one made it and its run state lies in its store."""
    if target.state is None:
        return target
    from shardwrite.place.run_state import private_directory  # for states in buckets

    return target.in_directory(Path(private_directory(os.getpid())) / target.state.directory.name)


def durability_in(store: Store, given: str | None = None) -> str:
    """Durability level of what is written to a store; see :meth:`Target.durability`."""
    if given is None:
        is_durable = Capability.DURABLE in store.capabilities
        return (value_of(DURABILITY) or "full") if is_durable else "none"
    if given in DURABILITIES[:-1]:
        require(store, Capability.DURABLE, field="durability", value=given)
    return given


def document_of(place: Place) -> Any:
    """Document of the node at a place, parsed; see :attr:`Target.document`."""
    document = document_if_there(place)
    if document is None:
        raise missing_document(place)
    return document


def missing_document(place: Place) -> StoreError:
    """The error that there is no document at a place."""
    name = f"{place.label}/{DOCUMENT}"
    return StoreError(f"{name} is missing", key=DOCUMENT, errno=errno.ENOENT)


def document_if_there(place: Place) -> Any:
    """The same, or None if it is missing; see :attr:`Target.document_if_there`."""
    data = place.read(DOCUMENT)
    return None if data is None else parse_document(data, f"{place.label}/{DOCUMENT}")


def array_at(place: Place) -> Any:
    """Document of the array at a place, parsed; None if what stands there is no array."""
    if isinstance(place, Directory):
        kind, document = node_at(place.path)
        return document if kind == "array" else None
    return document_if_there(place) if place.kind() == "array" else None


def resolve_target(
    store: Any,
    name: str | None,
    run_dir: Any = None,
    *,
    is_read: bool = False,
    seen: Seen | None = None,
) -> Target:
    """Find the place of an array, and of its run state, from a user's arguments.

    - `seen`: see `resolve_place`.
    """
    seen = Seen() if seen is None else seen
    place = resolve_place(store, name, is_read=is_read, seen=seen)
    return target_at(place, run_dir, is_read=is_read, seen=seen)


def resolve_new(
    store: Any,
    name: str | None,
    run_dir: Any = None,
    layout: str | None = None,
    *,
    seen: Seen | None = None,
) -> Target:
    """Find the place of a new array, and of its run state; see `resolve_target`."""
    seen = Seen() if seen is None else seen
    place = resolve_place(store, name, layout=layout, seen=seen)
    place.check_new(layout)
    return target_at(place, run_dir, seen=seen)


def target_at(
    place: Directory | InStore,
    run_dir: Any = None,
    *,
    is_read: bool = False,
    seen: Seen | None = None,
) -> Target:
    """Place of an array, and of its run state; see `resolve_target`."""
    if isinstance(place, Directory):
        if run_dir is not None:
            raise SpecError(
                "is for arrays that lie in no directory; shards and run state of a directory are "
                "renamed from one to the other, and so lie beside each other",
                field="run_dir",
                value=str(run_dir),
                remedy="leave it out",
            )
        return Target(place, place.state(seen))
    from shardwrite.place.run_state import run_state_of  # for arrays that lie in no directory

    if run_dir is None and value_of(RUN_DIR) is None:
        run_dir = place.default_run_dir
    path, in_store = run_state_of(place, run_dir, is_read=is_read)
    return Target(place, path, state=StateInBucket(place, path) if in_store else None)


def resolve_place(
    store: Any,
    name: str | None,
    *,
    is_read: bool = False,
    layout: str | None = None,
    asks: bool = True,
    seen: Seen | None = None,
) -> Directory | InStore:
    """Find the place of an array from a user's `store` and `name`.

    An array that lies in a hierarchy of 2022 is found there; see `format.node`.

    - `store`: path or ``file:`` URL of the store's directory; or the URL of a bucket; or a store,
      or a group, array or path in one. A `zarr.storage.LocalStore` stands for its directory.
    - `name`: path of the array inside the store or group; empty or None if `store` itself is the
      array.
    - `is_read`: promise that nothing will be written, so that the store may be read-only.
    - `layout`: format of a new array, if it is one with a layout of its own:
      ``"transformer-2022"``.
    - `asks`: whether a bucket is asked if it is a hierarchy of 2022 itself. If not, no request is
      made.
    - `seen`: what the arrays of one call share, so that nothing is looked at twice.
    """
    place = _plain_place(store, name, is_read=is_read, seen=seen)
    if not isinstance(place, Directory) and not place.name and not asks:
        return place
    return in_hierarchy(place, layout, seen)


def in_hierarchy(
    place: Directory | InStore, layout: str | None = None, seen: Seen | None = None
) -> Directory | InStore:
    """The place of an array of 2022, if it lies in a hierarchy of 2022, or is to be made in one.

    - `seen`: see `resolve_place`.
    """
    store: Store
    name, document = place.name, None
    if not isinstance(place, Directory):
        store = place.base
        # An array of today at this path has a document of its own; at the root, there is but one.
        if layout is None and seen is not None:
            found = _hierarchy_at(store, seen)
            document = None if found is None or (name and place.has(DOCUMENT)) else found
        elif layout is None and (not name or not place.has(DOCUMENT)):
            document = hierarchy_document(store)
    else:
        seen = Seen() if seen is None else seen
        around = (place.path, *place.path.parents)
        directory = next((path for path in around if seen.has_document(path)), None)
        store = Directory(place.root).store
        if directory is not None:
            document = _hierarchy_at(Directory(directory).store, seen)
        if directory is not None and document is not None:
            store = Directory(directory).store
            within = place.path.relative_to(directory).as_posix()
            name = "" if within == "." else within
    if layout is None and document is None:
        return place
    made: InStore = needed(
        "hierarchy", layout or FORMAT, "an array of 2022", field="store", value=place.label
    )(store, name, document)
    return made


def _hierarchy_at(store: Store, seen: Seen) -> Document | None:
    """Document of the hierarchy of 2022 that a store holds, as the call has seen it first."""
    if store.token not in seen.hierarchies:
        seen.hierarchies[store.token] = hierarchy_document(store)
    return seen.hierarchies[store.token]


_NO_PATH = "not the path of a directory that can be made"


def _plain_place(
    store: Any, name: str | None, *, is_read: bool, seen: Seen | None = None
) -> Directory | InStore:
    """Place of an array of today."""
    if _is_store(store):
        from shardwrite.stores.opening import open_store  # for all but directories

        opened = open_store(store, is_read=is_read)
        name = _joined(opened.path, name)
        directory = Directory.of(opened.store)
        if directory is None:
            from shardwrite.place.objects import InStore

            if name:
                _check_name(name)
            found = _in_zip(opened.store) if is_read else opened.store
            return InStore(found, name or "", seen=Seen() if seen is None else seen)
        store = directory.root
    root = _root_of(store)
    if root is None or (not name and root.name in ("", "..")):
        raise SpecError(
            "not the path of a directory with a name" if is_read else _NO_PATH,
            field="store",
            value=str(store),
            remedy=f"give one with a name, of at most {_MAX_NAME_NBYTES} bytes for each part",
        )
    root = _without_dots(root)
    if root.name.endswith(RUN_SUFFIX):
        remedy = f"give a path that does not end in {RUN_SUFFIX}, and rename what stands there"
        raise SpecError(
            "such names are for what lies beside an array",
            field="store",
            value=str(store),
            remedy=remedy,
        )
    if not name and root.name in DOCUMENTS:
        raise SpecError(
            "such a name is for a document of Zarr, and not for an array",
            field="store",
            value=str(store),
            remedy=f"give the directory of the array, {str(root.parent)!r}",
        )
    if name is None or name == "":
        return Directory(root)
    _check_name(name)
    return Directory(root, name)


def _in_zip(store: Store) -> Store:
    """A finished ZIP file as a store that knows the state of the file, if it can be one.

    It cannot if the part of the package is missing, or refuses what zarr-python reads.
    """
    given: Any = store.owner
    if not is_zip_store(given) or not given.read_only:
        return store
    try:
        found: Store = resolve("file as a store", "zip")(given.path)
        next(iter(found.list_keys()), None)
    except (LookupError, SpecError):
        return store
    store.has(DOCUMENT)  # opens the store of zarr-python, which otherwise cannot close it
    return found


def refuse_names(
    names: Iterable[str], label: str, *, as_text: bool, as_it_is: bool = False
) -> None:
    """Refuse a hierarchy whose nodes have names that no new node can have.

    - `as_text`: whether names must be Unicode, since they become keys in a store or lines of a
      record.
    """
    for name in names:
        is_text = not as_text or name.encode(errors="ignore").decode() == name
        is_plain = not name or as_it_is or all(_is_plain(part) for part in name.split("/"))
        if not (is_text and is_plain):
            raise SpecError(
                f"the name {name!r} in it is reserved, too long, or no text, and no new array or "
                "group can have it",
                field="src",
                value=label,
                remedy=f"rename it, or leave it out with exclude={name!r} (--exclude)",
            )


def refuse_hierarchy(place: Place, field: str) -> None:
    """Refuse a place in a hierarchy of 2022 for an array or a group of Zarr v3.

    - `field`: argument that names the place.
    """
    if place.hierarchy:
        raise SpecError(
            f"is in a {place.hierarchy}",
            field=field,
            value=place.label,
            remedy="give another place",
        )


def _check_name(name: Any) -> None:
    """Refuse a name of an array that is not a relative path of plain names, and of not too many."""
    if (
        not isinstance(name, str)
        or _SCHEME.match(name)
        or not all(_is_plain(part) for part in name.split("/"))
    ):
        raise SpecError(
            "not a relative path of plain names",
            field="name",
            # Options of a store that stand in this place may be credentials.
            value=type(name).__name__ if isinstance(name, Mapping) else name,
            remedy='give for instance "images/raw"',
        )
    n_parts = name.count("/") + 1
    if n_parts > _MOST_PARTS:  # looks at groups take time that grows with the square
        raise SpecError(
            f"it has {n_parts:,} parts",
            field="name",
            value=name,
            remedy=f"give one of at most {_MOST_PARTS} parts",
        )


def _is_store(store: Any) -> bool:
    """Whether a value is a store, or belongs to zarr-python, or is a bucket's URL; else a path."""
    if isinstance(store, str | os.PathLike):
        text = os.fspath(store)
        return isinstance(text, str) and is_store_url(text)
    from shardwrite.stores.bucket_kinds import is_bucket

    kinds = type(store).__mro__
    return (
        isinstance(store, Store)
        or is_bucket(store)
        or is_icechunk(store)
        or any(kind.__module__.partition(".")[0] == "zarr" for kind in kinds)
    )


def is_array(store: Any) -> bool:
    """Whether what a user gives for a store is an array of zarr-python."""
    return any(
        kind.__module__.partition(".")[0] == "zarr" and kind.__name__ in ("Array", "AsyncArray")
        for kind in type(store).__mro__
    )


def is_zip_store(store: Any) -> bool:
    """Whether what a user gives for a store is a store of zarr-python that is one ZIP file."""
    kind = type(store)
    return kind.__module__.partition(".")[0] == "zarr" and kind.__name__ == "ZipStore"


def _joined(path: str, name: Any) -> Any:
    """Name of an array inside a store, from its name inside a group of the store."""
    if name is not None and not isinstance(name, str):
        return name  # is refused
    return "/".join(part for part in (path, name) if part) or None


def _root_of(store: Any) -> Path | None:
    """Directory of a path or ``file:`` URL; None if no directory can have that name."""
    text = os.fspath(store) if isinstance(store, str | os.PathLike) else None
    if not isinstance(text, str):
        # Only the type of other objects is shown, since their text may contain credentials.
        given = store if isinstance(store, int | float | None) else type(store).__name__
        remedy = "give a directory's path or a file:// URL"
        if hasattr(store, "shape"):
            remedy += " after the array"
        raise SpecError("not a path", field="store", value=given, remedy=remedy)
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() != "file":
        remedy = (
            "give a directory's path, a file:// URL, or a bucket's URL such as "
            "s3://bucket/x.zarr; storage_options={} opens what fsspec knows"
        )
        raise SpecError("no known kind of URL", field="store", value=text, remedy=remedy)
    text = local_path(text)
    if not text or not _can_be_a_path(text):
        return None
    try:
        return Path(text).absolute()
    except FileNotFoundError:
        raise SpecError(
            "is relative to a working directory that is gone",
            field="store",
            value=text,
            remedy="change to a directory that exists, or give an absolute path",
        ) from None


def _without_dots(path: Path) -> Path:
    """The path without ``..``, which a directory that is a link gives another meaning.

    The parents of a path are looked at for groups and arrays, so they must be those that hold it.
    """
    if ".." not in path.parts:
        return path
    whole = Path(os.path.realpath(path))
    # The last part is left as it is: a link in the place of an array is refused.
    return whole if path.name == ".." else Path(os.path.realpath(path.parent), path.name)


def _can_be_a_path(text: str) -> bool:
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return b"\0" not in encoded and all(
        # A directory of this suffix is one of those beside the array.
        len(part.removesuffix(CONVERSION_SUFFIX.encode())) <= _MAX_NAME_NBYTES
        for part in encoded.split(b"/")
    )


def _is_plain(part: str) -> bool:
    """Whether the Zarr specification allows a node name, and shardwrite does not reserve it."""
    is_reserved = part.startswith("__") and part != _OF_XARRAY
    is_taken = part in DOCUMENTS or is_reserved or part.endswith(RUN_SUFFIX)
    return bool(part.strip(".")) and not is_taken and _can_be_a_path(part)


# ---- Places whose shards wait on the disk of each machine until they are put


def target_via(target: Target, directory: Any) -> Target:
    """The target as one whose shards wait in a directory; see `place_via`."""
    if directory is None:
        return target
    from shardwrite.place.objects import InStore  # with a directory only

    if not isinstance(target.place, Directory | InStore):
        return target
    return replace(target, place=place_via(target.place, directory))


def place_via(place: Directory | InStore, directory: Any) -> Directory | InStore:
    """The place as one whose shards wait in a directory until they are put into a bucket.

    - `directory`: the directory, on each machine's own disk. With None, the place is returned as it
      is.
    """
    if directory is None:
        return place
    from shardwrite.place.objects import InStore  # with a directory only

    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        raise SpecError(
            "no directory",
            field="via",
            value=directory,
            remedy='give the path of a directory, such as "/local/scratch"',
        )
    where = local_path(os.fsdecode(directory), "via")
    base = place.base.via(where) if isinstance(place, InStore) else None
    if base is None or base.scratch is None or not isinstance(place, InStore):
        raise no_bucket(place.label, where)
    return replace(place, base=base)


def no_bucket(label: str, directory: str) -> SpecError:
    """Error of a directory for shards that wait, where they do not wait for a network."""
    return SpecError(
        f"is for buckets, and shards of {label} do not wait for a network",
        field="via",
        value=directory,
        remedy="leave it out, or give the URL of a bucket, such as s3://bucket/x.zarr",
    )


# ---- Checks of a place: whether an array may go there, and what is in the way


_LOST = "if a run has left it whose state is lost, call recover (shardwrite recover)"

_REFUSALS = {
    "group": ("a group stands there", "give another name= inside it, or remove it yourself"),
    "v2": ("a Zarr v2 array stands there", "give another path, or remove it yourself"),
    "v2 group": (
        "a Zarr v2 group stands there",
        "give another name= inside it, or remove it yourself",
    ),
    "torn": ("half a zarr.json stands there", "remove it yourself, after a look"),
    "other": (
        "something that is no Zarr array stands there",
        f"give another path, or remove it yourself; {_LOST}",
    ),
    "link": ("a symbolic link stands there", "give the path that it points to"),
}


REPLACE = 'give mode="w" to replace it'
"""Remedy where an array exists."""


def by_groups(targets: Iterable[Target]) -> list[list[Target]]:
    """Some arrays, together with those in the same group. What lies above these is the same."""
    found: dict[object, list[Target]] = {}
    for target in targets:
        found.setdefault(target.above or target, []).append(target)
    return list(found.values())


def firsts_of(targets: Iterable[Target]) -> frozenset[Target]:
    """The first of some arrays in each group; see `by_groups`."""
    return frozenset(beside[0] for beside in by_groups(targets))


def check_target(
    target: Target, mode: str, remedy_if_there: str = REPLACE, *, looks_above: bool = True
) -> None:
    """Check that nothing stands in an array's place that must not be overwritten.

    - `mode`: see :func:`shardwrite.to_sharded_zarr`.
    - `remedy_if_there`: what can be done where an array exists. Not every operation can replace it.
    - `looks_above`: whether to check what lies above, too.
    """
    kind = target.place.kind()
    if kind == "array" and mode == "w-" and not target.recovers:
        raise SpecError(
            "an array exists there",
            field="store",
            value=target.label,
            remedy=remedy_if_there,
        )
    unknown = target.place.unknown_run() if kind == "other" else None
    if unknown is not None:
        remedy = f"or give another path; {unknown.remedy}"
        raise SpecError(unknown.told, field="store", value=target.label, remedy=remedy)
    if kind in _REFUSALS and not (kind == "other" and target.recovers):
        why, remedy = _REFUSALS[kind]
        raise SpecError(why, field="store", value=target.label, remedy=remedy)
    if mode != "r+":
        if looks_above:
            check_around(target.place)
        _check_inside(target.place)


def refuse_kept(target: Target) -> None:
    """Refuse to replace an array by something else, if its format forbids it; see `why_kept`."""
    data = target.place.read(DOCUMENT)
    try:
        document = None if data is None else parse_json(data)
    except ValueError:  # no array
        return
    why = why_kept(document) if isinstance(document, dict) else ""
    if why:
        raise SpecError(
            f"what stands there cannot be replaced: {why}",
            field="store",
            value=target.label,
            remedy="give another path, or remove the scale and its entry in info yourself",
        )


def _check_inside(place: Place) -> None:
    """Refuse the replacement of an array that contains a node."""
    inside = place.node_inside()
    if inside is not None:
        remedy = "move that away, or give another path"
        raise SpecError(
            f"another array or group stands inside it, {inside}",
            field="store",
            value=place.label,
            remedy=remedy,
        )


def check_around(place: Place) -> None:
    """Refuse an array inside another array, since neither could be removed or copied by itself."""
    around = place.array_around()
    if around is not None:
        remedy = "give a path outside of it, or a group for both"
        raise SpecError(
            f"lies inside the array {around}", field="store", value=place.label, remedy=remedy
        )


def warn_of_v2(target: Target, kinds: Mapping[str, str] = MappingProxyType({})) -> None:
    """Warn that readers do not find a new array through a group of Zarr v2 above it.

    - `kinds`: what stands where some of the groups should be, by label.
    """
    for group in reversed(target.place.groups):
        kind = kinds.get(group.label) or group.kind_for_group()
        if kind == "v2 group":
            warnings.warn(
                f"{group.label} is a group of Zarr v2, which lists no arrays of Zarr v3. Open the "
                f"new array by its path: {target.label}",
                stacklevel=2,
            )
        if kind != "nothing":
            return


def check_surroundings(target: Target, *, looks_above: bool = True) -> dict[str, str]:
    """Check that a place can hold an array, whatever stands there now.

    - Returns: what stands where the groups above should be, by label.
    """
    place, kinds = target.place, {}
    for group in place.nodes_above if looks_above else ():
        kind = kinds[group.label] = group.kind_for_group()
        if kind == "other" and target.recovers and _has_no_files(group):
            continue  # the run whose state is lost was to make the group at its end
        if kind not in ("nothing", "group", "v2 group"):
            why = (
                "an array stands" if kind == "array" else _REFUSALS[kind][0].removesuffix(" there")
            )
            remedy = _REFUSALS["link"][1] if kind == "link" else "give another name or store"
            message = f"{why} where its group should be, at {group.label}"
            name = place.name_in(place.nodes_above[0])
            raise SpecError(message, field="name", value=name, remedy=remedy)
    has_state_directory(target)  # refuses a link or a file in its place
    if target.place.is_mount_point():
        raise SpecError(
            "is a mount point, and shards are renamed from there into the directory beside it",
            field="store",
            value=target.label,
            remedy='give a path inside it, or a name, such as name="array"',
        )
    if target.place.is_link():
        why, remedy = _REFUSALS["link"]
        raise SpecError(why, field="store", value=target.label, remedy=remedy)
    return kinds


def untouched(targets: Iterable[Target]) -> frozenset[Target]:
    """Those of new arrays of which nothing is there.

    Nothing above them is looked at. Another process may begin to write them at any time.
    """
    directories: dict[object, list[Target]] = {}
    for target in targets:
        if not (target.update or target.recovers):
            directories.setdefault(target.above, []).append(target)
    found = set[Target]()
    for beside in directories.values():
        if not isinstance(beside[0].place, Directory):
            found.update(
                one for one in beside if not one.place.is_occupied() and not is_there(one.beside)
            )
            continue
        stands = standing(beside)
        for target in beside:
            path = target.directory.path
            if not any(map(stands, (path, target.beside, conversion_beside(path)))):
                found.add(target)
    return frozenset(found)


def standing(targets: Iterable[Target]) -> Callable[[Path], bool]:
    """A function that tells whether something stands at the path of an array or beside it.

    Where many of some arrays lie in one directory, that is listed once, now. A list of all that is
    there may be long.
    """
    each = [one for one in targets if isinstance(one.place, Directory)]
    directories = [at for one in each for at in {one.directory.path.parent, one.beside.parent}]
    many = (directory for directory, n in Counter(directories).items() if n > FEW)
    names = {directory: frozenset(names_in(directory)) for directory in many}

    def stands(path: Path) -> bool:
        there = names.get(path.parent)
        return bool(mode_of(path, follow=False)) if there is None else path.name in there

    return stands


@contextlib.contextmanager
def remembering(targets: Iterable[Target]) -> Iterator[None]:
    """Have documents of some arrays, and of what lies above them, read once inside the block.

    - `targets`: the arrays. Only if their run state lies in a bucket does one process work alone.
    """
    each = (target.place.seen for target in targets if target.in_store)
    with contextlib.ExitStack() as stack:
        for seen in {id(seen): seen for seen in each if seen is not None}.values():
            stack.enter_context(seen.remembering())
        yield


def ways_to(targets: Sequence[Target]) -> list[int]:
    """A number for each target: those of one number are reached with the same rights.

    In a store these are its credentials. A run works on all of its arrays with the rights to one.
    """
    ways, numbers = list[tuple[str, object]](), list[int]()
    for target in targets:
        place = target.place
        base = None if isinstance(place, Directory) else cast("InStore", place).base
        token, owner = ("", None) if base is None else (base.token, base.owner)
        known = (
            number
            for number, (other, by) in enumerate(ways)
            if other == token and (by is owner or bool(by == owner))
        )
        numbers.append(next(known, len(ways)))
        if numbers[-1] == len(ways):
            ways.append((token, owner))
    return numbers


def _has_no_files(place: Place) -> bool:
    """Whether nothing but directories lies in a directory itself."""
    return isinstance(place, Directory) and all(
        stat.S_ISDIR(mode_of(entry, follow=False)) for entry in listed(place.path)
    )


def has_state_directory(target: Target) -> bool:
    """Whether the directory of the run state is there.

    - Raises SpecError if a link or a file has its name.
    """
    beside = target.beside
    mode = mode_of(beside, follow=False)
    if stat.S_ISLNK(mode):
        raise SpecError(
            f"a symbolic link stands beside it, whose owner is {owner_of(beside)}",
            field="store",
            value=str(beside),
            remedy="remove the link",
        )
    if mode and not stat.S_ISDIR(mode):
        raise SpecError(
            f"a file stands beside it, whose owner is {owner_of(beside)}",
            field="store",
            value=str(beside),
            remedy="move the file away",
        )
    return mode != 0


# ---- Unfinished work of wings beside an array, which the core knows by names of files alone
#
# <leaf>.conversion.shardwrite/record.json
#     The tree of that name is converted or consumed. Nothing else writes to it; see
#     `convert.swap`.
# consumes.json in the directory of a run
#     The shards of the run hold what was removed elsewhere. They are not taken away; see
#     `convert.removal`.


CONSUMES = "consumes.json"
RECORD = "record.json"


def conversion_beside(path: Path) -> Path:
    """Directory of a conversion of the tree at a path in its place."""
    return path.with_name(path.name + CONVERSION_SUFFIX)


def refuse_in_place(
    path: Path,
    seen: dict[Path, None] | None = None,
    stands: Callable[[Path], bool] = lambda _: True,
) -> None:
    """Refuse to write to an array that is being converted in its place, or lies in such a tree.

    - `seen`: directories that are not looked at again; those that were looked at are added.
    - `stands`: tells where it is in vain to look closer; see `standing`.
    """
    seen = {} if seen is None else seen
    for tree in (path, *path.parents):
        if tree in seen:
            return
        seen[tree] = None
        beside = conversion_beside(tree) if tree.name else None
        if beside is not None and (tree != path or stands(beside)) and is_there(beside / RECORD):
            raise JournalError(
                f"{tree} is being converted in its place, and nothing else may write to it. Make "
                "the same call again to finish that (shardwrite shard, unshard or reshard), "
                "or give it up with abandon (shardwrite abandon), which leaves the old data",
                path=str(conversion_beside(tree)),
            )


def abandon_in_place(target: Target) -> bool:
    """Give up work on the tree at a place, if there is any, by the wing that has begun it."""
    path = target.place.tree_path
    if path is None or not is_there(conversion_beside(path)):
        return False
    try:
        give_up: Any = resolve("abandon", "in place")
    except LookupError as error:
        raise JournalError(
            f"{path} is being converted in its place, and {error.args[0]}. Nothing is given up; "
            f"{REMEDY}, and make this call again",
            path=str(conversion_beside(path)),
        ) from error
    is_given_up: bool = give_up(target.place)
    return is_given_up
