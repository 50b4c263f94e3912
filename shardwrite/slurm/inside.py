"""A dask cluster inside one allocation: its files, keys, scheduler, workers and clients.

Each start of a job has a run directory of its own, ``<job id>.<restart count>``, which only its
user can read. It holds the TLS keys that all processes of the cluster share, and the address of the
scheduler once it listens.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwrite.config.table import SLURM_START, value_of
from shardwrite.engines.cluster import new_client
from shardwrite.engines.local import Stopped
from shardwrite.errors import SpecError, WorkersLostError
from shardwrite.host.environment import LOOPBACK, configured
from shardwrite.host.resources import memory_limit_nbytes, n_cores, scratch_directory, tasks_on_node
from shardwrite.host.stopping import is_draining
from shardwrite.slurm.keys import KEY, make_keys, security_of, write_keys, write_private

SCHEDULER_FILE = "scheduler.json"
_GATHER_SECONDS = 20.0  # after which a client stops waiting for all workers, if there is one
_LEAVE_SECONDS = 3  # in which a nanny must close
_POLL_SECONDS = 0.1
_FIRST_NODE_NBYTES = 2**29  # for the scheduler, the program and srun
_LEAST_NBYTES = 2**27  # of a worker
_TIMEOUTS = {
    "distributed.comm.timeouts.connect": "60s",
    "distributed.comm.timeouts.tcp": "120s",
}

# Workers that a task may lose before dask gives the task up. SLURM ends many workers, and the task
# is not the cause.
OF_SCHEDULERS: Mapping[str, object] = {"distributed.scheduler.allowed-failures": 100, **_TIMEOUTS}
"""Settings of dask for the scheduler of workers that are tasks or jobs of SLURM."""

OF_WORKERS: Mapping[str, object] = {
    "distributed.worker.http.routes": [],
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    **_TIMEOUTS,
}
"""Settings of dask for these workers."""

_SETTINGS: dict[str, Any] = {
    "distributed.scheduler.no-workers-timeout": "10m",
    "distributed.scheduler.http.routes": [],
    **OF_SCHEDULERS,
    **OF_WORKERS,
}


def make_run_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Make the run directory of this start of the job, with new keys in it.

    It is made in ``SHARDWRITE_RUN_DIR``, or else in ``shardwrite-runs`` in the directory from which
    the job was submitted. All nodes must see it. It holds no scheduler's address at first. Run
    directories that earlier starts of the job have left are removed.

    - `environ`: used instead of this process's environment.
    """
    environ = os.environ if environ is None else environ
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        raise SpecError(
            "this is no SLURM job",
            field="SLURM_JOB_ID",
            value=job,
            remedy="run it in a script for sbatch",
        )
    base = environ.get("SHARDWRITE_RUN_DIR") or Path(
        environ.get("SLURM_SUBMIT_DIR", "."), "shardwrite-runs"
    )
    n_restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
    directory = Path(base).absolute() / f"{job}.{n_restarts}"
    keys = make_keys()
    _remove_earlier(directory.parent, job, n_restarts)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.getuid():
        remedy = "give a directory of your own in SHARDWRITE_RUN_DIR"
        raise SpecError(
            "belongs to somebody else", field="run directory", value=str(directory), remedy=remedy
        )
    directory.chmod(0o700)
    (directory / SCHEDULER_FILE).unlink(missing_ok=True)
    try:
        write_keys(keys, directory)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)  # the first error is the one to tell
        raise
    return directory


def _remove_earlier(base: Path, job: str, n_restarts: int) -> None:
    """Remove the run directories, with keys, of earlier starts of a job that were killed."""
    for number in range(n_restarts):
        left = base / f"{job}.{number}"
        if not left.is_symlink() and left.is_dir() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left)


def run_scheduler(directory: Path, environ: Mapping[str, str] | None = None) -> None:
    """Run the dask scheduler until this process is told to end.

    Its address is written to the run directory once it listens.

    - Raises SpecError if other nodes cannot reach its address, or if ``SHARDWRITE_INTERFACE`` names
      no network interface of this machine.
    """
    environ = os.environ if environ is None else environ
    with configured(_SETTINGS):
        from distributed import Scheduler
        from tornado.ioloop import IOLoop

        async def serve() -> None:
            security = security_of(directory)
            interface = _interface(environ)
            async with Scheduler(
                protocol="tls",
                port=0,
                interface=interface,
                security=security,
                dashboard=False,
                dashboard_address=LOOPBACK,
            ) as scheduler:
                _refuse_loopback(scheduler.address, environ)
                facts = {"type": "Scheduler", "id": scheduler.id, "address": scheduler.address}
                write_private(directory / SCHEDULER_FILE, json.dumps(facts).encode())
                await scheduler.finished()

        IOLoop().run_sync(serve)


def run_worker(directory: Path, environ: Mapping[str, str] | None = None) -> None:
    """Run a dask worker with all cores and memory of this process.

    A nanny runs in this process. It starts the worker again if it dies.

    - Raises Stopped if this process is asked to stop before the scheduler's address is there.
    - Raises WorkersLostError if the scheduler's address does not appear within
      ``shardwrite.slurm.start-timeout``.
    """
    environ = os.environ if environ is None else environ
    # USR1 tells the program to finish, and it needs its workers to do so.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # For this process, and for the worker that it starts.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")
    nbytes, threads, scratch = worker_nbytes(environ), n_cores(environ), scratch_directory(environ)
    with configured(_SETTINGS):
        from distributed import Nanny
        from tornado.ioloop import IOLoop

        address = _address_in(directory / SCHEDULER_FILE)

        async def serve() -> None:
            nanny = Nanny(
                address,
                nthreads=threads,
                memory_limit=nbytes,
                local_directory=scratch,
                death_timeout=value_of(SLURM_START),
                interface=_interface(environ),
                protocol="tls",
                security=security_of(directory),
                dashboard=False,
                dashboard_address=LOOPBACK,
            )
            loop: Any = IOLoop.current()

            def leave() -> None:
                # The alarm ends this process if the nanny cannot close, as while its worker starts.
                signal.alarm(_LEAVE_SECONDS)
                loop.add_callback(nanny.close)

            loop.asyncio_loop.add_signal_handler(signal.SIGTERM, leave)
            async with nanny:
                await nanny.finished()

        IOLoop().run_sync(serve)


def worker_nbytes(environ: Mapping[str, str] | None = None) -> int:
    """Memory of a worker in bytes.

    This is what its process may use. On the first node it is less, because the scheduler and the
    program run there.
    """
    environ = os.environ if environ is None else environ
    has_others = environ.get("SLURM_NODEID", "0") == "0"
    nbytes = memory_limit_nbytes(environ) - (
        _FIRST_NODE_NBYTES // tasks_on_node(environ) if has_others else 0
    )
    if nbytes < _LEAST_NBYTES:
        remedy = "give the job more: --mem of 1G and more on each node"
        raise SpecError(
            "too little memory is left for a worker", field="memory", value=nbytes, remedy=remedy
        )
    return nbytes


def _interface(environ: Mapping[str, str]) -> str | None:
    """Network interface that the user names in ``SHARDWRITE_INTERFACE``; None if there is none."""
    name = environ.get("SHARDWRITE_INTERFACE")
    if name:
        check_network("SHARDWRITE_INTERFACE", name)
    return name or None


def networks() -> list[str]:
    """Names of the network interfaces of this machine."""
    return sorted(name for _, name in socket.if_nameindex())


def check_network(field: str, name: str) -> None:
    """Refuse a network interface that this machine does not have."""
    here = networks()
    if name not in here:
        remedy = f"{socket.gethostname()} has {', '.join(here)}"
        raise SpecError("no network interface", field=field, value=name, remedy=remedy)


def _refuse_loopback(address: str, environ: Mapping[str, str]) -> None:
    """Refuse a loopback address for the scheduler of a job with several nodes.

    A machine's own tables may give such an address for its host name. Other nodes cannot reach it.
    """
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    if ipaddress.ip_address(host).is_loopback and environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        names = ", ".join(name for name in networks() if name != "lo")
        remedy = (
            "set SHARDWRITE_INTERFACE to the network between the nodes; "
            f"{socket.gethostname()} has {names}"
        )
        raise SpecError(
            "other nodes cannot reach this address", field="scheduler", value=address, remedy=remedy
        )


def _address_in(path: Path) -> str:
    """Wait for a scheduler file, and return the address in it.

    - Raises Stopped if this process is asked to stop meanwhile.
    - Raises WorkersLostError if the file does not appear within ``shardwrite.slurm.start-timeout``.
    """
    limit = value_of(SLURM_START)
    deadline = time.monotonic() + limit
    while True:
        # A scheduler file that dask itself writes can be incomplete for a moment.
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return str(json.loads(path.read_bytes())["address"])
        if is_draining():
            raise Stopped("stopped before the scheduler was there")
        if time.monotonic() > deadline:
            raise WorkersLostError(
                f"{path} did not come in {limit:.0f} s; is the scheduler running, "
                "and the path the same?"
            )
        time.sleep(_POLL_SECONDS)


def connect(where: str, environ: Mapping[str, str] | None = None) -> Any:
    """Connect a client to a running dask scheduler.

    If `where` is a path, the client uses the keys that lie beside the scheduler file, if there are
    any. It then waits for workers: 20 seconds for one worker of each task of the job, and up to two
    minutes for the first one.

    - `where`: address of the scheduler, or path of its scheduler file. A path has a slash in it or
      ends in ``.json``.
    - `environ`: used instead of this process's environment.
    - Raises Stopped if this process is asked to stop meanwhile.
    - Raises WorkersLostError if the scheduler file or the first worker does not appear in time.
    """
    from distributed.comm.addressing import parse_address, parse_host_port

    is_file = "://" not in where and ("/" in where or where.endswith(".json"))
    if not is_file:
        scheme, location = parse_address(where)
        try:
            if scheme in ("tcp", "tls"):
                parse_host_port(location)
        except ValueError as error:
            raise SpecError(
                f"no address ({error})",
                field="scheduler",
                value=where,
                remedy="give one such as tcp://host:8786, or the path of the scheduler file",
            ) from None
        return new_client(where)
    environ = os.environ if environ is None else environ
    path = Path(where)
    address = _address_in(path)
    security = security_of(path.parent) if (path.parent / KEY).exists() else None
    client = new_client(address, security=security, timeout="60s")
    try:
        _wait_for_workers(
            client, int(environ.get("SLURM_NTASKS") or environ.get("SLURM_JOB_NUM_NODES") or 1)
        )
    except BaseException:
        client.close()
        raise
    return client


def _wait_for_workers(client: Any, n_wanted: int) -> None:
    start, limit = time.monotonic(), value_of(SLURM_START)
    while True:
        n = len(client.scheduler_info(n_workers=-1)["workers"])
        seconds = time.monotonic() - start
        if n >= n_wanted or (n and seconds > _GATHER_SECONDS):
            return
        if is_draining():
            raise Stopped("stopped before a worker was there")
        if seconds > limit:
            raise WorkersLostError(
                f"no worker has come to {client.scheduler.address} in {seconds:.0f} s; "
                "look at the workers' log"
            )
        time.sleep(_POLL_SECONDS)
