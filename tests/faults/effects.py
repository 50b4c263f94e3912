"""Effects of a process on the file system, and what strikes before one of them in a process that is
forked for it.

So nothing is cleaned up after a kill, and the real lifetimes of leases and locks hold.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import dask

import shardwrite

sys.path.insert(0, str(Path(__file__).parents[1]))
import seams

for _name in shardwrite.__all__:  # Everything is imported before processes are forked.
    getattr(shardwrite, _name)

EFFECTS = (
    "write",
    "writev",
    "pwrite",
    "fsync",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "ftruncate",
    "copy_file_range",
)

HOW = {"scheduler": "sync", "shardwrite.retry-pauses": [0, 0, 0]}
"""Settings of each process."""


@contextlib.contextmanager
def before_effect(k: int, strike: Callable[[str], object]) -> Iterator[Callable[[], int]]:
    """Call `strike` right before the `k`-th effect of this process on the file system; gives a
    function that counts the effects.

    No effect is the zeroth.
    """
    n, lock = 0, threading.Lock()

    def counted(name, real, is_effect=lambda arguments: True):
        def call(*arguments, **keywords):
            nonlocal n
            if is_effect(arguments):
                with lock:
                    n += 1
                    if n == k:
                        strike(name)
            return real(*arguments, **keywords)

        return call

    with contextlib.ExitStack() as stack:
        for name in EFFECTS:
            stack.enter_context(mock.patch.object(os, name, counted(name, getattr(os, name))))
        creates = counted("open", os.open, lambda arguments: arguments[1] & os.O_CREAT)
        stack.enter_context(mock.patch.object(os, "open", creates))
        exchange = counted("exchange", seams.real("exchange two names"))
        stack.enter_context(mock.patch.object(*seams.step("exchange two names"), exchange))
        named = counted("rename", seams.real("give a new array its name"))
        stack.enter_context(mock.patch.object(*seams.step("give a new array its name"), named))
        yield lambda: n


def count_effects(action: Callable[[], object], into: Path) -> None:
    with before_effect(0, lambda _: None) as n_effects:
        try:
            action()
        finally:
            into.write_text(str(n_effects()))


def kill(_: object = None) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def start(
    action: Callable[[], object],
    k: int = 0,
    strike: Callable[[str], object] = kill,
    stage: Path | None = None,
) -> int:
    """Do something in a process of its own, and strike before an effect of it; its pid.

    - `k`: number of the effect; 0 for none.
    - `stage`: a file for what goes wrong.
    """
    pid = os.fork()
    if not pid:
        status = 1
        try:
            with before_effect(k, strike), dask.config.set(HOW):
                action()
            status = 0
        except BaseException:
            if stage is not None:
                stage.write_text(traceback.format_exc())
        finally:
            os._exit(status)
    return pid


def wait(pid: int, stage: Path | None = None) -> str:
    """Wait for the end of a process: ``"killed"``, ``"done"``, or what went wrong."""
    _, ended = os.waitpid(pid, 0)
    if os.WIFSIGNALED(ended):
        return "killed" if os.WTERMSIG(ended) == signal.SIGKILL else f"signal {os.WTERMSIG(ended)}"
    if not os.WEXITSTATUS(ended):
        return "done"
    return stage.read_text() if stage is not None and stage.exists() else "failed"


def in_child(
    action: Callable[[], object],
    kill_at: int = 0,
    stage: Path | None = None,
    before_death: Callable[[], object] = lambda: None,
) -> str:
    """Do something in a process of its own, which may be killed before one of its effects, and wait
    for its end."""

    def die(_: str) -> None:
        before_death()
        kill()

    return wait(start(action, kill_at, die, stage), stage)
