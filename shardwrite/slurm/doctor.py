"""What the nodes of a job have in common, and what they have not: one process on each looks, and the first one compares.

The protocol, in a directory that all should see: every rank writes what it found, and waits until it sees what the others wrote;
then it says so, too, and the first rank, when all have, removes everything. Who does not appear does not see the directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shardwrite._version import __version__
from shardwrite.errors import SpecError, StoreError
from shardwrite.host.resources import file_system, memory_limit_nbytes, n_cores, scratch_directory
from shardwrite.plan.render import human, table_text

__all__ = [
    "Examination",
    "check_directory",
    "examine",
    "meet",
    "problems_of",
    "report",
    "warnings_of",
]

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
class Examination:
    """What one rank found on its node.

    Attributes
    ----------
    rank, node : int
        Number of the process, and of its node in the job.
    host, version, python : str
        Name of the node; versions of shardwrite and of Python.
    cores, memory_nbytes : int
        What a process may use.
    scratch, scratch_type, directory_type : str
        Where scratch files would go, and the types of both file systems.
    interfaces : list of str
        Of the network.
    faults : list of str
        Operations on the directory that went wrong.
    delay_seconds : float
        The longest time after which a file of another node was seen.
    """

    rank: int
    node: int
    host: str
    version: str
    python: str
    cores: int
    memory_nbytes: int
    scratch: str
    scratch_type: str
    directory_type: str
    interfaces: list[str]
    faults: list[str]
    delay_seconds: float = 0.0


def examine(directory: Path, environ: Mapping[str, str]) -> Examination:
    """Look at this node."""
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
        interfaces=sorted(name for _, name in socket.if_nameindex()),
        faults=_faults(directory),
    )


def _faults(directory: Path) -> list[str]:
    """Try what a commit relies on."""
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
    """Show what this rank found, and wait for the others; what all found, as far as they came.

    Raises
    ------
    StoreError
        If the directory cannot be used.
    """
    n_ranks = int(environ.get("SLURM_STEP_NUM_TASKS", 1))
    job, step = environ.get("SLURM_JOB_ID", str(os.getpid())), environ.get("SLURM_STEP_ID", "0")
    place = directory / f".shardwrite-doctor-{job}-{step}"
    deadline = time.monotonic() + patience_seconds
    try:
        place.mkdir(exist_ok=True)
        _show(place / f"found-{own.rank}", {**asdict(own)})
        delay = _wait(place, "found", n_ranks, deadline)
        _show(place / f"seen-{own.rank}", {**asdict(replace(own, delay_seconds=delay))})
        if own.rank:
            if not (
                place / "found-0"
            ).exists():  # the first rank is somewhere else, or has given up and removed all
                shutil.rmtree(place, ignore_errors=True)
            return []
        _wait(place, "seen", n_ranks, deadline)
        last = {
            path.name.split("-")[1]: path
            for name in ("found", "seen")
            for path in place.glob(f"{name}-*")
        }
        found = [Examination(**json.loads(path.read_bytes())) for path in last.values()]
        shutil.rmtree(place)
    except OSError as error:
        raise StoreError(
            f"cannot use {directory} on {own.host}: {error.strerror}",
            key=str(place),
            errno=error.errno,
        ) from error
    return sorted(found, key=lambda one: one.rank)


def _show(path: Path, facts: Mapping[str, Any]) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(facts))
    os.rename(draft, path)


def _wait(place: Path, name: str, n_ranks: int, deadline: float) -> float:
    """Until so many files are seen; how old, by the file system's clock, one was at most when it was first seen."""
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
    """What will not work.

    Parameters
    ----------
    found : sequence of Examination
        Of those ranks that came.
    n_ranks : int
        How many should have come.
    """
    problems = []
    missing = sorted(set(range(n_ranks)) - {one.rank for one in found})
    if missing:
        problems.append(
            f"ranks {', '.join(map(str, missing))} were not seen: their nodes have another directory there, or are slow"
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
    """What works, and may surprise."""
    warnings = []
    for one in found:
        if one.scratch_type in ("tmpfs", "ramfs"):
            warnings.append(
                f"{one.host}: scratch {one.scratch} is memory, and counts as the job's; name another in SHARDWRITE_LOCAL_DIR"
            )
        if one.scratch_type in _NETWORK:
            warnings.append(
                f"{one.host}: scratch {one.scratch} is on a network ({one.scratch_type}); name another in SHARDWRITE_LOCAL_DIR"
            )
    late = max((one.delay_seconds for one in found), default=0.0)
    if late > _LATE_SECONDS:
        warnings.append(
            f"files of other nodes are seen {late:.0f} s late; have the last job begin so much later (sbatch --begin=now+60)"
        )
    return warnings


def report(found: Sequence[Examination]) -> str:
    """A table of the nodes."""
    rows = []
    for one in found:
        facts = (
            f"{one.cores} cores, {human(one.memory_nbytes)}, shardwrite {one.version}, Python {one.python}\n"
            f"directory on {one.directory_type or 'unknown'}, scratch {one.scratch} on {one.scratch_type or 'unknown'}, "
            f"others seen within {one.delay_seconds:.2f} s\nnetwork {', '.join(one.interfaces)}"
        )
        rows.append((f"{one.host}, rank {one.rank}", facts))
    return table_text("nodes", rows)


def check_directory(directory: Path) -> None:
    """Refuse what is no directory.

    Raises
    ------
    SpecError
        Naming it.
    """
    if not directory.is_dir():
        remedy = "give the directory in which arrays are to be written"
        raise SpecError(
            f"no directory on {socket.gethostname()}",
            field="directory",
            value=str(directory),
            remedy=remedy,
        )
