"""Engines, which run task graphs. They know nothing of shards."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from shardwrite.engines.cluster import ClusterEngine, active_engine
    from shardwrite.engines.local import Engine, LocalEngine, Stopped
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.engines.cluster": ("ClusterEngine", "active_engine"),
            "shardwrite.engines.local": ("Engine", "LocalEngine", "Stopped"),
        },
    )

__all__ = ["ClusterEngine", "Engine", "LocalEngine", "Stopped", "active_engine"]
