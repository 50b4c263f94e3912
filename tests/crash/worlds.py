"""Where the tree of a crash test lies, and the faults that are particular to that."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import power_cut

from shardwrite.journal import lease

_CLONE_NEWNS = 0x20000
_SMALL_NBYTES = 4 * 2**20


class World:
    """A directory of a file system that holds many trees."""

    faults: ClassVar = {"none": 1, "kill": 4, "kill at": 6, "fail": 4, "freeze": 1, "slow": 0.3}
    durabilities = ("full", "batch", "none")
    forgets = False  # whether a removal may come to nothing

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"

    @classmethod
    def missing(cls) -> str:
        """Why there can be none here, or an empty string."""
        return ""

    def sync(self) -> None:
        """Make all of the tree durable."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """While the tree can be used."""
        yield
        shutil.rmtree(self.root, ignore_errors=True)


class SmallDisk(World):
    """A file system of a few megabytes, which another file fills."""

    faults: ClassVar = {"full": 1}

    @classmethod
    def missing(cls) -> str:
        return "only root may mount" if os.geteuid() else ""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        mount = self.root.parent / "small"
        mount.mkdir(exist_ok=True)
        _stay_alone()
        options = f"size={_SMALL_NBYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "crash", mount], check=True)
        self.root, self._ballast = mount / "tree", mount / "ballast"
        try:
            yield
        finally:
            power_cut.unmount(mount, 10)

    def fill(self, nbytes: int) -> None:
        """Leave so many bytes free."""
        with self._ballast.open("wb") as file, contextlib.suppress(OSError):
            free = os.statvfs(self.root).f_bavail * os.statvfs(self.root).f_frsize
            os.posix_fallocate(file.fileno(), 0, max(free - nbytes, 1))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


class Powered(World):
    """The machine of `power_cut`, whose power can be cut."""

    faults: ClassVar = {"cut": 6, "kill": 1}
    durabilities = ("full", "batch")
    forgets = True

    @classmethod
    def missing(cls) -> str:
        return power_cut.missing("ext4")

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        _stay_alone()
        place = self.root.parent / "machine"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        boot = lease.boot_id
        with power_cut.Machine(place, "ext4") as self._machine:
            self.root, self._n_boots = self._machine.root / "tree", 0
            yield
        lease.boot_id = boot

    def sync(self) -> None:
        subprocess.run(["sync", "--file-system", self.root], check=True)

    def cut(self, seed: int) -> None:
        self._machine.cut(np.random.default_rng(seed))

    def restart(self) -> None:
        self._machine.restart()
        self._n_boots += 1
        number = self._n_boots
        lease.boot_id = lambda: f"boot {number}"  # the machine does not in fact start again


def _stay_alone() -> None:
    """Mount where no other process sees it, so that it goes with this process."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mounts of its own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


WORLDS = {"directory": World, "small disk": SmallDisk, "power": Powered}
