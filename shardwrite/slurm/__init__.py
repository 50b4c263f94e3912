"""Job scripts, submissions, requeues and clusters for SLURM.

Nothing here prints, and nothing needs `sacct`.
"""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from shardwrite.slurm.elastic import cluster
else:
    __getattr__, __dir__ = attach(__name__, {"shardwrite.slurm.elastic": ("cluster",)})

__all__ = ["cluster"]
