"""Directories for the state of runs in buckets whose processes were killed.

A process keeps the state of its runs in a bucket, and works on a directory among the temporary
files of its host. It removes the directory when it ends. If it is killed, the directory stays with
its encoded units. So the directory names its process, and the next process of the same
user on the same host removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

from shardwrite.errors import StoreError
from shardwrite.journal.lease import lives, this_process
from shardwrite.journal.process import Process, process_in
from shardwrite.stores import as_store_error, is_there, listed

_OWNER = "process.json"


def begin_private(directory: Path) -> None:
    """Begin to use the private directory of this process, which may be in use already."""
    owner = directory / _OWNER
    if is_there(owner):
        return
    me = this_process()
    with as_store_error(str(directory), "cannot write to"):
        directory.mkdir(parents=True, exist_ok=True)
        owner.write_text(json.dumps(me.to_dict()))
    with contextlib.suppress(StoreError):  # where nothing can be listed, nothing is removed
        for other in listed(directory.parent, f"{directory.name.partition('-')[0]}-"):
            if _is_left_over(other, me):
                shutil.rmtree(other, ignore_errors=True)


def _is_left_over(directory: Path, me: Process) -> bool:
    """Whether a process of this user on this host has made a directory, and is gone."""
    found = _owner_of(directory)
    if found is None or not me.boot or (found.boot, found.pids) != (me.boot, me.pids):
        return False
    return not lives(found, me, 0.0)


def _owner_of(directory: Path) -> Process | None:
    """The process of such a directory of this user; None if it is another one."""
    try:
        if directory.lstat().st_uid != os.geteuid():
            return None
        return process_in((directory / _OWNER).read_bytes())
    except OSError:  # it has no such file, or is being removed
        return None
