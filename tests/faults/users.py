"""Actions of several users on one file system: a process that has everything imported forks a child
for each of them.

The child takes on a user's ids and umask, performs one action, and tells what came of it. The
process that forks never starts a thread. Needs root.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import dask.array as da
import numpy as np

import shardwrite
from shardwrite import AppendOnly, FixedOrder

sys.path.insert(0, str(Path(__file__).parent))
import oracle

SHAPE, LAYOUT = (32, 32), {"shards": 8, "chunks": 4}
REGION = (slice(0, 16), slice(0, 32))
STRATEGIES = {
    "replace": FixedOrder(),
    "clone": AppendOnly(),
    "in place": FixedOrder(in_place=True),
    "append in place": AppendOnly(in_place=True),
}
KILLED = 9


def missing_root() -> str:
    """Why no user can be taken on, or no file system be mounted."""
    is_root = sys.platform == "linux" and os.geteuid() == 0
    return "" if is_root else "needs root on Linux"


@dataclass(frozen=True)
class User:
    """Somebody who works on this machine; no list of users knows them."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    umask: int = 0o022


def _dying(x, at):
    """A source that kills its process at one of its blocks."""
    calls = []

    def pass_on(block):
        calls.append(block)
        if len(calls) == at:
            os._exit(KILLED)
        return block

    return x if at is None else x.map_blocks(pass_on, dtype="u4", meta=np.empty((0, 0), "u4"))


def _die_at_sync(at):
    """Have this process die before it syncs something of the array for the `at`-th time."""
    fsync, calls = os.fsync, []

    def counted(fd):
        calls.extend([fd] if ".shardwrite" not in os.readlink(f"/proc/self/fd/{fd}") else [])
        if len(calls) == at:
            os._exit(KILLED)
        fsync(fd)

    os.fsync = counted


def write(path, version=0, at=None, **keywords):
    _dying(oracle.source(SHAPE, (8, 8), version), at).to_sharded_zarr(
        path, source_id=f"version {version}", **LAYOUT, **keywords
    )


def update(path, version=1, at=None, strategy="replace", sync=None, **keywords):
    if sync is not None:
        _die_at_sync(sync)
    x = da.from_array(oracle.values(SHAPE, version)[REGION], chunks=8)
    shardwrite.write_region(
        _dying(x, at),
        path,
        REGION,
        strategy=STRATEGIES[strategy],
        source_id=f"version {version}",
        **keywords,
    )


def stream(path, at=None):
    """Append four rows; or die before that is flushed."""
    with shardwrite.ShardWriter(path) as writer:
        for row in oracle.values((36, 32), 5)[32:]:
            writer.append(row[None])
        if at is not None:
            os._exit(KILLED)


def repair(path, version=0, *, source=True):
    return shardwrite.repair(
        path, oracle.source(SHAPE, (8, 8), version) if source else None
    ).to_dict()["tasks"]


def verify(path):
    report = shardwrite.verify(path, deep=True)
    return {"good": report.is_good, "warnings": list(getattr(report, "warnings", ()))}


def read(path):
    return int(shardwrite.from_sharded_zarr(path).sum().compute())


def abandon(path):
    return shardwrite.abandon(path)


def compact(path):
    shardwrite.compact(path, above=0)


def erase(path):
    shardwrite.erase(path, REGION)


def finalize(path):
    shardwrite.finalize(path)


def prepare(path, version=0, **keywords):
    x = oracle.source(SHAPE, (8, 8), version)
    shardwrite.prepare(
        x, path, shardwrite.plan(x, source_id=f"version {version}", **LAYOUT), **keywords
    )


def command(*words):
    """A command of the command line: its exit code and what it prints."""
    from click.testing import CliRunner

    from shardwrite.cli import main

    done = CliRunner().invoke(main, list(words))
    raised = (
        ""
        if done.exception is None or isinstance(done.exception, SystemExit)
        else repr(done.exception)
    )
    return {"code": done.exit_code, "text": done.output + raised}


ACTIONS = {
    f.__name__: f
    for f in (
        write,
        update,
        stream,
        repair,
        verify,
        read,
        abandon,
        compact,
        erase,
        finalize,
        prepare,
        command,
    )
}


def _child(request, answer):
    user = User(**request["user"])
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    os.umask(user.umask)
    try:
        with dask.config.set(scheduler="sync"):
            said = {
                "value": ACTIONS[request["action"]](*request["arguments"], **request["keywords"])
            }
    except Exception as error:
        said = {
            "error": type(error).__name__,
            "message": str(error),
            "owner": getattr(error, "owner", None),
        }
    os.write(answer, json.dumps(said, default=str).encode())


def _warm_up(_, answer):
    """Do everything once, and say which modules that took."""
    for name in shardwrite.__all__:
        getattr(shardwrite, name)
    with tempfile.TemporaryDirectory() as directory, dask.config.set(scheduler="sync"):
        path = f"{directory}/x"
        write(path)
        for strategy in STRATEGIES:
            update(path, strategy=strategy)
        stream(path)
        for action in (verify, read, compact, erase):
            action(path)
        for words in (
            ["info"],
            ["verify"],
            ["census"],
            ["repair"],
            ["slurm", "status"],
            ["info", "--json"],
        ):
            command(*words, path)
        for name in (
            "abandon",
            "compact",
            "erase",
            "exec",
            "finalize",
            "init",
            "plan",
            "update",
            "write",
            "write-part",
        ):
            command(name, "--help")
    os.write(answer, json.dumps([name for name in sys.modules if name != "__main__"]).encode())


def _forked(act, request):
    """What a child says, and how it ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        act(request, writing)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    return said.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve():
    """Answer requests, one a line, until there are no more."""
    said, _ = _forked(_warm_up, None)
    for name in json.loads(said):
        with contextlib.suppress(ImportError):  # made while something ran
            importlib.import_module(name)  # other users may not be able to read it
    for line in sys.stdin:
        said, status = _forked(_child, json.loads(line))
        print(said or json.dumps({"died": status}), flush=True)


class Machine:
    """The process that forks, from outside."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *exc_info):
        self._process.stdin.close()
        self._process.wait(30)

    def do(self, user, action, *arguments, **keywords):
        """What came of an action: ``value``, ``error`` with ``message`` and ``owner``, or ``died``."""
        request = {
            "user": user.__dict__,
            "action": action,
            "arguments": [str(argument) for argument in arguments],
            "keywords": keywords,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


if __name__ == "__main__":
    serve()
