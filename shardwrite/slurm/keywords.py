"""Keywords of SLURM jobs, in groups, and the arguments made of them.

Commands have options for them, job scripts have directives and arguments for them, and they are
keywords of :func:`shardwrite.slurm.cluster`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, ClassVar, TypeVar

from shardwrite._dataclass import dataclass
from shardwrite.options import (
    Keywords,
    NameKeywords,
    argument,
    flag_of,
    keywords,
    option,
    same_as,
)

_T = TypeVar("_T")

_DIRECTIVE = "directive"

CORES, MEMORY, TIME = 4, "8G", "01:00:00"

_OF_DASK = "or for dask workers as in dask/jobqueue.yaml."


def _asked(
    default: _T,
    directive: str,
    help: str,  # noqa: A002 (as in `option`)
    **details: Any,
) -> _T:
    """Declare a keyword that is an option of `sbatch`, too."""
    metadata = {**argument(help, **details).metadata, _DIRECTIVE: directive}
    declared: _T = field(default=default, metadata=metadata)
    return declared


@keywords
class JobKeywords(Keywords):
    """What each job asks SLURM for."""

    section: ClassVar[str] = "SLURM jobs"

    job_name: str = _asked("shardwrite", "job-name", "Name of the jobs.")
    cores: int | None = _asked(
        None,
        "cpus-per-task",
        f"""Cores of each job, and threads of its worker. By default what dask's configuration says,
        for instance in ``~/.config/dask/jobqueue.yaml``, or else {CORES}.""",
        least=1,
        command_help=f"Number of cores of each job. Default: {CORES}, {_OF_DASK}",
    )
    memory: str | None = _asked(
        None,
        "mem",
        f"""Memory of each job, as `sbatch` takes it. By default what dask's configuration says, or
        else ``"{MEMORY}"``.""",
        command_help=f"Memory of each job. Default: {MEMORY}, {_OF_DASK}",
    )
    time: str | None = _asked(
        None,
        "time",
        """Time limit of each job, as `sbatch` takes it. By default what dask's configuration says,
        or else the half hour that is dask-jobqueue's default.""",
        command_help=f"Time limit of each job. Default: {TIME}, {_OF_DASK}",
    )
    directives: Sequence[str] = option(
        (),
        """More options of `sbatch`, such as ``--partition=main``. They are added to those of dask's
        configuration.""",
        flag="sbatch",
        parser="texts",
        command_help="An option for sbatch, such as --sbatch=--partition=main. May be repeated.",
    )
    setup: Sequence[str] = option(
        (),
        """Lines of shell to run before the worker starts. They are added to those of dask's
        configuration.""",
        parser="texts",
        command_help='A shell command before the work, such as --setup "module load python". May '
        "be repeated.",
    )


def directives_in(asked: JobKeywords) -> Iterator[str]:
    """Options of `sbatch` for what a job asks for."""
    for declared in dataclasses.fields(JobKeywords):
        value = getattr(asked, declared.name)
        if _DIRECTIVE in declared.metadata and value is not None:
            yield f"--{declared.metadata[_DIRECTIVE]}={value}"


def arguments_in(asked: JobKeywords) -> Iterator[str]:
    """Words of a command line for what a job asks for, but for its name."""
    for declared in dataclasses.fields(JobKeywords):
        value, flag = getattr(asked, declared.name), flag_of(declared)
        if declared.name == "job_name" or value is None:
            continue
        for word in map(str, [value] if isinstance(value, str | int) else value):
            yield from [f"{flag}={word}"] if word.startswith("-") else [flag, word]


@keywords
class TaskKeywords(JobKeywords):
    """What a task does as its time limit comes near."""

    lead_seconds: int = option(
        120,
        """Seconds before the time limit at which a task finishes its shards and requeues itself.
        Give more than the slowest of these shards takes.""",
        flag="lead",
        least=1,
    )
    n_requeues: int = option(
        10,
        "How often a task that was told to finish may put itself back into the queue.",
        flag="requeues",
        least=0,
    )


@keywords
class ArrayJobKeywords(TaskKeywords):
    """How a job array is cut and submitted."""

    n_parts: int | None = option(
        None,
        """Number of parts, each a task of the job array. Default: as many as let each task last at
        least ten minutes.""",
        flag="parts",
        least=1,
    )
    at_once: int = option(0, "Number of tasks that may run at a time. Default: all.", least=0)
    throughput: str = option("200MB", "Decoded bytes per second that you expect of a task.")
    directory: str | None = option(
        None, "Directory for scripts and logs. Default: one for each array.", parser="folder"
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SubmitArguments(ArrayJobKeywords):
    """What a submission of a job array is told."""


@keywords
class WorkerKeywords(JobKeywords):
    """Dask workers that are jobs of their own."""

    jobs: int = argument(
        "Largest number of workers, each a job.",
        command_help="With --cluster: largest number of workers, each a job.",
    )
    minimum_jobs: int = option(
        1,
        """Number of workers to keep, once there is one. Others are given back after two minutes
        without work.""",
    )
    interface: str | None = option(
        None,
        """Network of the workers, such as ib0. Default: SHARDWRITE_INTERFACE, or as in
        dask/jobqueue.yaml.""",
    )
    scheduler_interface: str | None = option(
        None,
        """Network of this process, if it has another name here. Default:
        SHARDWRITE_SCHEDULER_INTERFACE, or that of the workers.""",
    )
    log_directory: Any = option(
        None,
        """Directory for the output of the jobs, and for certificates while they are needed. All
        nodes must see it. Default: as in dask/jobqueue.yaml, or logs.""",
        kind="str or path",
        parser="folder",
    )
    encrypted: bool = option(
        True,
        "Whether processes talk by TLS, with certificates of their own. Default: they do.",
        opposite="not-encrypted",
    )
    patience_seconds: float = option(
        86400.0,
        "Seconds to wait without any worker. Default: a day.",
        flag="patience",
        least=1,
    )
    config_name: str = option("slurm", "Section of dask/jobqueue.yaml.")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ClusterArguments(WorkerKeywords):
    """Arguments of `cluster`."""

    store: Any = option(
        None,
        """Where the array goes, as for :func:`shardwrite.to_sharded_zarr`. Once the run of this
        array has begun, the ids of the jobs are kept beside it, so that ``shardwrite slurm cancel``
        finds them even if this process was killed.""",
        kind="str, path, or store of zarr-python",
    )
    name: str | None = same_as(NameKeywords, "name", default=None)
    tell: Callable[[str], None] | None = option(
        None, "Called with a line of text about the workers, such as why there are none."
    )


@keywords
class AllocationKeywords(Keywords):
    """What one job of several nodes runs."""

    section: ClassVar[str] = "SLURM jobs"

    n_nodes: int = option(4, "Number of nodes of the allocation.", flag="nodes", least=1)
    n_workers: int = option(1, "Number of tasks on each node.", flag="workers-per-node", least=1)
    program: str | None = option(
        None,
        "A script of yours in Python for the allocation to run, with ARGUMENTS; put -- before "
        "them.",
    )


@keywords
class DriverKeywords(Keywords):
    """The job that drives workers which are jobs."""

    section: ClassVar[str] = "SLURM jobs"

    # Longer than that of the workers, because the driver also waits for them in the queue
    driver_time: str = option("1-00:00:00", "Time limit of the driver of the elastic way.")
