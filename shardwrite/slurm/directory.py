"""The directory that holds the job scripts of one array.

Scripts of another array are never overwritten.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shardwrite.errors import SpecError
from shardwrite.place.target import Target, resolve_target
from shardwrite.slurm.client import root_of
from shardwrite.stores import is_store_url

ARRAY, FINALIZE = "array.sbatch", "finalize.sbatch"
_DIGITS = 8
_STEM_NBYTES = 200  # leaves room for the suffix: file systems allow names of 255 bytes


@dataclass(frozen=True, slots=True)
class Scripts:
    """What the scripts in a directory do, as read from their text."""

    # The array that they write. None if they write different arrays, or if their text does not
    # tell, for instance because a user has edited them.
    target: Target | None
    n_parts: int  # number of the array's parts; 0 if the scripts do not tell
    at_once: str  # limit of tasks that run at a time, such as ``%4``; empty if there is none


def default_directory(target: Target) -> Path:
    """Default directory for the scripts of an array, relative to the working directory.

    Its name holds the array's name, and a digest of the array's path, which tells arrays of the
    same name apart.

    Examples
    --------
    >>> (
    ...     default_directory(resolve_target("/x/scan.zarr", None)),
    ...     default_directory(resolve_target("/y/scan.zarr", None)),
    ... )
    (PosixPath('scan-slurm-c6959afd'), PosixPath('scan-slurm-8419f783'))
    """
    path = _path_of(target)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:_DIGITS]
    stem = os.fsencode(path.stem)[:_STEM_NBYTES].decode(errors="ignore")
    return Path(f"{stem}-slurm-{digest}")


def read_scripts(directory: Path) -> Scripts | None:
    """Read what the scripts in a directory do; None if it holds no scripts."""
    texts = [
        path.read_text(errors="replace")
        for name in (ARRAY, FINALIZE)
        if (path := directory / name).is_file()
    ]
    if not texts:
        return None
    targets = [_target_in(text, directory) for text in texts]
    is_one = len({None if target is None else _path_of(target) for target in targets}) == 1
    parts = {
        found[1] for text in texts if (found := re.search(r"^PARTS=(\d+)$", text, re.MULTILINE))
    }
    throttle = re.search(r"^#SBATCH --array=[\d,:-]+(%\d+)$", texts[0], re.MULTILINE)
    return Scripts(
        target=targets[0] if is_one else None,
        n_parts=int(parts.pop()) if len(parts) == 1 else 0,
        at_once=throttle[1] if throttle else "",
    )


def _target_in(text: str, directory: Path) -> Target | None:
    """Array that a script writes, by its lines ``DST=`` and ``OPTIONS=``.

    None if the lines do not tell.
    """
    root = _values(text, "DST", r"(.*)")
    options = _values(text, "OPTIONS", r"\((.*)\)")
    if root is None or options is None or len(root) != 1:
        return None
    names = [value for option, value in pairwise(options) if option == "--name"]
    if "--name" in options and not names:
        return None
    path = root[0] if is_store_url(root[0]) else os.path.normpath(directory / root[0])
    return resolve_target(path, names[-1] if names else None)


def _path_of(target: Target) -> Path:
    """Path of an array, or its URL as a path, which tells it from all other arrays."""
    return Path(root_of(target)) / target.place.name


def _values(text: str, name: str, pattern: str) -> list[str] | None:
    """Words that a script assigns to a variable.

    None if there is not exactly one such line, or if only a shell could expand it.
    """
    found = re.findall(rf"^{name}={pattern}$", text, re.MULTILINE)
    if len(found) != 1:
        return None
    bare = re.sub(r"'[^']*'", "", found[0])
    if any(character in bare for character in "$`\\~"):
        return None
    try:
        return shlex.split(found[0])
    except ValueError:
        return None


def write_scripts(directory: Path, target: Target, scripts: Mapping[str, str]) -> None:
    """Write the scripts of an array, and make the directory ``logs`` beside them."""
    check_directory(directory, target)
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    for leaf, text in scripts.items():
        (directory / leaf).write_text(text)


def check_directory(directory: Path, target: Target) -> None:
    """Refuse a directory that holds scripts of another array."""
    there = read_scripts(directory)
    if there is not None and (there.target is None or _path_of(there.target) != _path_of(target)):
        whose = (
            "scripts of your own"
            if there.target is None
            else f"the scripts that write {there.target.label}"
        )
        remedy = f"give another, or leave it out: that is {default_directory(target)}"
        raise SpecError(
            f"{whose} are there", field="directory", value=str(directory), remedy=remedy
        )
