"""What SLURM needs to be told, and what it tells: scripts, submissions, requeues. Nothing prints, and nothing needs `sacct`."""

from shardwrite.slurm.client import as_array_indices, job_id, max_array_size, requeue, resubmission, submit_chain
from shardwrite.slurm.elastic import cluster, opened
from shardwrite.slurm.inside import connect, make_run_directory, run_scheduler, run_worker
from shardwrite.slurm.jobs import Cancelled, cancel_all, record_jobs
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
    "cluster",
    "connect",
    "elastic_script",
    "finalize_script",
    "job_id",
    "make_run_directory",
    "max_array_size",
    "opened",
    "parts_for",
    "record_jobs",
    "requeue",
    "resubmission",
    "run_scheduler",
    "run_worker",
    "status",
    "submit_chain",
    "workers_of",
]
