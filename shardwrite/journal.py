"""What lies beside an array while it is written: ``<array>.shardwrite/``.

``zarr.json``
    The array's metadata, until every shard is committed.
``plan.json``
    The plan and its digest.
``parts/``
    Encoded units on their way to a shard.
``done-<i>-of-<n>.json``
    What part `i` of a run in `n` parts has committed.

The order of effects of a run, and what a crash after each leaves behind:

1. Look at what stands in the array's place; refuse, or go on. *Nothing has changed.*
2. Make the directory, write plan and metadata into it, and have every worker write there. *An empty run directory; the
   array is untouched.*
3. With ``mode="w"``, move the old array into the directory and delete it there. *No array.*
4. Commit the shards. *Shards without metadata: no reader sees an array.*
5. Publish ``zarr.json``, then bring consolidated metadata of the groups above up to date. *The array, whole.*
6. Remove the directory. *Done.*
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwrite.errors import JournalError, SpecError, StoreError
from shardwrite.stores import PosixStore, write_file

__all__ = ["RUN_SUFFIX", "RunDirectory", "Target", "probe", "resolve_target"]

RUN_SUFFIX = ".shardwrite"


@dataclass(frozen=True, slots=True)
class Target:
    """Where an array goes.

    Attributes
    ----------
    root : pathlib.Path
        The store.
    name : str
        Path of the array in it; empty where the store is the array.
    """

    root: Path
    name: str = ""

    @property
    def path(self) -> Path:
        """Directory of the array."""
        return self.root / self.name if self.name else self.root

    @property
    def run_path(self) -> Path:
        """Directory beside the array."""
        return self.path.with_name(self.path.name + RUN_SUFFIX)

    @property
    def groups(self) -> list[Path]:
        """Directories of the groups above the array, the store's first."""
        parts = self.name.split("/")[:-1] if self.name else []
        return [self.root.joinpath(*parts[:n]) for n in range(len(parts) + 1)] if self.name else []


def resolve_target(store: Any, name: str | None) -> Target:
    """The place that `store` and `name` mean.

    Raises
    ------
    SpecError
        Not a local path, or a name that does not stay inside the store.
    """
    if not isinstance(store, str | os.PathLike):
        raise SpecError("not a path", field="store", value=store, remedy="give a directory's path or a file:// URL")
    text = os.fspath(store)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    elif "://" in text:
        raise SpecError(
            "only local files can be written yet", field="store", value=text, remedy="give a directory's path or a file:// URL"
        )
    if not text or "\0" in text:
        raise SpecError("not a path", field="store", value=text, remedy="give a directory's path")
    if name is None or name == "":
        return Target(Path(text).absolute())
    if "\0" in name or any(part in ("", ".", "..") or part.startswith("__") for part in name.split("/")):
        raise SpecError("not a relative path of plain names", field="name", value=name, remedy='give for instance "images/raw"')
    return Target(Path(text).absolute(), name)


def _kind(path: Path) -> str:
    """What stands at a path: ``"nothing"``, ``"array"``, ``"group"``, ``"v2"``, ``"torn"``, ``"other"`` or ``"link"``."""
    if path.is_symlink():
        return "link"
    if not path.exists():
        return "nothing"
    if not path.is_dir():
        return "other"
    if any((path / leaf).exists() for leaf in (".zarray", ".zgroup")):
        return "v2"
    document = path / "zarr.json"
    if document.exists():
        try:
            node = json.loads(document.read_bytes())["node_type"]
        except (ValueError, KeyError, TypeError):
            return "torn"
        return node if node in ("array", "group") else "torn"
    with os.scandir(path) as entries:
        return "other" if next(entries, None) else "nothing"


_REFUSALS = {
    "group": ("a group stands there", "give another name= inside it, or remove it yourself"),
    "v2": ("a Zarr v2 array or group stands there", "give another path, or remove it yourself"),
    "torn": ("half a zarr.json stands there", "remove it yourself, after a look"),
    "other": ("something that is no Zarr array stands there", "give another path, or remove it yourself"),
    "link": ("a symbolic link stands there", "give the path that it points to"),
}


def check_target(target: Target, mode: str) -> None:
    """Refuse what must not be overwritten (step 1).

    Raises
    ------
    SpecError
        Naming what stands there and the remedy.
    """
    kind = _kind(target.path)
    if kind == "other" and target.path.is_dir() and (target.run_path / "zarr.json").exists():
        kind = "nothing"  # shards of a run that did not end
    if kind == "array" and mode != "w":
        raise SpecError("an array exists there", field="store", value=str(target.path), remedy='give mode="w" to replace it')
    if kind in _REFUSALS:
        why, remedy = _REFUSALS[kind]
        raise SpecError(why, field="store", value=str(target.path), remedy=remedy)
    for group in target.groups:
        if _kind(group) not in ("nothing", "group") and not (_kind(group) == "other" and _only_ours(group)):
            raise SpecError(
                "is no group", field="name", value=target.name, remedy=f"{group} holds something else; give another name or store"
            )
    if target.run_path.is_symlink():
        raise SpecError("a symbolic link stands beside it", field="store", value=str(target.run_path), remedy="remove the link")


def _only_ours(path: Path) -> bool:
    """Whether a directory without metadata holds arrays that are being written, and nothing else."""
    return path.is_dir() and any(entry.name.endswith(RUN_SUFFIX) for entry in path.iterdir())


class RunDirectory:
    """The directory beside one array.

    Parameters
    ----------
    target : Target
        The array.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.path = target.run_path
        self.parts = self.path / "parts"

    def begin(self, document: str, plan: str) -> None:
        """Step 2; the target was checked before."""
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            attempt = uuid.uuid4().hex
            write_file(self.path / "plan.json", plan.encode(), durability="none", attempt=attempt)
            write_file(self.path / "zarr.json", document.encode(), durability="none", attempt=attempt)
        except OSError as error:
            raise StoreError(f"cannot write beside {self.target.path}: {error}", key=str(self.path), errno=error.errno) from error

    def make_room(self) -> None:
        """Step 3: move what the array replaces out of the way at once, then delete it; links are never followed."""
        if self.target.path.exists():
            trash = self.path / f"trash-{uuid.uuid4().hex}"
            os.rename(self.target.path, trash)
            shutil.rmtree(trash)
        self.target.path.mkdir(parents=True)

    def is_begun(self, digest: str) -> bool:
        """Whether a run of this plan has begun here.

        Raises
        ------
        JournalError
            If another plan's has.
        """
        plan = self.path / "plan.json"
        if not plan.exists():
            return False
        found = json.loads(plan.read_bytes()).get("digest")
        if found != digest:
            raise JournalError(
                f"another plan ({found}) has begun in {self.path}; finish it, or remove the directory", path=str(self.path)
            )
        return True

    def publish(self, durability: str) -> None:
        """Step 5."""
        document = json.loads((self.path / "zarr.json").read_bytes())
        attempt = uuid.uuid4().hex
        for group in self.target.groups:
            if not (group / "zarr.json").exists():
                new = {"zarr_format": 3, "node_type": "group", "attributes": {}}
                write_file(group / "zarr.json", _dump(new), durability=durability, attempt=attempt)
        write_file(self.target.path / "zarr.json", _dump(document), durability=durability, attempt=attempt)
        self._consolidate(document, durability, attempt)

    def _consolidate(self, document: Mapping[str, Any], durability: str, attempt: str) -> None:
        """Put the array into the consolidated metadata of every group above that has some."""
        group = self.target.path.parent
        while (group / "zarr.json").exists() and _kind(group) == "group":
            metadata = json.loads((group / "zarr.json").read_bytes())
            consolidated = metadata.get("consolidated_metadata")
            if consolidated:
                relative = self.target.path.relative_to(group)
                for parent in [p for p in relative.parents if p != Path()]:
                    below = json.loads((group / parent / "zarr.json").read_bytes())
                    consolidated["metadata"].setdefault(parent.as_posix(), below)
                consolidated["metadata"][relative.as_posix()] = document
                write_file(group / "zarr.json", _dump(metadata), durability=durability, attempt=attempt)
            if group == group.parent:
                break
            group = group.parent

    def finish_part(self, index: int, count: int, report: Mapping[str, Any]) -> None:
        """Note that a part is committed."""
        write_file(self.path / f"done-{index}-of-{count}.json", _dump(report), durability="full", attempt=uuid.uuid4().hex)

    def parts_done(self) -> dict[int, dict[int, dict[str, Any]]]:
        """Reports of the parts that are committed, by count and index."""
        done: dict[int, dict[int, dict[str, Any]]] = {}
        for path in self.path.glob("done-*-of-*.json"):
            _, index, _, count = path.stem.split("-")
            done.setdefault(int(count), {})[int(index)] = json.loads(path.read_bytes())
        return done

    def discard_parts(self) -> None:
        """Remove part files, after a run that failed."""
        shutil.rmtree(self.parts, ignore_errors=False)

    def remove(self) -> None:
        """Step 6."""
        shutil.rmtree(self.path)


def _dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()


def probe(path: str, token: str) -> str:
    """Write a file beside a token that the client left, and say what went wrong; run on every worker before a run.

    Returns
    -------
    str
        Empty where all is well.
    """
    store = PosixStore(path)
    try:
        with store.transaction("none", uuid.uuid4().hex) as transaction:
            leaf = f"probe-{uuid.uuid4().hex}"
            writer = transaction.create(leaf)
            writer.write([b"probe"])
            writer.finish()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(path) / leaf)
        if not (Path(path) / token).exists():
            return f"{path} is another directory here than for the client"
    except OSError as error:
        return str(error)
    return ""
