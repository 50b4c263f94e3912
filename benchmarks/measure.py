"""Peak memory of processes, and facts about the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = [
    "PeakMemory",
    "anonymous_memory",
    "file_system",
    "machine",
    "processor_seconds",
    "tree_size",
    "versions",
]

_DISTRIBUTIONS = (
    "shardwrite", "dask", "distributed", "zarr", "zarrs", "zarrista", "tensorstore", "cloud-volume", "numpy", "numcodecs",
    "isal", "zlib-ng", "zstandard",
    "crc32c",
)  # fmt: skip


def anonymous_memory(pid: int | str = "self") -> int:
    """Anonymous resident memory of a process in bytes, 0 where it has ended.

    Parameters
    ----------
    pid : int or "self"
        Which process.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    start = status.find(b"RssAnon:")
    return int(status[start + 8 : status.index(b"kB", start)]) * 1024 if start >= 0 else 0


def processor_seconds(pids: Iterable[int | str]) -> float:
    """Time on processors that processes which live have taken until now, all together.

    Parameters
    ----------
    pids : iterable of int or "self"
        Which processes.
    """
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """Peak of anonymous memory above what was in use on entry, this process and others together.

    Parameters
    ----------
    others : iterable of int
        Further process ids.
    interval : float
        Seconds between looks.
    """

    def __init__(self, others: Iterable[int] = (), interval: float = 0.01) -> None:
        self.pids: list[int | str] = ["self", *others]
        self.interval = interval
        self.baseline = 0
        self.peak = 0
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def _sample(self) -> int:
        return sum(anonymous_memory(pid) for pid in self.pids)

    def _poll(self) -> None:
        while not self._stop.is_set():
            self.peak = max(self.peak, self._sample())
            self.samples += 1
            self._stop.wait(self.interval)

    def __enter__(self) -> PeakMemory:
        self.baseline = self.peak = self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, self._sample())

    @property
    def above_idle(self) -> int:
        """Bytes at the peak beyond the baseline."""
        return self.peak - self.baseline


def tree_size(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def file_system(directory: Path) -> str:
    """Type of the file system that holds a directory."""
    resolved = str(directory.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs_type, *_ = line.split()
        mount = mount.replace("\\040", " ")
        if (resolved == mount or resolved.startswith(mount.rstrip("/") + "/")) and len(
            mount
        ) >= len(best):
            best, kind = mount, fs_type
    return kind


def machine(directory: Path) -> dict[str, Any]:
    """Processor, cores, memory and file system, without names of hosts or users.

    Parameters
    ----------
    directory : Path
        Where arrays are written.

    Returns
    -------
    dict
        For the report.
    """
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "file_system": file_system(directory),
        "kernel": platform.release(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of what takes part."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**found, "commit": _commit()}


def _commit() -> str:
    """The commit of the checkout, with ``+`` if code that is measured, or measures, differs from it."""
    root = Path(__file__).resolve().parent.parent
    try:
        head = _git(root, "rev-parse", "--short=8", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "shardwrite", "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return head + "+" * bool(changed)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
