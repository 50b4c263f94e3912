"""Engines, which run task graphs. They know nothing of shards.

An engine is chosen as dask chooses: the active `distributed` client, else the configured scheduler,
else threads.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import dask
import dask.multiprocessing
from dask.base import get_scheduler, named_schedulers
from dask.local import get_sync

from shardwrite._lazy import attach
from shardwrite.engines.local import Engine, LocalEngine, Stopped
from shardwrite.errors import SpecError

if TYPE_CHECKING:
    from shardwrite.engines.cluster import ClusterEngine
else:
    __getattr__, __dir__ = attach(__name__, {"shardwrite.engines.cluster": ("ClusterEngine",)})

__all__ = ["ClusterEngine", "Engine", "LocalEngine", "Stopped", "active_engine"]


def active_engine() -> Engine:
    """Engine for what dask would use now: its client, the configured scheduler, or threads."""
    get = _scheduler()
    owner = getattr(get, "__self__", None)
    if owner is not None and hasattr(owner, "scheduler_info"):
        from shardwrite.engines.cluster import ClusterEngine  # for clusters

        return ClusterEngine(owner)
    kinds = {dask.multiprocessing.get: "processes", get_sync: "sync"}
    return LocalEngine(kinds.get(get, "threads"))


def _scheduler() -> Any:
    """Function that dask would compute with; None stands for dask's default.

    Dask imports `distributed` to look for a client. If nothing has imported it yet, there is no
    client, and the import is avoided.
    """
    if "distributed" not in sys.modules:
        chosen = dask.config.get("scheduler", None)
        if isinstance(chosen, str) and chosen.lower() in named_schedulers:
            return named_schedulers[chosen.lower()]
        if not chosen and not dask.config.get("get", None):
            return None
    try:
        return get_scheduler()
    except RuntimeError as error:
        if _is_asynchronous():
            raise SpecError(
                "the dask client is asynchronous, and this call would stop its event loop",
                field="client",
                value="asynchronous",
                remedy="make the call in a thread: `await asyncio.to_thread(function, ...)`",
            ) from error
        raise


def _is_asynchronous() -> bool:
    """Whether dask's client belongs to the event loop that runs this call."""
    from distributed import default_client

    try:
        return bool(default_client().asynchronous)
    except ValueError:  # there is none
        return False
