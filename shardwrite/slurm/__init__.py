"""What SLURM needs to be told, and what it tells: scripts, submissions, requeues. Nothing prints, and nothing needs `sacct`."""

from shardwrite.slurm.client import as_array_indices, job_id, max_array_size, requeue, resubmission, submit_chain
from shardwrite.slurm.script import ArrayJob, Settings, array_script, finalize_script
from shardwrite.slurm.size import parts_for
from shardwrite.slurm.status import Status, record_jobs, status

__all__ = [
    "ArrayJob",
    "Settings",
    "Status",
    "array_script",
    "as_array_indices",
    "finalize_script",
    "job_id",
    "max_array_size",
    "parts_for",
    "record_jobs",
    "requeue",
    "resubmission",
    "status",
    "submit_chain",
]
