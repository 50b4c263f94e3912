"""Job scripts, submissions, requeues and clusters for SLURM.

Nothing here prints, and nothing needs `sacct`.
"""

from shardwrite.host.resources import job_id
from shardwrite.slurm.below import runs_at, spool_at, targets_at
from shardwrite.slurm.client import (
    as_array_indices,
    max_array_size,
    requeue,
    resubmission,
    root_of,
    submit_chain,
)
from shardwrite.slurm.directory import (
    check_directory,
    default_directory,
    read_scripts,
    write_scripts,
)
from shardwrite.slurm.elastic import cluster, opened
from shardwrite.slurm.inside import connect, make_run_directory, run_scheduler, run_worker
from shardwrite.slurm.jobs import (
    Cancelled,
    cancel_all,
    jobs_known,
    record_jobs,
    refuse_second,
    submitting,
)
from shardwrite.slurm.script import (
    AllocationJob,
    ArrayJob,
    ElasticJob,
    allocation_script,
    array_script,
    elastic_script,
    finalize_script,
)
from shardwrite.slurm.settings import Settings
from shardwrite.slurm.size import parts_for
from shardwrite.slurm.status import Status, status
from shardwrite.slurm.workers import Workers, workers_of

__all__ = [
    "AllocationJob",
    "ArrayJob",
    "Cancelled",
    "ElasticJob",
    "Settings",
    "Status",
    "Workers",
    "allocation_script",
    "array_script",
    "as_array_indices",
    "cancel_all",
    "check_directory",
    "cluster",
    "connect",
    "default_directory",
    "elastic_script",
    "finalize_script",
    "job_id",
    "jobs_known",
    "make_run_directory",
    "max_array_size",
    "opened",
    "parts_for",
    "read_scripts",
    "record_jobs",
    "refuse_second",
    "requeue",
    "resubmission",
    "root_of",
    "run_scheduler",
    "run_worker",
    "runs_at",
    "spool_at",
    "status",
    "submit_chain",
    "submitting",
    "targets_at",
    "workers_of",
    "write_scripts",
]
