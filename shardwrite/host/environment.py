"""How shardwrite starts workers and their scheduler, unless their user has said otherwise.

Dask has its workers give freed memory back at once (``MALLOC_TRIM_THRESHOLD_``). In glibc that also switches off what makes
`malloc` keep blocks as large as those freed before, so every encoded inner chunk of 128 KiB or more comes from the system, page by
page. With both limits at 16 MiB a thread of a worker keeps that much of what it frees, and writes fast codecs up to twice as fast.

Dask's scheduler keeps the last thousand messages to each worker, and with them the tasks that were sent: with a source chunk for
each shard that is a gigabyte after a million. Twenty are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask

__all__ = ["ALLOCATOR", "LOOPBACK", "MESSAGES_KEPT", "configured", "exports"]

ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": 2**24, "MALLOC_MMAP_THRESHOLD_": 2**24}
"""Bytes; read by glibc when a process starts, unknown to other systems."""

MESSAGES_KEPT = 20
"""To each worker."""

LOOPBACK = "127.0.0.1:0"
"""Address of the HTTP server that dask starts in every scheduler and worker, with or without a dashboard; it knows no TLS."""

_OF_ALLOCATOR = {
    f"distributed.nanny.pre-spawn-environ.{name}": nbytes for name, nbytes in ALLOCATOR.items()
}
_UNSAID = object()


def configured(settings: Mapping[str, Any] | None = None) -> Any:
    """Dask's configuration for starting a scheduler and workers, as a context.

    Parameters
    ----------
    settings : mapping, optional
        More of it, by dotted names. Like the rest, it gives way to what the user's files, environment or program say.
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
    """Lines of a shell script that starts workers, for the allocator."""
    names = {
        setting.rpartition(".")[2]: nbytes for setting, nbytes in _unsaid(_OF_ALLOCATOR).items()
    }
    return [f"export {name}=${{{name}:-{nbytes}}}" for name, nbytes in names.items()]


def _unsaid(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of which the user says nothing: neither files nor environment, nor a program that set another value than dask's."""
    users, defaults = dask.config.collect(), dask.config.merge(*dask.config.defaults)

    def is_said(name: str) -> bool:
        if dask.config.get(name, _UNSAID, config=users) is not _UNSAID:
            return True
        value = dask.config.get(name, _UNSAID)
        return bool(
            value is not _UNSAID and value != dask.config.get(name, _UNSAID, config=defaults)
        )

    return {name: value for name, value in settings.items() if not is_said(name)}
