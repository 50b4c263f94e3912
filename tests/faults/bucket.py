"""A bucket in which operations of the table are struck, and which is judged by a copy of it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import obstore

sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
sys.path.insert(0, str(Path(__file__).parent))
import servers
from bucket_kills import in_other_process
from driver import Bench, files_in
from leftovers import names_in


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
    """A bucket of moto, and a directory with a copy of what a case has in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seconds: dict[str, float] = {}

    @classmethod
    @contextlib.contextmanager
    def of(cls, root: Path) -> Iterator[Bucket]:
        made = cls(root)
        with in_other_process("moto") as made.server:
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


def missing() -> str:
    """Why there can be none here, or an empty string."""
    return "" if importlib.util.find_spec("moto") else "moto is not installed"
