"""What a process does while an array is written: memory, bytes of its system calls, and whether it opens a shard to read it."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import PeakMemory

__all__ = ["io_bytes", "start_watching", "stop_watching"]


@dataclass
class _Watch:
    """One process, watched."""

    root: str
    memory: PeakMemory = field(default_factory=PeakMemory)
    shard_reads: list[str] = field(default_factory=list)
    part_reads: list[str] = field(default_factory=list)
    written: int = 0

    def opened(self, path: str, flags: int) -> None:
        """Note a file that is opened so that it can be read; directories are opened to be synced."""
        if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_DIRECTORY:
            return
        if path.startswith(f"{self.root}/c/"):
            self.shard_reads.append(path)
        elif path.startswith(f"{self.root}.shardwrite/") and path.endswith(".swtmp"):
            self.part_reads.append(path)


_watched: list[_Watch] = []
_hooks: list[Any] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Python's audit hook, which hears of every file that is opened."""
    if event == "open" and _watched:
        path, _, flags = arguments
        if isinstance(path, (str, os.PathLike)) and isinstance(flags, int):
            _watched[0].opened(os.fspath(path), flags)


def io_bytes() -> tuple[int, int]:
    """Bytes that this process has read and written so far by system calls; those of sockets do not count."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


def start_watching(root: str) -> None:
    """Begin in this process.

    Parameters
    ----------
    root : str
        Path of the array.
    """
    if not _hooks:  # a hook cannot be taken away
        sys.addaudithook(_hook)
        _hooks.append(_hook)
    watch = _Watch(root, written=io_bytes()[1])
    watch.memory.__enter__()
    _watched[:] = [watch]


def stop_watching() -> dict[str, Any]:
    """End, and tell what was seen.

    Returns
    -------
    dict
        `host`, `shard_reads`, `part_reads`, `written_bytes`, `peak_anonymous_bytes` in all and `above_idle_bytes`.
    """
    watch = _watched.pop()
    watch.memory.__exit__(None, None, None)
    return {
        "host": socket.gethostname(),
        "shard_reads": len(watch.shard_reads),
        "part_reads": len(watch.part_reads),
        "written_bytes": io_bytes()[1] - watch.written,
        "peak_anonymous_bytes": watch.memory.peak,
        "above_idle_bytes": watch.memory.above_idle,
    }
