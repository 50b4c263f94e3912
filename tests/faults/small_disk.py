"""A small file system of its own, and a file in it that takes all room."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import loop_devices
import power_cut
from users import missing_root

FILESYSTEMS = ("tmpfs", "ext4", "xfs", "ext2")
"""The last one cannot reserve blocks, so that giving up may need room there."""
SAYS_WHAT = re.compile(r"anew takes [\d,]+ bytes: free as many")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NBYTES = {name: (304 if name == "xfs" else 24) * 2**20 for name in FILESYSTEMS}


def missing(filesystem: str) -> str:
    """Why there can be no such disk here, or an empty string."""
    return missing_root() if filesystem == "tmpfs" else power_cut.missing(_kind(filesystem))


def _kind(filesystem: str) -> str:
    """Of the program that makes it, and of the kernel's module."""
    return filesystem.replace("ext2", "ext4")


class Disk:
    """A small file system, and a file in it that takes all room.

    Parameters
    ----------
    directory : path
        An empty directory for the image and the mount point.
    filesystem : str
        One of `FILESYSTEMS`.

    Attributes
    ----------
    root : pathlib.Path
        Where it is mounted.
    """

    def __init__(self, directory: Path, filesystem: str) -> None:
        self.filesystem, self._image = filesystem, directory / "image"
        self.root, self._device = directory / "disk", ""

    def __enter__(self) -> Disk:
        self.root.mkdir()
        nbytes = _NBYTES[self.filesystem]
        if self.filesystem == "tmpfs":
            mount = ["-t", "tmpfs", "-o", f"size={nbytes}", "shardwrite-test"]
        else:
            with self._image.open("wb") as file:
                file.truncate(nbytes)
            # No blocks are kept for root, who runs this.
            extra = {"ext4": ["-m", "0"], "ext2": ["-m", "0", "-O", "^extents,^64bit"], "xfs": []}
            make = [*power_cut.MKFS[_kind(self.filesystem)], *extra[self.filesystem], self._image]
            subprocess.run(make, check=True, capture_output=True)
            self._device = loop_devices.attach(self._image)
            mount = [self._device]
        subprocess.run(["mount", *mount, self.root], check=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        power_cut.close_all_in(self.root)  # what the traceback of an error still holds
        if trouble := power_cut.unmount(self.root, 60):
            raise OSError(trouble)
        if self._device:
            # A mount namespace that others have made meanwhile may hold a copy of the mount. The
            # device goes with it.
            with contextlib.suppress(OSError):
                loop_devices.detach(self._device, self._image)

    def fill(self) -> None:
        """Take all free blocks, down to the last one."""
        with open(self.root / "filler", "ab") as file:
            end = os.fstat(file.fileno()).st_size
            for nbytes in (2**22, 2**18, 2**14, 2**12):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), end, nbytes)
                        end += nbytes
        subprocess.run(["sync", "--file-system", self.root], check=True)

    def free(self) -> None:
        """Give them back."""
        (self.root / "filler").unlink(missing_ok=True)
        subprocess.run(["sync", "--file-system", self.root], check=True)
