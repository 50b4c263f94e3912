"""Access to `dask.array`, which is imported on first use.

Its import takes longer than that of all of shardwrite.
"""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from dask import array
else:
    __getattr__, __dir__ = attach(__name__, {}, modules=("dask.array",))

__all__ = ["array"]
