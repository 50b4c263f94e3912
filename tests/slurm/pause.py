"""Slows commits down by ``PAUSE`` seconds, so that there is something to interrupt.

Until the file ``HURRY`` is there, or with ``PAUSE_ONCE`` until the job is put back into the queue:
what comes after an interruption need not last. While the file ``HOLD`` is there, nothing is
committed.

The task ``HOG`` of a job array takes more memory than it has. Also a preload of dask's workers.
"""

from __future__ import annotations

import os
import time

import shardwrite.write.copying
import shardwrite.write.tasks


def slowed(commit_shards):
    def slowly(*arguments):
        if os.environ.get("HOG", "none") == os.environ.get("SLURM_ARRAY_TASK_ID"):
            b"x" * 2**30
        if not os.path.exists(os.environ.get("HURRY", "")):
            time.sleep(float(os.environ["PAUSE"]))
        while os.path.exists(os.environ.get("HOLD", "")):
            time.sleep(0.1)
        return commit_shards(*arguments)

    return slowly


IS_AGAIN = "PAUSE_ONCE" in os.environ and "SLURM_RESTART_COUNT" in os.environ
if (
    "PAUSE" in os.environ
    and not IS_AGAIN
    and shardwrite.write.tasks.commit_shards.__name__ != "slowly"
):  # a preload is imported twice
    shardwrite.write.tasks.commit_shards = slowed(shardwrite.write.tasks.commit_shards)
    shardwrite.write.copying.commit_shards = shardwrite.write.tasks.commit_shards
