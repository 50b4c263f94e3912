"""Examine the nodes of a job: one process on each node looks, and rank 0 compares.

The processes meet in a new directory, inside a directory that all nodes should see:

1. Every rank writes ``found-<rank>``, and waits until it sees this file of every rank.
2. Every rank then writes ``seen-<rank>``, with the delay that it has measured.
3. Rank 0 waits until it sees ``seen-<rank>`` of every rank, reads all files, and removes the new
   directory.

Every wait ends when the time limit is reached. A rank whose file is missing by then does not see
the directory, or is slow.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite._version import __version__
from shardwrite.errors import SpecError, StoreError
from shardwrite.host.resources import file_system, memory_limit_nbytes, n_cores, scratch_directory
from shardwrite.records import Record
from shardwrite.results import human, table_text
from shardwrite.slurm.inside import networks
from shardwrite.slurm.notes import write_note
from shardwrite.stores.looking import parse_json

_NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "cifs",
    "ceph",
    "fuse.glusterfs",
    "panfs",
    "wekafs",
)
_LATE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Examination(Record):
    """What one rank found on its node."""

    rank: int  # number of the process in its step, and number of its node in the job
    node: int
    host: str  # name of the node, and the versions of shardwrite and Python
    version: str
    python: str
    cores: int  # cores and memory available to the process
    memory_nbytes: int
    # Directory for scratch files, and the types of the file systems of this directory and of the
    # examined directory
    scratch: str
    scratch_type: str
    directory_type: str
    interfaces: tuple[str, ...]  # names of the network interfaces
    # What went wrong when file operations were tried in the examined directory
    faults: tuple[str, ...]
    # Longest time in seconds after which a file of another rank was seen
    delay_seconds: float = 0.0


def examine(directory: Path, environ: Mapping[str, str]) -> Examination:
    """Examine this node, and try file operations in a directory."""
    scratch = scratch_directory(environ)
    return Examination(
        rank=int(environ.get("SLURM_PROCID", 0)),
        node=int(environ.get("SLURM_NODEID", 0)),
        host=socket.gethostname(),
        version=__version__,
        python=platform.python_version(),
        cores=n_cores(environ),
        memory_nbytes=memory_limit_nbytes(environ),
        scratch=scratch,
        scratch_type=file_system(Path(scratch)),
        directory_type=file_system(directory),
        interfaces=tuple(networks()),
        faults=tuple(_faults(directory)),
    )


def _faults(directory: Path) -> list[str]:
    """Try the file operations that a commit relies on, and return what went wrong."""
    one, two = (directory / f".doctor-{uuid.uuid4().hex}" for _ in range(2))
    found = []
    try:
        fd = os.open(one, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            os.write(fd, b"new")
            os.fsync(fd)
        finally:
            os.close(fd)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(one, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            found.append("O_EXCL makes a file that is there")
        two.write_bytes(b"old")
        os.rename(one, two)
        if two.read_bytes() != b"new" or one.exists():
            found.append("a rename does not replace")
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        found.append(str(error))
    finally:
        for path in (one, two):
            with contextlib.suppress(OSError):  # what goes wrong here is in the list already
                path.unlink(missing_ok=True)
    return found


def meet(
    directory: Path, own: Examination, environ: Mapping[str, str], patience_seconds: float
) -> list[Examination]:
    """Share what this rank found, and collect the findings of all ranks.

    Rank 0 receives the findings of all ranks that it saw in time, ordered by rank. The other ranks
    receive an empty list. See the module for the protocol.
    """
    n_ranks = int(environ.get("SLURM_STEP_NUM_TASKS", 1))
    job, step = environ.get("SLURM_JOB_ID", str(os.getpid())), environ.get("SLURM_STEP_ID", "0")
    place = directory / f".shardwrite-doctor-{job}-{step}"
    deadline = time.monotonic() + patience_seconds
    try:
        place.mkdir(exist_ok=True)
        write_note(place / f"found-{own.rank}", own)
        delay = _wait(place, "found", n_ranks, deadline)
        write_note(place / f"seen-{own.rank}", replace(own, delay_seconds=delay))
        if own.rank:
            # Rank 0 sees another directory, or has given up and removed this one.
            if not (place / "found-0").exists():
                shutil.rmtree(place, ignore_errors=True)
            return []
        _wait(place, "seen", n_ranks, deadline)
        last = {
            path.name.split("-")[1]: path
            for name in ("found", "seen")
            for path in place.glob(f"{name}-*")
        }
        found = [Examination.from_dict(parse_json(path.read_bytes())) for path in last.values()]
        shutil.rmtree(place)
    except OSError as error:
        raise StoreError(
            f"cannot use {directory} on {own.host}: {error.strerror}",
            key=str(place),
            errno=error.errno,
        ) from error
    return sorted(found, key=lambda one: one.rank)


def _wait(place: Path, name: str, n_ranks: int, deadline: float) -> float:
    """Wait until `n_ranks` files of one kind are seen, and return the longest delay in seconds.

    A file's delay is its age by the file system's clock when it is first seen. Files that are there
    at the first look do not count. The wait also ends at the deadline, or when `place` is removed.
    """
    there: set[str] | None = None
    delay = 0.0
    while time.monotonic() < deadline and place.exists():
        now = {path.name for path in place.glob(f"{name}-*")}
        clock = place / f"clock-{uuid.uuid4().hex}"
        clock.touch()
        for new in now - (now if there is None else there):
            delay = max(delay, clock.stat().st_mtime - (place / new).stat().st_mtime)
        clock.unlink()
        there = now
        if len(now) >= n_ranks:
            break
        time.sleep(0.05)
    return delay


def problems_of(found: Sequence[Examination], n_ranks: int) -> list[str]:
    """Problems that must be solved before the nodes can write together."""
    problems = []
    missing = sorted(set(range(n_ranks)) - {one.rank for one in found})
    if missing:
        problems.append(
            f"ranks {', '.join(map(str, missing))} were not seen: their nodes have another "
            "directory there, or are slow"
        )
    problems += [f"{one.host}: {fault}" for one in found for fault in one.faults]
    versions = {one.version: one.host for one in found}
    if len(versions) > 1:
        problems.append(
            "versions of shardwrite differ: "
            + ", ".join(f"{v} on {host}" for v, host in sorted(versions.items()))
        )
    nodes_by_host: dict[str, set[int]] = {}
    for one in found:
        nodes_by_host.setdefault(one.host, set()).add(one.node)
    return problems + [
        f"nodes {', '.join(map(str, sorted(nodes)))} have one name, {host}"
        for host, nodes in nodes_by_host.items()
        if len(nodes) > 1
    ]


def warnings_of(found: Sequence[Examination]) -> list[str]:
    """Facts that do not prevent writing, but may slow it down or surprise."""
    warnings = []
    for one in found:
        if one.scratch_type in ("tmpfs", "ramfs"):
            warnings.append(
                f"{one.host}: scratch {one.scratch} is memory, and counts as the job's; "
                "name another in SHARDWRITE_LOCAL_DIR"
            )
        if one.scratch_type in _NETWORK:
            warnings.append(
                f"{one.host}: scratch {one.scratch} is on a network ({one.scratch_type}); "
                "name another in SHARDWRITE_LOCAL_DIR"
            )
    late = max((one.delay_seconds for one in found), default=0.0)
    if late > _LATE_SECONDS:
        warnings.append(
            f"files of other nodes are seen {late:.0f} s late; have the last job begin so much "
            "later (sbatch --begin=now+60)"
        )
    return warnings


def report(found: Sequence[Examination]) -> str:
    """Table of the nodes, as text."""
    rows = []
    for one in found:
        facts = (
            f"{one.cores} cores, {human(one.memory_nbytes)}, shardwrite {one.version}, "
            f"Python {one.python}\n"
            f"directory on {one.directory_type or 'unknown'}, "
            f"scratch {one.scratch} on {one.scratch_type or 'unknown'}, "
            f"others seen within {one.delay_seconds:.2f} s\nnetwork {', '.join(one.interfaces)}"
        )
        rows.append((f"{one.host}, rank {one.rank}", facts))
    return table_text("nodes", rows)


def check_directory(directory: Path) -> None:
    """Refuse a path that is no directory on this node."""
    if not directory.is_dir():
        remedy = "give the directory in which arrays are to be written"
        raise SpecError(
            f"no directory on {socket.gethostname()}",
            field="directory",
            value=str(directory),
            remedy=remedy,
        )
