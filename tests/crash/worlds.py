"""Where the tree of a crash test lies, and the faults that are particular to that."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import obstore
import power_cut
import seams
import zarr
from bucket import PREFIX
from obstore.store import S3Store
from operations import STRATEGIES
from servers import BUCKET, Server

from shardwrite.stores import bucket_url

_CLONE_NEWNS = 0x20000
_SMALL_NBYTES = 4 * 2**20
_RETRIES: dict[str, Any] = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(milliseconds=10),
        "max_backoff": timedelta(milliseconds=40),
        "base": 2,
    },
}
"""Of requests to a bucket: a tenth of the usual pauses, and few."""


class World:
    """A directory of a file system that holds many trees."""

    faults: ClassVar = {"none": 1, "kill": 4, "kill at": 6, "fail": 4, "freeze": 1, "slow": 0.3}
    durabilities: tuple[str, ...] = ("full", "batch", "none")
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    without: frozenset[str] = frozenset()  # kinds of operations
    forgets = False  # whether a removal may come to nothing

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"

    @classmethod
    def missing(cls) -> str:
        """Why there can be none here, or an empty string."""
        return ""

    def place(self, name: str) -> Any:
        """An array as shardwrite is given it."""
        return self.root / name

    def store(self, *, directly: bool = True) -> Any:
        """The group as zarr-python is given it, directly or where faults strike."""
        return zarr.storage.LocalStore(self.root)

    def tree(self) -> Path:
        """A directory that holds what the group holds now."""
        return self.root

    def document(self, name: str) -> dict[str, Any] | None:
        """What stands in the document of an array, if there is one."""
        path = self.root / name / "zarr.json"
        return self._of_array(path.read_text()) if path.exists() else None

    @staticmethod
    def _of_array(text: str) -> dict[str, Any] | None:
        document = json.loads(text)
        return document if document["node_type"] == "array" else None

    def restore(self, directory: Path) -> None:
        """Have the group hold what a directory holds."""
        shutil.rmtree(self.root)
        shutil.copytree(directory, self.root, symlinks=True)

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
        with (
            power_cut.Machine(place, "ext4") as self._machine,
            contextlib.ExitStack() as self._restarts,
        ):
            self.root, self._n_boots = self._machine.root / "tree", 0
            yield

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        subprocess.run(["sync", "--file-system", self.root], check=True)

    def cut(self, seed: int) -> None:
        self._machine.cut(np.random.default_rng(seed))

    def restart(self) -> None:
        self._machine.restart()
        self._n_boots += 1
        # The machine does not in fact start again.
        self._restarts.enter_context(seams.after_restart(self._n_boots))


class Bucket(World):
    """A bucket of a server on this machine, behind a network that strikes requests."""

    faults: ClassVar = {"none": 1, "kill": 2, "request": 12}
    strategies = ("replace", "C", "append")
    without = frozenset({"in place", "consume", "repair"})
    forgets = True  # a late request brings the state of a run back

    @classmethod
    def missing(cls) -> str:
        return "" if importlib.util.find_spec("moto") else "moto is not installed"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        command = [sys.executable, Path(__file__).parent / "bucket.py"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._copy, self._known = self.root.parent / "copied", {}
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        with subprocess.Popen(command, **pipes, env=environment) as self._process:
            self._reached, self._server = map(Server, json.loads(self._process.stdout.readline()))
            with (
                mock.patch.dict(os.environ, self._reached.environment),
                mock.patch.dict(bucket_url.RETRIES, _RETRIES),
            ):
                yield
            self._process.stdin.close()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Have the process of the server do something."""
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def place(self, name: str) -> str:
        return f"s3://{BUCKET}/{PREFIX}/{name}"

    def store(self, *, directly: bool = True) -> Any:
        server = self._server if directly else self._reached
        how = {"client_options": {"allow_http": True}, "retry_config": _RETRIES}
        client = S3Store(server.bucket, prefix=PREFIX, config=server.options, **how)
        return zarr.storage.ObjectStore(client)

    def tree(self) -> Path:
        self._known = self.ask("copy", str(self._copy), self._known)
        return self._copy

    def document(self, name: str) -> dict[str, Any] | None:
        try:
            data = obstore.get(self._server.client(PREFIX), f"{name}/zarr.json").bytes()
        except FileNotFoundError:
            return None
        return self._of_array(str(bytes(data), "utf-8"))

    def restore(self, directory: Path) -> None:
        self.ask("restore", str(directory))


def _stay_alone() -> None:
    """Mount where no other process sees it, so that it goes with this process."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mounts of its own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


WORLDS = {"directory": World, "small disk": SmallDisk, "power": Powered, "bucket": Bucket}
