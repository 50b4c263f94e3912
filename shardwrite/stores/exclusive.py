"""Creation of a file that only one process can win."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from shardwrite.stores.descriptors import write_new
from shardwrite.stores.temporaries import begin_temporary, forget_temporary, temporary_path

EXCLUSIVE_SCOPE = "new"
"""Scope of the temporaries of objects that are made only if nothing is there."""


def link_new(path: Path, data: bytes) -> bool:
    """Link a complete and synced file into its place, unless something is there.

    The entry in the directory is not synced.

    - `path`: path of the file. Its directory exists.
    """
    temporary = temporary_path(str(path.parent), path.name, f"{EXCLUSIVE_SCOPE}.{uuid.uuid4().hex}")
    begin_temporary(temporary)
    try:
        write_new(temporary, data, is_durable=True)
        os.link(temporary, path)
    except FileExistsError:
        # NFS repeats a link whose reply was lost, and then finds its own file.
        return os.path.samefile(temporary, path)
    else:
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):  # it could not be made
            os.unlink(temporary)
        forget_temporary(temporary)
