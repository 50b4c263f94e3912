"""The ``info`` of a volume, which runs on several scales change one after the other."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.precomputed.info import INFO
from shardwrite.journal.lock import Claim, exclusive
from shardwrite.place.base import RUN_SUFFIX
from shardwrite.stores import (
    as_store_error,
    discard_file,
    make_directories,
    parse_json,
    read_file,
    write_file,
)

__all__ = ["change_info", "read_volume"]

_ATTEMPT = "info.0"  # a process that was killed leaves a temporary of this name to the next one
_MAX_TRIES = 8


def read_volume(root: Path) -> Any:
    """The parsed ``info`` in a directory; None if there is none.

    Raises
    ------
    SpecError
        If it is no JSON.
    StoreError
        If it cannot be read.
    """
    data = read_file(root / INFO)
    if data is None:
        return None
    try:
        return parse_json(data)
    except ValueError as error:
        raise SpecError(
            f"not valid: {error}",
            field=INFO,
            value=str(root / INFO),
            remedy="mend it, or remove it",
        ) from error


def change_info(root: Path, change: Callable[[Any], Document], durability: str) -> None:
    """Write a new ``info``, made from the one that stands there, while no other process does so.

    Parameters
    ----------
    root : pathlib.Path
        Directory of the volume.
    change : callable
        Makes the new document of the old one, or of None.
    durability : str
        Durability level of the document.

    Raises
    ------
    JournalError
        If another process does not finish its change.
    StoreError
        If the document cannot be written.
    """
    with _alone(root, durability) as claim:
        old = read_volume(root)
        new = change(old)
        if new != old:
            discard_file(root / INFO, _ATTEMPT)
            data = json.dumps(new, indent=2).encode() + b"\n"
            write_file(
                root / INFO,
                data,
                durability=durability,
                attempt=_ATTEMPT,
                guard=claim.check,
                like=root / INFO,
            )


@contextlib.contextmanager
def _alone(root: Path, durability: str) -> Iterator[Claim]:
    """Hold the claim on the ``info``, in a directory that is removed again."""
    beside = root / f"{INFO}{RUN_SUFFIX}"
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, beside)
        for attempt in itertools.count(1):
            try:
                with as_store_error(str(beside), "cannot make"):
                    make_directories(beside, durability)
                claim = stack.enter_context(exclusive(beside / "claim", beside))
                break
            except StoreError as error:
                # Another process that is done has just removed the directory.
                if error.fields["errno"] != errno.ENOENT or attempt == _MAX_TRIES:
                    raise
        yield claim


def _remove_empty(beside: Path) -> None:
    with contextlib.suppress(OSError):  # another process uses it
        beside.rmdir()
