"""What is asked of SLURM for workers that are jobs of their own, as arguments of `dask_jobqueue.SLURMCluster`."""

from __future__ import annotations

import importlib
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes

from shardwrite.errors import SpecError
from shardwrite.host.environment import LOOPBACK, exports
from shardwrite.slurm.settings import Settings, directives_of, memory_nbytes, one_thread_each

__all__ = ["DEATH_SECONDS", "Workers", "arguments_of", "configuration_of", "package", "workers_of"]

_ALLOWED_FAILURES = 100  # losses of its workers after which a task is given up: SLURM takes many, and the task is innocent
DEATH_SECONDS = 120  # after which a worker without a scheduler ends
_NANNY_NBYTES = 128 * 2**20  # the process that watches the worker counts as the job's, too
_SHARE = 0.9
_OWN_LINES = tuple(
    f"#SBATCH {option}" for option in ("-J ", "-e ", "-o ", "--cpus-per-task=", "--mem=", "-t ")
)
_SCRATCH = (
    "SHARDWRITE_SCRATCH=/tmp",
    'for place in "${TMPDIR:-}" "${SLURM_TMPDIR:-}" "${SHARDWRITE_LOCAL_DIR:-}"; do  # the last that is here',
    '    if [ -d "$place" ] && [ -w "$place" ]; then SHARDWRITE_SCRATCH=$place; fi',
    "done",
)
_ENVIRONMENT = (
    "export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False",
    "export DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT=60s DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP=120s",
    'export DASK_DISTRIBUTED__WORKER__HTTP__ROUTES="[]"',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What is asked of SLURM, checked.

    Attributes
    ----------
    jobs, minimum_jobs : int
        Workers at most, and at least.
    settings : Settings
        Of each one's job.
    memory_limit_nbytes : int
        What a worker may use of its job's memory.
    interface, scheduler_interface : str
        Networks that workers and scheduler talk over; empty for dask's choice.
    log_directory : Path
        For the jobs' output, and for the certificates as long as the cluster lives; all nodes must see it.
    is_encrypted : bool
        Whether they talk by TLS, with certificates made for this cluster.
    patience_seconds : float
        How long to be without any worker.
    config_name : str
        Section of dask's configuration ``jobqueue``.
    """

    jobs: int
    minimum_jobs: int
    settings: Settings
    memory_limit_nbytes: int
    interface: str
    scheduler_interface: str
    log_directory: Path
    is_encrypted: bool
    patience_seconds: float
    config_name: str


def workers_of(
    *,
    jobs: int,
    cores: int | None = None,
    memory: str | None = None,
    time: str | None = None,
    job_name: str = "shardwrite",
    directives: Sequence[str] = (),
    setup: Sequence[str] = (),
    minimum_jobs: int = 1,
    interface: str | None = None,
    scheduler_interface: str | None = None,
    log_directory: str | os.PathLike[str] | None = None,
    encrypted: bool = True,
    patience_seconds: float = 86400.0,
    config_name: str = "slurm",
) -> Workers:
    """Check what :func:`cluster` is asked for, and fill in what dask's configuration says.

    Raises
    ------
    SpecError
        Naming the argument.
    """
    if not 1 <= minimum_jobs <= jobs:
        message = (
            "not between 1 and the number of jobs" if jobs >= 1 else "there is at least one job"
        )
        raise SpecError(
            message,
            field="jobs",
            value=(minimum_jobs, jobs),
            remedy="give 1 or more, and no minimum above it",
        )
    section = _section(config_name)
    size = memory or section["memory"] or Settings().memory
    nbytes = memory_nbytes(size) if memory or not section["memory"] else int(parse_bytes(size))
    limit = int(_SHARE * (nbytes - _NANNY_NBYTES))
    if limit < _NANNY_NBYTES:
        raise SpecError(
            "too little for a worker", field="memory", value=size, remedy="give 512M or more"
        )
    settings = Settings(
        name=job_name,
        cores=cores or section["cores"] or Settings().cores,
        memory=size if memory or not section["memory"] else f"{math.ceil(nbytes / 2**20)}M",
        time=time or section["walltime"] or Settings().time,
        directives=tuple(directives),
        setup=tuple(setup),
    )
    directives_of(settings, job_name, ())  # refused here, and not by sbatch
    return Workers(
        jobs=jobs,
        minimum_jobs=minimum_jobs,
        settings=settings,
        memory_limit_nbytes=limit,
        interface=interface or os.environ.get("SHARDWRITE_INTERFACE") or section["interface"] or "",
        scheduler_interface=scheduler_interface
        or os.environ.get("SHARDWRITE_SCHEDULER_INTERFACE")
        or "",
        log_directory=Path(log_directory or section["log-directory"] or "logs").absolute(),
        is_encrypted=encrypted,
        patience_seconds=patience_seconds,
        config_name=config_name,
    )


def package() -> Any:
    """dask_jobqueue, which is large to install and small to name.

    Raises
    ------
    SpecError
        If it is not there.
    """
    try:
        return importlib.import_module("dask_jobqueue")
    except ImportError as error:
        remedy = 'pip install "shardwrite[slurm]"'
        raise SpecError(
            f"{error}, which submits workers", field="cluster", value="slurm", remedy=remedy
        ) from error


def _section(name: str) -> dict[str, Any]:
    """What dask's configuration says of jobs; the package has defaults for it."""
    package()
    found = dask.config.get(f"jobqueue.{name}", None)
    if not isinstance(found, dict):
        remedy = f"put it into {Path(dask.config.PATH) / 'jobqueue.yaml'}"
        raise SpecError(
            "no such section of jobqueue in dask's configuration",
            field="config_name",
            value=name,
            remedy=remedy,
        )
    fields = (
        "cores",
        "memory",
        "walltime",
        "interface",
        "log-directory",
        "local-directory",
        "scheduler-options",
    )
    lists = (
        "job-extra-directives",
        "job-directives-skip",
        "job-script-prologue",
        "worker-extra-args",
    )
    return {
        **dict.fromkeys(fields),
        **{key: value or [] for key, value in dict.fromkeys(lists).items()},
        **found,
    }


def configuration_of(workers: Workers) -> dict[str, Any]:
    """For the scheduler, and only as long as this is used."""
    return {
        "distributed.scheduler.allowed-failures": _ALLOWED_FAILURES,
        "distributed.scheduler.no-workers-timeout": workers.patience_seconds,
        "distributed.comm.timeouts.connect": "60s",
        "distributed.comm.timeouts.tcp": "120s",
    }


def arguments_of(workers: Workers) -> dict[str, Any]:
    """Of SLURMCluster. Its own header is left out where ours says the same with the values quoted."""
    section = _section(workers.config_name)
    own = (
        f"--output={workers.log_directory}/%x-%j.out",
        "--no-requeue",
    )  # a job that is lost is replaced, not repeated
    options = {
        "dashboard": False,
        "dashboard_address": LOOPBACK,
        **_address(workers, section["scheduler-options"] or {}),
    }
    return {
        "config_name": workers.config_name,
        "cores": workers.settings.cores,
        "processes": 1,
        "nanny": True,
        "memory": f"{workers.memory_limit_nbytes}B",
        "interface": workers.interface or None,
        "scheduler_options": options,
        "death_timeout": DEATH_SECONDS,
        "local_directory": section["local-directory"] or '"$SHARDWRITE_SCRATCH"',
        "job_directives_skip": [*section["job-directives-skip"], *_OWN_LINES],
        "job_extra_directives": [
            *section["job-extra-directives"],
            *directives_of(workers.settings, f"{workers.settings.name}-worker", own),
        ],
        "job_script_prologue": [
            *section["job-script-prologue"],
            *workers.settings.setup,
            *_SCRATCH,
            *one_thread_each(),
            *_ENVIRONMENT,
            *exports(),
        ],
        "worker_extra_args": [
            *section["worker-extra-args"],
            "--no-dashboard",
            "--dashboard-address",
            LOOPBACK,
        ],
    }


def _address(workers: Workers, options: dict[str, Any]) -> dict[str, Any]:
    """Where the scheduler listens: as asked for, else on the workers' network if it is here, too, else where dask would."""
    from distributed.utils import get_ip

    here = [name for _, name in socket.if_nameindex()]
    if workers.scheduler_interface:
        if workers.scheduler_interface not in here:
            remedy = f"here are {', '.join(here)}"
            raise SpecError(
                "no network here",
                field="scheduler_interface",
                value=workers.scheduler_interface,
                remedy=remedy,
            )
        return {**options, "interface": workers.scheduler_interface}
    if "host" in options or "interface" in options:
        return options
    return {
        **options,
        **({"interface": workers.interface} if workers.interface in here else {"host": get_ip()}),
    }
