"""Where tests keep their files: in memory, if there is room. Tests about disks and file systems make
file systems of their own, and none waits for a disk that others use, too."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NBYTES = 8 * 2**30


def pytest_configure():
    has_room = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    if has_room and "TMPDIR" not in os.environ and shutil.disk_usage(MEMORY).free > NBYTES:
        os.environ["TMPDIR"] = str(MEMORY)  # of programs that tests start
        tempfile.tempdir = None
