"""What SLURM needs to be told, and what it tells: scripts, submissions, requeues. Nothing prints, and nothing needs `sacct`."""

from shardwrite.slurm.client import as_array_indices, job_id, max_array_size, requeue, resubmission, submit_chain
from shardwrite.slurm.inside import connect, make_run_directory, run_scheduler, run_worker
from shardwrite.slurm.script import AllocationJob, ArrayJob, Settings, allocation_script, array_script, finalize_script
from shardwrite.slurm.size import parts_for
from shardwrite.slurm.status import Status, record_jobs, status

__all__ = [
    "AllocationJob",
    "ArrayJob",
    "Settings",
    "Status",
    "allocation_script",
    "array_script",
    "as_array_indices",
    "connect",
    "finalize_script",
    "job_id",
    "make_run_directory",
    "max_array_size",
    "parts_for",
    "record_jobs",
    "requeue",
    "resubmission",
    "run_scheduler",
    "run_worker",
    "status",
    "submit_chain",
]
