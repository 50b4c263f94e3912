"""Listing of the objects in a directory tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from shardwrite.stores.looking import listed, mode_of
from shardwrite.stores.temporaries import TEMPORARY_SUFFIX


def keys_below(root: Path, prefix: str) -> Iterator[str]:
    """Keys of all regular files below a prefix, in the order of their names in each directory.

    Links are neither listed nor followed. Temporaries are not listed. What is removed meanwhile may
    be missing.

    - `prefix`: checked prefix; empty, or a relative path that ends in a slash.
    """
    for path in listed(os.path.join(root, prefix)):
        mode = mode_of(path, follow=False)
        if stat.S_ISDIR(mode):
            yield from keys_below(root, f"{prefix}{path.name}/")
        elif stat.S_ISREG(mode) and not path.name.endswith(TEMPORARY_SUFFIX):
            yield prefix + path.name
