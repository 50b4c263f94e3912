"""What an operation has left behind, by listing names before and after.

Every harness of this folder counts in this way, so that the campaign's table can say it of every
row.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

DOCUMENTS = {"zarr.json", "shardwrite-receipt.json", "shardwrite-report.json"}
_OBJECT = re.compile(r"(?:(?P<array>.*)/)?c(?:/\d+)*")


def names_in(home: Path) -> set[str]:
    """Names of all files, links and directories below a directory."""
    return {path.relative_to(home).as_posix() for path in home.rglob("*")}


def left_over(home: Path, before: Collection[str] = (), own: Collection[str] = ()) -> list[str]:
    """Names below a directory that were not there before, and that are no part of an array.

    Parts are documents of arrays and groups, shards and chunks of an array that has a document, and
    the directories above them. What a repair has put into quarantine stays there on purpose.

    Parameters
    ----------
    home : pathlib.Path
        The directory.
    before : collection of str
        What `names_in` gave before the operation.
    own : collection of str
        Patterns of names that the harness itself has made.
    """
    names = names_in(home)
    parts = {name for name in names if _is_part(home, name)}
    parts |= {above.as_posix() for name in parts for above in Path(name).parents}
    return sorted(
        name
        for name in names - parts - set(before)
        if not any(fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*") for pattern in own)
    )


def _is_part(home: Path, name: str) -> bool:
    """Whether a name is that of a document, of a shard or chunk, or in quarantine."""
    found = _OBJECT.fullmatch(name)
    if found is not None:
        return (home / (found["array"] or "") / "zarr.json").exists()
    return Path(name).name in DOCUMENTS or is_aside(Path(name))


def is_aside(path: Path) -> bool:
    """Whether a repair has put it aside, where it stays."""
    return any(part.endswith((".quarantine", "shardwrite-quarantine")) for part in path.parts)
