"""Notes beside a run about the batch jobs that work on it.

With these notes, a job is found even while it waits in the queue again.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from shardwrite.codecs.documents import JSON
from shardwrite.host.resources import job_id
from shardwrite.stores.looking import as_store_error, is_there

JOBS_PREFIX = "jobs-"


def note_job(run_path: str | os.PathLike[str]) -> None:
    """Note the number of this process's batch job in the directory of a run.

    Nothing is noted outside of a batch job. An interactive job is left to the user who started it.

    Where the environment variable ``SHARDWRITE_JOB`` is set, its number is noted instead. It names
    a job array whose tasks all work on this run.
    """
    if os.environ.get("ENVIRONMENT") != "BATCH":  # SLURM sets this in jobs submitted by sbatch
        return
    job = os.environ.get("SHARDWRITE_JOB") or job_id(os.environ) or ""
    if re.fullmatch(r"\d+(_\d+)?", job):
        path = Path(run_path) / f"{JOBS_PREFIX}{job}-at-work.json"
        with as_store_error(str(path), "cannot write"):
            if not is_there(path):
                write_note(path, {"job": job})


def write_note(path: Path, facts: Mapping[str, JSON]) -> None:
    """Write a small JSON file that appears whole.

    The file is not synced, so it is only for facts that may be lost in a power cut.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_text(json.dumps(facts))
    os.rename(draft, path)
