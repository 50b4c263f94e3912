"""Striping: how files are spread over the storage targets of a Lustre file system.

The striping of a file is fixed when the file is created, and is inherited from its directory.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from shardwrite.errors import StoreError
from shardwrite.host.resources import file_system


def set_stripes(directory: Path, count: int) -> bool:
    """Set the stripe count for everything that is created in a directory from now on.

    - Returns: True if the stripe count was set, False if the directory is not on Lustre.
    """
    if file_system(directory) != "lustre":
        return False
    command = ["lfs", "setstripe", "--stripe-count", str(count), str(directory)]
    try:
        done = subprocess.run(  # noqa: S603 (no shell)
            command, capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError as error:
        message = (
            f"lfs is not in PATH, so that the stripe count of {directory} cannot be set; "
            "do without it, or run this where lfs is"
        )
        raise StoreError(message, key=str(directory)) from error
    except subprocess.TimeoutExpired as error:
        raise StoreError(
            f"lfs setstripe {directory}: no answer in 60 s", key=str(directory)
        ) from error
    if done.returncode:
        raise StoreError(
            f"lfs setstripe {directory}: {(done.stderr or done.stdout).strip()}", key=str(directory)
        )
    return True
