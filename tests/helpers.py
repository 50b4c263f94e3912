"""What tests of several folders need: commands in this process, contents of directories, and ways to
end a call."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where many small files are written fastest, if there is such a place."""


def scratch(prefix: str) -> Path:
    """A new directory there."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY))


class Stop(Exception):  # noqa: N818
    """Ends a call."""


class Killed(BaseException):
    """Ends a call as a kill would: no handler of errors takes it."""


def stop(*_: object, **__: object) -> NoReturn:
    """Given as `progress`, or as a source: end the call."""
    raise Stop


def run(*words: object) -> Any:
    """A command, in this process."""
    from click.testing import CliRunner

    from shardwrite.cli import main

    return CliRunner().invoke(main, [str(word) for word in words])


def printed(*words: object, code: int = 0) -> str:
    """What a command prints that ends with an exit code."""
    done = run(*words)
    assert done.exit_code == code, done.output
    return done.output


def contents(root: str | PathLike[str], pattern: str = "*") -> dict[str, bytes]:
    """The bytes of all files below a directory whose names have a pattern, by their paths in it."""
    files = (path for path in sorted(Path(root).rglob(pattern)) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def without_receipts(root: str | PathLike[str]) -> dict[str, bytes]:
    """The same without receipts, of which each run leaves another one."""
    return {path: data for path, data in contents(root).items() if "receipt" not in path}


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of each file by its path, without receipts."""
    return {path: hashlib.sha256(data).hexdigest() for path, data in without_receipts(root).items()}


def shards_in(root: str | PathLike[str]) -> dict[str, bytes]:
    """The shards of a scale of a volume."""
    return contents(root, "*.shard")


def all_in(root: Path) -> dict[str, bytes | None]:
    """Files and directories below a directory; directories have no content."""
    names = {path.relative_to(root).as_posix(): None for path in root.rglob("*")}
    return {**names, **contents(root)}


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def wait_for(happens: Callable[[], Any], seconds: float = 120) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
