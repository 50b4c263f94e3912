"""Who runs the tasks of a throughput run: threads here, worker processes here, or a cluster that runs already."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask

__all__ = ["Crew", "joined", "local_processes", "local_threads"]


@dataclass(frozen=True)
class Crew:
    """Processes and their threads.

    Parameters
    ----------
    kind : {"threads", "processes", "cluster"}
        Where they are.
    n_workers, threads_per_worker : int
        How many; the one process of `threads` counts as one worker.
    client : distributed.Client, optional
        Of the workers.
    """

    kind: str
    n_workers: int
    threads_per_worker: int
    client: Any = None

    @property
    def n_threads(self) -> int:
        """All threads together."""
        return self.n_workers * self.threads_per_worker

    def everywhere(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function in every process that takes part, this one first."""
        here = [function(*args)]
        return (
            here if self.client is None else here + list(self.client.run(function, *args).values())
        )


@contextmanager
def local_threads(n_threads: int) -> Iterator[Crew]:
    """Dask's threaded scheduler in this process."""
    with dask.config.set(scheduler="threads", num_workers=n_threads):
        yield Crew("threads", 1, n_threads)


@contextmanager
def local_processes(n_workers: int, n_threads: int) -> Iterator[Crew]:
    """A cluster on this machine, with a real scheduler in this process."""
    distributed: Any = importlib.import_module("distributed")
    with (
        tempfile.TemporaryDirectory(prefix="workers-") as scratch,
        distributed.LocalCluster(
            n_workers=n_workers,
            threads_per_worker=n_threads,
            processes=True,
            memory_limit=0,
            dashboard_address=None,
            local_directory=scratch,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers)
        yield Crew("processes", n_workers, n_threads, client)


@contextmanager
def joined(
    scheduler: str, n_workers: int, timeout: float, tls: tuple[str, str, str] | None = None
) -> Iterator[Crew]:
    """A cluster that runs already.

    Parameters
    ----------
    scheduler : str
        Address, or path of a scheduler file.
    n_workers : int
        Workers to wait for.
    timeout : float
        Seconds to wait for them.
    tls : tuple of str, optional
        Certificate of the authority, own certificate and own key, for a scheduler that asks for them.

    Raises
    ------
    TimeoutError
        If they do not come.
    ValueError
        If workers differ in their threads: efficiency would mean nothing.
    """
    distributed: Any = importlib.import_module("distributed")
    is_file = "://" not in scheduler and ("/" in scheduler or scheduler.endswith(".json"))
    where: dict[str, Any] = {"scheduler_file": scheduler} if is_file else {"address": scheduler}
    if tls is not None:
        authority, certificate, key = tls
        where["security"] = distributed.Security(
            tls_ca_file=authority,
            tls_client_cert=certificate,
            tls_client_key=key,
            require_encryption=True,
        )
    with distributed.Client(**where, timeout=timeout) as client:
        client.wait_for_workers(n_workers, timeout=timeout)
        threads = {
            worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()
        }
        count = len(client.scheduler_info(n_workers=-1)["workers"])
        if len(threads) != 1:
            raise ValueError(f"workers have {sorted(threads)} threads; give all of them as many")
        yield Crew("cluster", count, threads.pop(), client)
