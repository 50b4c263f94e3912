"""Where the state of a run lies, if its array lies in no directory.

The state of a run is a directory of files, whatever the array's store is. A user names a directory
for it: by ``run_dir=``, or once by ``shardwrite.run-dir`` in the configuration of dask. Arrays have
subdirectories there. A store in memory needs none: the state of its runs is kept in a temporary
directory until the store is deleted. A bucket needs none either: each process has a temporary
directory, and `journal.state_work` keeps a copy of it in the bucket. The state of an upload lies
beside the directory that is uploaded, unless the user has named one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwrite._lazy import if_loaded
from shardwrite.config.table import RUN_DIR, value_of
from shardwrite.errors import SpecError
from shardwrite.stores.base import Store, token_of
from shardwrite.stores.directories import RUN_SUFFIX
from shardwrite.stores.looking import as_store_error, local_path

if TYPE_CHECKING:
    from shardwrite.place.objects import InStore

_lock = threading.RLock()
_directories: dict[str, str] = {}


def _is_path(chosen: Any) -> bool:
    """Whether something can be the path of a directory."""
    path = os.fsdecode(chosen) if isinstance(chosen, str | os.PathLike) else ""
    return path != "" and "\0" not in path


def run_state_of(place: InStore, run_dir: Any, *, is_read: bool) -> tuple[Path, bool]:
    """Directory of the run state of an array in a store.

    - `is_read`: promise that nothing will be written. A directory that does not exist will do.
    - Returns: also whether the directory belongs to this process alone, and the state lies in the
      array's store.
    """
    chosen = value_of(RUN_DIR) if run_dir is None else run_dir
    if chosen is not None and not _is_path(chosen):
        remedy = 'give the path of a directory, such as "/scratch/me/runs"'
        raise SpecError("no directory", field="run_dir", value=chosen, remedy=remedy)
    if chosen is None and place.base.is_in_memory:
        chosen = _scratch(place.base)
    in_store = chosen is None and _is_in_bucket(place)
    if in_store:
        chosen = private_directory(os.getpid())
    if chosen is None:
        if is_read:
            return Path(tempfile.gettempdir(), f"none-{uuid.uuid4().hex}"), False
        raise SpecError(
            "the array lies in no directory, so the state of a run has no place beside it",
            field="run_dir",
            value=None,
            remedy="give a directory that all processes of the run see, such as "
            f'run_dir="/scratch/me/runs", or set {RUN_DIR.path} in the configuration of dask',
        )
    directory = Path(local_path(os.fsdecode(chosen), "run_dir")).absolute()
    root = place.base.local_root
    if root is not None and directory.resolve().is_relative_to(root.resolve()):
        raise SpecError(
            "lies inside the store",
            field="run_dir",
            value=str(directory),
            remedy="give a directory outside of it",
        )
    return directory / state_name(place), in_store


def state_name(place: InStore) -> str:
    """Name of the directory of the run state of an array in a store.

    One place has one name, however it is divided between the store and the name in it.
    """
    return _named("/".join(filter(None, (place.base.token.rstrip("/"), place.name))))


def name_in_state(place: InStore) -> str:
    """Name of the directory of an array in a state that lies in the same bucket.

    It is the same by whatever address a process reaches the service.
    """
    return _named(f"/{place.whole_name}")


def _named(where: str) -> str:
    digest = blake2b(where.encode(), digest_size=8).hexdigest()
    last = (where.partition("/")[2].rpartition("/")[2] or "array").encode()[:100]
    return f"{last.decode(errors='ignore')}-{digest}{RUN_SUFFIX}"


def _is_in_bucket(place: InStore) -> bool:
    """Whether the array lies in a bucket, or in another store that keeps the state of runs."""
    is_plain = type(place) in if_loaded("shardwrite.place.objects", "InStore")
    return is_plain and place.base.keeps_state


@cache
def private_directory(pid: int) -> str:  # noqa: ARG001 (a process that was forked has its own)
    """Temporary directory of this process for states that lie in buckets, removed at its exit."""
    made = tempfile.mkdtemp(prefix="shardwrite-")
    atexit.register(_discard_private, made, os.getpid())
    return made


def _discard_private(path: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def own_run_dir(run_dir: Any) -> Iterator[Any]:
    """Make a directory in that for run state, for a run that no other call can continue.

    - Yields: a new directory, which is removed at the end; None if no directory is given, or none
      that can be one.
    """
    chosen = value_of(RUN_DIR) if run_dir is None else run_dir
    if not (isinstance(chosen, str | os.PathLike) and os.fspath(chosen)):
        yield run_dir
        return
    where = local_path(os.fsdecode(chosen), "run_dir")
    with as_store_error(where, "cannot make a directory in"):
        os.makedirs(where, exist_ok=True)
        made = tempfile.mkdtemp(prefix="shardwrite-", dir=where)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _scratch(store: Store) -> str:
    """A temporary directory that lives as long as the objects of a store of this process."""
    token = token_of(store.owner)
    with _lock:
        if token not in _directories:
            _directories[token] = tempfile.mkdtemp(prefix="shardwrite-")
            weakref.finalize(store.owner, _discard, token, os.getpid())
        return _directories[token]


def _discard(token: str, pid: int) -> None:
    if os.getpid() == pid:  # and not a process that was forked from it
        shutil.rmtree(_directories.pop(token), ignore_errors=True)
