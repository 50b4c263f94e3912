"""The library dask, whose `array` is imported when it is first asked for: it takes longer than all of this package."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from dask import array
else:
    __getattr__, __dir__ = attach(__name__, {}, modules=("dask.array",))

__all__ = ["array"]
