"""A dask cluster inside one allocation: where its files are, who may talk to it, its scheduler, its workers, and how to reach it.

Each start of a job has a run directory of its own, `<job id>.<restart count>`, that only its user can look into. In it are the
keys that all of its processes show each other, and the scheduler's address once it listens.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwrite.engines import Stopped
from shardwrite.errors import SpecError, WorkersLostError
from shardwrite.host.environment import LOOPBACK, configured
from shardwrite.host.resources import memory_limit_nbytes, n_cores, scratch_directory, tasks_on_node
from shardwrite.host.stopping import is_draining

__all__ = [
    "SCHEDULER_FILE",
    "connect",
    "make_run_directory",
    "run_scheduler",
    "run_worker",
    "security_of",
    "worker_nbytes",
]

SCHEDULER_FILE = "scheduler.json"
_AUTHORITY, _CERTIFICATE, _KEY = "ca.pem", "certificate.pem", "key.pem"
_START_SECONDS = 120.0  # until a scheduler or a worker must have been heard of
_GATHER_SECONDS = 20.0  # for all workers to come, once one is there
_LEAVE_SECONDS = 3
_POLL_SECONDS = 0.1
_FIRST_NODE_NBYTES = 2**29  # scheduler, program and srun
_LEAST_NBYTES = 2**27
_SETTINGS: dict[str, Any] = {
    "distributed.scheduler.allowed-failures": 100,
    "distributed.scheduler.no-workers-timeout": "10m",
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    "distributed.comm.timeouts.connect": "60s",
    "distributed.comm.timeouts.tcp": "120s",
}


def make_run_directory(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of this start of the job, with new keys in it, and no address of any scheduler.

    It is made in ``SHARDWRITE_RUN_DIR``, else in ``shardwrite-runs`` where the job was submitted: all nodes must see it.

    Parameters
    ----------
    environ : mapping, optional
        Instead of this process's environment.

    Raises
    ------
    SpecError
        Outside a job, if it is somebody else's, or without the package that makes keys.
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
    keys = _make_keys()
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
        for name, data in keys.items():
            _write_private(directory / name, data)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)  # the first error is the one to tell
        raise
    return directory


def _remove_earlier(base: Path, job: str, n_restarts: int) -> None:
    """Remove the keys that earlier starts of a job have left, because they were killed."""
    for number in range(n_restarts):
        left = base / f"{job}.{number}"
        if not left.is_symlink() and left.is_dir() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left)


def _write_private(path: Path, data: bytes) -> None:
    """A file that nobody else can read, and that is whole when it is there."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _make_keys() -> dict[str, bytes]:
    """An authority whose own key is forgotten at once, and the one key that it has signed, for all processes of a run."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        remedy = 'pip install "shardwrite[slurm]"'
        raise SpecError(
            "needs a package that is not installed",
            field="TLS",
            value="cryptography",
            remedy=remedy,
        ) from error
    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shardwrite run")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shardwrite process")])
    now = dt.datetime.now(dt.UTC)

    def signed(name: x509.Name, public: Any, *, is_authority: bool) -> bytes:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        )
        usage |= {
            "encipher_only": False,
            "decipher_only": False,
            "crl_sign": is_authority,
            "key_cert_sign": is_authority,
        }
        certificate = (
            x509.CertificateBuilder(issuer, name, public, x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))  # clocks of nodes differ
            .not_valid_after(now + dt.timedelta(days=365))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=not is_authority, **usage), critical=True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()),
                critical=False,
            )
            .sign(root, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    private = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        _AUTHORITY: signed(issuer, root.public_key(), is_authority=True),
        _CERTIFICATE: signed(subject, own.public_key(), is_authority=False),
        _KEY: private,
    }


def security_of(directory: Path) -> Any:
    """Have all of a run's processes show its certificate, and talk to nobody who does not."""
    from distributed.security import Security

    roles = ("scheduler", "worker", "client")
    certificates = {f"tls_{role}_cert": str(directory / _CERTIFICATE) for role in roles}
    keys = {f"tls_{role}_key": str(directory / _KEY) for role in roles}
    return Security(
        require_encryption=True, tls_ca_file=str(directory / _AUTHORITY), **certificates, **keys
    )


def run_scheduler(directory: Path, environ: Mapping[str, str] | None = None) -> None:
    """Be the scheduler, until this process is told to end; its address is written once it listens.

    Raises
    ------
    SpecError
        If no other node can reach it.
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
                _write_private(directory / SCHEDULER_FILE, json.dumps(facts).encode())
                await scheduler.finished()

        IOLoop().run_sync(serve)


def run_worker(directory: Path, environ: Mapping[str, str] | None = None) -> None:
    """Be a worker, with all cores and memory that this process has; its nanny starts it again if it dies."""
    environ = os.environ if environ is None else environ
    signal.signal(
        signal.SIGUSR1, signal.SIG_IGN
    )  # the program is told to finish; who works for it is needed for that
    os.environ.setdefault(
        "DASK_LOGGING__DISTRIBUTED", "warning"
    )  # for this process and the one that it starts
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
                death_timeout=_START_SECONDS,
                interface=_interface(environ),
                protocol="tls",
                security=security_of(directory),
                dashboard=False,
                dashboard_address=LOOPBACK,
            )
            loop: Any = IOLoop.current()

            def leave() -> None:
                signal.alarm(
                    _LEAVE_SECONDS
                )  # ends this process if it cannot close: while its worker starts it cannot
                loop.add_callback(nanny.close)

            loop.asyncio_loop.add_signal_handler(signal.SIGTERM, leave)
            async with nanny:
                await nanny.finished()

        IOLoop().run_sync(serve)


def worker_nbytes(environ: Mapping[str, str] | None = None) -> int:
    """Memory of a worker: what its process may use; less on the first node, where scheduler and program are.

    Raises
    ------
    SpecError
        If nothing would be left.
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
    """The network that the user wants.

    Raises
    ------
    SpecError
        If this machine has none of that name.
    """
    name = environ.get("SHARDWRITE_INTERFACE")
    here = sorted(name for _, name in socket.if_nameindex())
    if name and name not in here:
        remedy = f"{socket.gethostname()} has {', '.join(here)}"
        raise SpecError(
            "no network interface", field="SHARDWRITE_INTERFACE", value=name, remedy=remedy
        )
    return name or None


def _refuse_loopback(address: str, environ: Mapping[str, str]) -> None:
    """A host name that stands for the machine itself in its own tables is of no use to other nodes."""
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    if ipaddress.ip_address(host).is_loopback and environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        names = ", ".join(sorted(name for _, name in socket.if_nameindex() if name != "lo"))
        remedy = f"set SHARDWRITE_INTERFACE to the network between the nodes; {socket.gethostname()} has {names}"
        raise SpecError(
            "other nodes cannot reach this address", field="scheduler", value=address, remedy=remedy
        )


def _address_in(path: Path) -> str:
    """The address in a scheduler file, as soon as it is there.

    Raises
    ------
    Stopped
        If this process is asked to stop meanwhile.
    WorkersLostError
        If it does not come.
    """
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(
            FileNotFoundError, json.JSONDecodeError
        ):  # dask's own is not written at once
            return str(json.loads(path.read_bytes())["address"])
        if is_draining():
            raise Stopped("stopped before the scheduler was there")
        if time.monotonic() > deadline:
            raise WorkersLostError(
                f"{path} did not come in {_START_SECONDS:.0f} s; is the scheduler running, and the path the same?"
            )
        time.sleep(_POLL_SECONDS)


def connect(where: str, environ: Mapping[str, str] | None = None) -> Any:
    """A client of the scheduler at an address, or of the one whose file is at a path; with the keys beside that, if there are any.

    After a file, it waits for workers: for all of the job's tasks for a while, and for one in any case.

    Parameters
    ----------
    where : str
        Address, or the path of a scheduler file.
    environ : mapping, optional
        Instead of this process's environment.

    Raises
    ------
    Stopped
        If this process is asked to stop meanwhile.
    WorkersLostError
        If none comes.
    """
    from distributed import Client

    is_file = "://" not in where and ("/" in where or where.endswith(".json"))
    if not is_file:
        return Client(where)
    environ = os.environ if environ is None else environ
    path = Path(where)
    address = _address_in(path)
    security = security_of(path.parent) if (path.parent / _KEY).exists() else None
    client = Client(address, security=security, timeout="60s")
    try:
        _wait_for_workers(
            client, int(environ.get("SLURM_NTASKS") or environ.get("SLURM_JOB_NUM_NODES") or 1)
        )
    except BaseException:
        client.close()
        raise
    return client


def _wait_for_workers(client: Any, n_wanted: int) -> None:
    start = time.monotonic()
    while True:
        n = len(client.scheduler_info(n_workers=-1)["workers"])
        seconds = time.monotonic() - start
        if n >= n_wanted or (n and seconds > _GATHER_SECONDS):
            return
        if is_draining():
            raise Stopped("stopped before a worker was there")
        if seconds > _START_SECONDS:
            raise WorkersLostError(
                f"no worker has come to {client.scheduler.address} in {seconds:.0f} s; look at the workers' log"
            )
        time.sleep(_POLL_SECONDS)
