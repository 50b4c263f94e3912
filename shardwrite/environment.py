"""How shardwrite starts workers and their scheduler, unless the user's own settings say otherwise.

Dask has its workers give freed memory back at once (``MALLOC_TRIM_THRESHOLD_``). In glibc that also switches off what makes
`malloc` keep blocks as large as those freed before, so every encoded inner chunk of 128 KiB or more comes from the system, page by
page. With both limits at 16 MiB a worker keeps that much of what it frees, and writes fast codecs up to twice as fast.

Dask's scheduler keeps the last thousand messages to each worker, and with them the tasks that were sent: with a source chunk for
each shard that is a gigabyte after a million. Twenty are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask

__all__ = ["ALLOCATOR", "configured"]

ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": 2**24, "MALLOC_MMAP_THRESHOLD_": 2**24}
"""Bytes; read by glibc when a process starts, unknown to other systems."""

_MESSAGES_KEPT = 20


def configured(settings: Mapping[str, Any] | None = None) -> Any:
    """Dask's configuration for starting a scheduler and workers, as a context.

    Parameters
    ----------
    settings : mapping, optional
        More of it, by dotted names; as all of it, it gives way to what the user's own files and environment say.
    """
    ours: dict[str, Any] = {f"distributed.nanny.pre-spawn-environ.{name}": nbytes for name, nbytes in ALLOCATOR.items()}
    ours |= {"distributed.admin.low-level-log-length": _MESSAGES_KEPT, **(settings or {})}
    users = dask.config.collect()
    return dask.config.set({name: value for name, value in ours.items() if dask.config.get(name, None, config=users) is None})
