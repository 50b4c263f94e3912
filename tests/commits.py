"""What scripts share that look at a commit of this repository, and not only at the working tree."""

from __future__ import annotations

import argparse
import contextlib
import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def checked_out(commit: str, into: Path) -> Path:
    """The tree of a commit, in a directory that is made where it is missing; or the directory that
    was named."""
    if Path(commit).is_dir():
        return Path(commit).resolve()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if archive.returncode:
        sys.exit(
            f"{commit} is neither a directory nor a commit of this clone: "
            f"{archive.stderr.decode().strip()}; fetch it first"
        )
    into.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", into], input=archive.stdout, check=True)
    return into


@functools.cache
def n_changes(commit: str, *paths: str) -> int | None:
    """How many commits that change some paths came after a commit; None if the commit is not here.

    It is not here in a clone that has the last commits only.
    """
    command = ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    except FileNotFoundError:  # no git
        return None
    return int(done.stdout) if done.returncode == 0 else None


def parser_of(description: str) -> argparse.ArgumentParser:
    """Arguments of a script, of which the first may be a commit."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="a commit, or a directory with the package")
    return parser


@contextlib.contextmanager
def tree_of(commit: str | None) -> Iterator[Path]:
    """The tree of a commit while the block runs; without one, the working tree."""
    with tempfile.TemporaryDirectory() as scratch:
        yield ROOT if commit is None else checked_out(commit, Path(scratch))
