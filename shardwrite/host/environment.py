"""Settings with which workers and their scheduler are started, unless the user sets others.

By default, dask's workers return freed memory to the system at once (``MALLOC_TRIM_THRESHOLD_``).
In glibc this setting also fixes the size above which `malloc` takes memory directly from the
system. Every encoded inner chunk of 128 KiB or more then comes from the system, page by page. With
both limits at 16 MiB, a thread of a worker keeps up to that much freed memory, and writes with fast
codecs up to twice as fast.

Dask's scheduler keeps the last thousand messages to each worker, together with the tasks that were
sent. With one source chunk per shard this takes a gigabyte after a million shards. Twenty messages
are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask

ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": 2**24, "MALLOC_MMAP_THRESHOLD_": 2**24}
"""Environment variables with limits in bytes. Only glibc reads them, when a process starts."""

MESSAGES_KEPT = 20
"""Messages to each worker that the scheduler keeps."""

LOOPBACK = "127.0.0.1:0"
"""Address of the HTTP server that dask starts in every scheduler and worker.

Dask starts it even without a dashboard, and it does not support TLS.
"""

_OF_ALLOCATOR = {
    f"distributed.nanny.pre-spawn-environ.{name}": nbytes for name, nbytes in ALLOCATOR.items()
}
_UNSAID = object()


def configured(settings: Mapping[str, Any] | None = None) -> Any:
    """Context with dask's configuration for starting a scheduler and workers.

    - `settings`: further settings by dotted names. Like the others, they are used only where the
      user's files, environment or program set nothing.
    """
    return dask.config.set(
        _unsaid(
            {
                **_OF_ALLOCATOR,
                "distributed.admin.low-level-log-length": MESSAGES_KEPT,
                **(settings or {}),
            }
        )
    )


def exports() -> list[str]:
    """Lines of a shell script that set the allocator's limits before workers start."""
    names = {
        setting.rpartition(".")[2]: nbytes for setting, nbytes in _unsaid(_OF_ALLOCATOR).items()
    }
    return [f"export {name}=${{{name}:-{nbytes}}}" for name, nbytes in names.items()]


def _unsaid(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select the settings that the user has not set.

    A setting counts as set if configuration files or the environment give it, or if the program has
    changed it from dask's default.
    """
    users, defaults = dask.config.collect(), dask.config.merge(*dask.config.defaults)

    def is_said(name: str) -> bool:
        if dask.config.get(name, _UNSAID, config=users) is not _UNSAID:
            return True
        value = dask.config.get(name, _UNSAID)
        return bool(
            value is not _UNSAID and value != dask.config.get(name, _UNSAID, config=defaults)
        )

    return {name: value for name, value in settings.items() if not is_said(name)}
