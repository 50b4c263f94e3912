"""The removal of data: by one function, on a proof, and through the run's own directory.

Data are an array that stands in its place or was moved out of it, and the shards of an array. Nothing
else in this package removes them. Whoever asks for it shows an entry of the run's own plan or journal
that says that they are the run's own, and the entry is checked here.

Data are renamed into the run's directory first. A takeover has renamed that directory, so a process
that was frozen before its rename and thaws removes nothing of a successor's.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwrite.errors import StoreError
from shardwrite.stores.looking import listed, mode_of

__all__ = ["SET_ASIDE", "Proof", "data_in", "remove_data", "remove_state", "set_aside"]

SET_ASIDE = ("replaced", "array-", "removed-")
"""How names of data begin that a run has set aside in its directory."""


def _none() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Proof:
    """An entry of a run's own plan or journal that says which data are the run's own.

    Attributes
    ----------
    run_path : pathlib.Path
        Directory of the run.
    entry : mapping
        The entry. A plan names its ``run``, ``mode`` and ``array``, a line of the journal its ``attempt``.
    keys : callable
        Keys of the shards that it is about; asked for only where one of them is to go.
    """

    run_path: Path
    entry: Mapping[str, Any]
    keys: Callable[[], Collection[str]] = _none

    def covers(self, root: Path, key: str) -> bool:
        """Whether the entry says that something is the run's own; see :func:`remove_data`."""
        if root == self.run_path:
            return self._is_plan and key.startswith(SET_ASIDE)
        if key:
            return (self._is_plan or "attempt" in self.entry) and key in self.keys()
        return (
            self._is_plan
            and self.entry.get("mode") in ("w", "w-")
            and self.entry.get("array") in (None, root.name)
        )

    @property
    def _is_plan(self) -> bool:
        """Whether it is the plan of the run in whose directory it is shown."""
        return (
            bool(self.entry.get("run"))
            and self.run_path.name.partition("-")[2] == self.entry["run"]
        )


def set_aside(root: Path, key: str, proof: Proof, name: str) -> Path:
    """Move data into the run's directory, from where they can be had again; gives where they are.

    Parameters
    ----------
    root, key, proof
        See :func:`remove_data`.
    name : str
        What to call them there; begins as one of `SET_ASIDE`.

    Raises
    ------
    StoreError
        If the proof is about other data.
    FileNotFoundError
        If the data are gone, or the run's directory is.
    """
    path = root / key
    if not proof.covers(root, key):
        raise StoreError(
            f"{path} is not removed: nothing in {proof.run_path} says that it is the run's own. Look at it, and "
            "move it away, which deletes nothing",
            key=str(path),
            errno=errno.EPERM,
        )
    aside = proof.run_path / name
    os.rename(path, aside)
    return aside


def remove_data(root: Path, key: str, proof: Proof) -> None:
    """Remove a shard, an array, or what a run has set aside; what is gone already is passed over.

    Parameters
    ----------
    root : path
        The array, or the directory of the run.
    key : str
        Of the shard, or the name of what was set aside; empty for the array itself.
    proof : Proof
        What says that it is the run's own.

    Raises
    ------
    StoreError
        If the proof is about other data.
    FileNotFoundError
        If the run's directory is gone: another process has taken the run over.
    """
    name = key if root == proof.run_path else f"removed-{uuid.uuid4().hex}"
    try:
        aside = set_aside(root, key, proof, name)
    except FileNotFoundError:
        if not mode_of(proof.run_path):
            raise
        return  # a duplicate of this task was first
    _remove(aside)


def data_in(run_path: Path) -> list[str]:
    """Names of data that a run has set aside in its directory."""
    return [path.name for path in listed(run_path) if path.name.startswith(SET_ASIDE)]


def remove_state(directory: Path) -> None:
    """Remove files of a run, which another process may be removing too; never data.

    Raises
    ------
    StoreError
        If data lie there.
    """
    left = data_in(directory)
    if left:
        raise StoreError(
            f"{directory / left[0]} holds data, and no plan there says whose; look at it, and move it away, which deletes nothing",
            key=str(directory / left[0]),
            errno=errno.ENOTEMPTY,
        )
    _remove(directory)


def _remove(path: Path) -> None:
    """Remove a file or a tree, which another process may be removing too; links are not followed."""

    def failed(_: object, __: str, error: Any) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    if stat.S_ISDIR(mode_of(path, follow=False)):
        shutil.rmtree(path, onerror=failed)
    else:
        path.unlink(missing_ok=True)
