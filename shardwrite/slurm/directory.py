"""The directory of a submission's scripts: one for each array, and never the scripts of another."""

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
from shardwrite.target import Target, resolve_target

__all__ = ["Scripts", "check_directory", "default_directory", "read_scripts", "write_scripts"]

ARRAY, FINALIZE = "array.sbatch", "finalize.sbatch"
_DIGITS = 8
_STEM_NBYTES = 200  # what file systems allow, less what is added


@dataclass(frozen=True, slots=True)
class Scripts:
    """What a directory's scripts say that they do.

    Attributes
    ----------
    target : Target or None
        The array that they write; None where they are not as we write them.
    n_parts : int
        Its parts; 0 where the scripts do not say.
    at_once : str
        The limit of tasks at a time, as ``%4``; empty where there is none.
    """

    target: Target | None
    n_parts: int
    at_once: str


def default_directory(target: Target) -> Path:
    """Where the scripts of an array go: a name to recognise, and what tells it from arrays of the same name.

    Examples
    --------
    >>> default_directory(Target(Path("/x/scan.zarr"))), default_directory(Target(Path("/y/scan.zarr")))
    (PosixPath('scan-slurm-c6959afd'), PosixPath('scan-slurm-8419f783'))
    """
    digest = hashlib.sha256(os.fsencode(target.path)).hexdigest()[:_DIGITS]
    stem = os.fsencode(target.path.stem)[:_STEM_NBYTES].decode(errors="ignore")
    return Path(f"{stem}-slurm-{digest}")


def read_scripts(directory: Path) -> Scripts | None:
    """What the scripts in a directory write; None where there are none."""
    texts = [
        path.read_text(errors="replace")
        for name in (ARRAY, FINALIZE)
        if (path := directory / name).is_file()
    ]
    if not texts:
        return None
    targets = {_target_in(text, directory) for text in texts}
    parts = {
        found[1] for text in texts if (found := re.search(r"^PARTS=(\d+)$", text, re.MULTILINE))
    }
    throttle = re.search(r"^#SBATCH --array=[\d,:-]+(%\d+)$", texts[0], re.MULTILINE)
    return Scripts(
        target=targets.pop() if len(targets) == 1 else None,
        n_parts=int(parts.pop()) if len(parts) == 1 else 0,
        at_once=throttle[1] if throttle else "",
    )


def _target_in(text: str, directory: Path) -> Target | None:
    """The array that a script writes, by its lines ``DST=`` and ``OPTIONS=``."""
    root = _values(text, "DST", r"(.*)")
    options = _values(text, "OPTIONS", r"\((.*)\)")
    if root is None or options is None or len(root) != 1:
        return None
    names = [value for option, value in pairwise(options) if option == "--name"]
    if "--name" in options and not names:
        return None
    return resolve_target(os.path.normpath(directory / root[0]), names[-1] if names else None)


def _values(text: str, name: str, pattern: str) -> list[str] | None:
    """Words that a line gives a variable; None where the shell would have to be asked."""
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
    """Write an array's scripts, and make a directory for logs; those of another array are not overwritten.

    Raises
    ------
    SpecError
        If other scripts are there.
    """
    check_directory(directory, target)
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    for leaf, text in scripts.items():
        (directory / leaf).write_text(text)


def check_directory(directory: Path, target: Target) -> None:
    """Refuse a directory with scripts of another array, or that nobody can tell.

    Raises
    ------
    SpecError
        Naming the array that the scripts write.
    """
    there = read_scripts(directory)
    if there is not None and (there.target is None or there.target.path != target.path):
        whose = (
            "scripts of your own"
            if there.target is None
            else f"the scripts that write {there.target.path}"
        )
        remedy = f"give another, or leave it out: that is {default_directory(target)}"
        raise SpecError(
            f"{whose} are there", field="directory", value=str(directory), remedy=remedy
        )
