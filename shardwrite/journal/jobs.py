"""Batch jobs that work on a run, noted beside it: so that they are found while they wait in the queue again."""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

from shardwrite.host.resources import job_id
from shardwrite.stores import as_store_error, is_there

__all__ = ["JOBS_PREFIX", "note_job", "write_note"]

JOBS_PREFIX = "jobs-"


def note_job(run_path: str | os.PathLike[str]) -> None:
    """Note the batch job of this process, if it is in one; an interactive job is its user's, and ends by its user.

    ``SHARDWRITE_JOB`` names another than the process's own: a job array whose tasks all work on this run.

    Raises
    ------
    StoreError
        If it cannot be written.
    """
    if os.environ.get("ENVIRONMENT") != "BATCH":  # sbatch says so
        return
    job = os.environ.get("SHARDWRITE_JOB") or job_id(os.environ) or ""
    if re.fullmatch(r"\d+(_\d+)?", job):
        path = Path(run_path) / f"{JOBS_PREFIX}{job}-at-work.json"
        with as_store_error(str(path), "cannot write"):
            if not is_there(path):
                write_note(path, {"job": job})


def write_note(path: Path, facts: dict[str, Any]) -> None:
    """Write a small file that is whole as soon as it is there; for what costs nothing if a power cut takes it."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_text(json.dumps(facts))
    os.rename(draft, path)
