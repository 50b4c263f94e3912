"""Settings of workers that are SLURM jobs, as arguments of `dask_jobqueue.SLURMCluster`."""

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
from shardwrite.slurm.script import Settings, directives_of, memory_nbytes, one_thread_each

# Lost workers after which dask gives up the task that they ran. SLURM ends many workers, and the
# task is not the cause.
_ALLOWED_FAILURES = 100
DEATH_SECONDS = 120  # after which a worker that reaches no scheduler ends
_NANNY_NBYTES = 128 * 2**20  # memory of the nanny, which is in the job too
_SHARE = 0.9  # of the remaining memory of the job, for the worker
_OWN_LINES = tuple(
    f"#SBATCH {option}" for option in ("-J ", "-e ", "-o ", "--cpus-per-task=", "--mem=", "-t ")
)
_SCRATCH = (
    "SHARDWRITE_SCRATCH=/tmp",
    (
        'for place in "${TMPDIR:-}" "${SLURM_TMPDIR:-}" "${SHARDWRITE_LOCAL_DIR:-}"; do  '
        "# the last that is here"
    ),
    '    if [ -d "$place" ] && [ -w "$place" ]; then SHARDWRITE_SCRATCH=$place; fi',
    "done",
)
_ENVIRONMENT = (
    (
        "export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False "
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False"
    ),
    (
        "export DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT=60s "
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP=120s"
    ),
    'export DASK_DISTRIBUTED__WORKER__HTTP__ROUTES="[]"',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Checked settings of workers that are SLURM jobs."""

    jobs: int  # largest and smallest number of workers
    minimum_jobs: int
    settings: Settings  # settings of each worker's job
    memory_limit_nbytes: int  # bytes of its job's memory that a worker may use
    # Network interfaces of the workers and of the scheduler; empty for dask's choice
    interface: str
    scheduler_interface: str
    # Directory for the jobs' output, and for the certificates as long as the cluster lives. All
    # nodes must see it.
    log_directory: Path
    is_encrypted: bool  # whether the processes talk by TLS, with certificates made for this cluster
    patience_seconds: float  # how long to wait while there is no worker at all
    config_name: str  # section of dask's configuration ``jobqueue``


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
    """Check the arguments of :func:`cluster`, and fill in what dask's configuration says."""
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
    directives_of(settings, job_name, ())  # refuses bad options here, before sbatch does
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
    """Import dask_jobqueue, which is an optional dependency."""
    try:
        return importlib.import_module("dask_jobqueue")
    except ImportError as error:
        remedy = 'pip install "shardwrite[slurm]"'
        raise SpecError(
            f"{error}, which submits workers", field="cluster", value="slurm", remedy=remedy
        ) from None


def _section(name: str) -> dict[str, Any]:
    """Section of dask's configuration ``jobqueue``, with every key that is read here.

    Importing dask_jobqueue loads its defaults.
    """
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
    """Settings of dask's configuration that the scheduler of these workers needs."""
    return {
        "distributed.scheduler.allowed-failures": _ALLOWED_FAILURES,
        "distributed.scheduler.no-workers-timeout": workers.patience_seconds,
        "distributed.comm.timeouts.connect": "60s",
        "distributed.comm.timeouts.tcp": "120s",
    }


def arguments_of(workers: Workers) -> dict[str, Any]:
    """Arguments of `dask_jobqueue.SLURMCluster`.

    Directives that SLURMCluster writes itself are left out where shardwrite writes the same option
    with its value quoted.
    """
    section = _section(workers.config_name)
    # A job that is lost is replaced by a new one, so SLURM must not requeue it.
    own = (f"--output={workers.log_directory}/%x-%j.out", "--no-requeue")
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
    """Scheduler options of dask that say where the scheduler listens.

    The interface that the user asks for comes first, and what `options` say comes second. Without
    them, it is the workers' interface if this machine has one of that name. The last resort is the
    address that dask finds.
    """
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
