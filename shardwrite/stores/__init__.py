"""Stores: read, write and remove objects by key, independently of Zarr."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from shardwrite.stores.base import Capability, Store
    from shardwrite.stores.memory import MemoryStore
    from shardwrite.stores.opening import open_store
    from shardwrite.stores.whole import WholeStore
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.stores.base": (
                "Capability",
                "Store",
            ),
            "shardwrite.stores.memory": ("MemoryStore",),
            "shardwrite.stores.opening": ("open_store",),
            "shardwrite.stores.whole": ("WholeStore",),
        },
    )

__all__ = ["Capability", "MemoryStore", "Store", "WholeStore", "open_store"]
