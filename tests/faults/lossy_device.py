"""A disk whose writes fail when told to, with a file system on it.

The disk is the only file of a FUSE file system and lies in the memory of its daemon
(`lossy_disk.c`, which needs gcc and the kernel's headers, and no library). A loop device is
attached to that file, and ext4 or xfs is mounted from the loop device. The daemon answers EIO to
a write that carries a pattern.

So write-back fails as on a disk that has a bad moment. ``fsync`` raises once, and the pages are
marked clean and still show the new bytes. A second ``fsync`` succeeds, and the bytes never
reached the disk. :meth:`Disk.remount` shows what did.

Requests to the loop device are kept at 64 KiB, because the loop driver takes a short write to
FUSE for a whole one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import loop_devices
import power_cut

SOURCE = Path(__file__).with_name("lossy_disk.c")
FILESYSTEMS = power_cut.FILESYSTEMS
_NBYTES = {"ext4": 64 * 2**20, "xfs": 320 * 2**20}  # xfs makes none smaller than 300 MiB
_MAX_REQUEST_KIB = "64"
_BLKFLSBUF = 0x1261


def missing(filesystem: str) -> str:
    """Why there can be no such disk here, or an empty string."""
    if why := power_cut.missing(filesystem):
        return why
    if shutil.which("gcc") is None or not Path("/usr/include/linux/fuse.h").exists():
        return "the daemon cannot be built (Debian's packages gcc and libc6-dev)"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse here (modprobe fuse)"
    try:
        with tempfile.TemporaryDirectory() as directory, Disk(directory, "ext4"):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no lossy disk can be made: {error}"


class Disk:
    """A file system on a disk that loses writes when told to.

    Parameters
    ----------
    directory : path
        An empty directory for the daemon and the mount points.
    filesystem : {"ext4", "xfs"}
        The file system on the disk.

    Attributes
    ----------
    root : pathlib.Path
        Where it is mounted.
    leaked : int
        Descriptors that were left open in it when it was unmounted.
    """

    def __init__(self, directory, filesystem: str) -> None:
        self._directory, self._filesystem = Path(directory).resolve(), filesystem
        self._below = self._directory / "below"
        self.root = self._directory / "mnt"
        self.leaked = 0
        self._daemon: subprocess.Popen[str] | None = None
        self._loop = ""

    def __enter__(self) -> Disk:
        daemon = self._directory / "lossy_disk"
        subprocess.run(
            ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", daemon, SOURCE], check=True
        )
        for path in (self._below, self.root):
            path.mkdir()
        try:
            command = [daemon, self._below, str(_NBYTES[self._filesystem])]
            self._daemon = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            if self._daemon.stdout.readline() != "ready\n":
                raise OSError("the daemon did not start")
            self._loop = loop_devices.attach(self._below / "disk")
            Path(f"/sys/block/{Path(self._loop).name}/queue/max_sectors_kb").write_text(
                _MAX_REQUEST_KIB
            )
            subprocess.run([*power_cut.MKFS[self._filesystem], self._loop], check=True)
            self._mount()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def arm(self, patterns: list[bytes], *, skip: int = 0, times: int = 1) -> None:
        """Have writes that carry one of the patterns fail.

        Parameters
        ----------
        patterns : list of bytes
            At most 8, of at most 64 bytes each.
        skip : int
            Such writes that pass before.
        times : int
            Such writes that fail then; -1 for all until :meth:`heal`.
        """
        self._command(
            " ".join(["arm", str(skip), str(times), *(pattern.hex() for pattern in patterns)])
        )

    def heal(self) -> tuple[int, int]:
        """Have nothing fail any more; how many writes carried a pattern and failed meanwhile."""
        matched, failed, _ = self._command("heal")
        return matched, failed

    def _command(self, line: str) -> tuple[int, int, int]:
        self._daemon.stdin.write(f"{line}\n")
        matched, failed, seen = map(int, self._daemon.stdout.readline().split())
        return matched, failed, seen

    def sync(self) -> None:
        """Have the disk take all that was written."""
        for check in (False, True):  # the first one may tell of what failed before
            subprocess.run(["sync", "--file-system", self.root], check=check, capture_output=True)

    def remount(self) -> None:
        """Forget all that is in memory, and show what the disk has."""
        self._unmount()
        fd = os.open(self._loop, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _BLKFLSBUF, 0)
        finally:
            os.close(fd)
        self._mount()

    def close(self) -> None:
        """Take down everything, whatever state it is in."""
        troubles = []
        for step in (self._unmount, self._detach, self._stop):
            try:
                step()
            except (OSError, subprocess.SubprocessError) as error:
                troubles.append(f"{error}")
        if troubles:
            raise OSError("; ".join(troubles))

    def _mount(self) -> None:
        subprocess.run(["mount", "-t", self._filesystem, self._loop, self.root], check=True)

    def _unmount(self) -> None:
        self.leaked += power_cut.close_all_in(self.root)
        trouble = power_cut.unmount(self.root, 10)
        if trouble:
            raise OSError(trouble)

    def _detach(self) -> None:
        if self._loop:
            loop, self._loop = self._loop, ""
            loop_devices.detach(loop, self._below / "disk")

    def _stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stdin.close()
            try:
                self._daemon.wait(10)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
            self._daemon.stdout.close()
            self._daemon = None
        if power_cut.is_mounted(self._below):
            subprocess.run(["umount", "--lazy", self._below], check=True)


def evict(directory: Path, keep: float, rng) -> None:
    """Have the kernel forget clean pages of files below a directory, but for a share of them."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and rng.random() >= keep:
            fd = os.open(path, os.O_RDONLY)
            try:
                nbytes = os.fstat(fd).st_size
                cut = int(rng.integers(nbytes + 1)) if rng.random() < 0.5 else 0  # all, or a part
                os.posix_fadvise(fd, cut // 4096 * 4096, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
