"""The command ``shardwrite`` of this source tree, as the tests' jobs find it; with ``PAUSE`` in the environment, slower.

With ``PAUSE_ONCE``, too, only until the job is put back into the queue: what comes after an interruption need not last.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import shardwrite.tasks
from shardwrite.cli import main

if "PAUSE" in os.environ and not ("PAUSE_ONCE" in os.environ and "SLURM_RESTART_COUNT" in os.environ):
    commit_shards = shardwrite.tasks.commit_shards

    def slowly(*arguments):
        time.sleep(float(os.environ["PAUSE"]))
        return commit_shards(*arguments)

    shardwrite.tasks.commit_shards = slowly

if __name__ == "__main__":  # worker processes import this file, too, so that they are slower as well
    main()
