"""What every run asks of the lease of its array: who holds it, and whether it goes on.

Only a run whose state lies in a bucket has such a lease (`journal.bucket_runs`). For others nothing
is done, and nothing is loaded.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwrite._lazy import if_loaded
from shardwrite.errors import JournalError, SpecError, StoreError
from shardwrite.place.base import Place
from shardwrite.place.target import Target

if TYPE_CHECKING:
    from shardwrite.journal.bucket_runs import Fence, Share, SharedFence


@contextlib.contextmanager
def holding(*targets: Target) -> Iterator[None]:
    """Hold the leases of all targets whose run state lies in their bucket.

    Other targets need none. A lease that this process holds already is shared.
    """
    with contextlib.ExitStack() as stack:
        for target in targets:
            if target.in_store:
                from shardwrite.journal.bucket_runs import held  # for states in buckets

                stack.enter_context(held(replace(target, update="")))
        yield


def check_held(target: Target, *, makes_array: bool) -> None:
    """Refuse to begin a run where its state would lie in this process alone.

    - `makes_array`: whether the run would make the array. A mark then keeps others away.
    - Raises RunEndedError if another process has taken the lease over.
    """
    if target.in_store:
        work = _work_on(target)
        if work is None:
            refuse_in_store(target)
        else:
            work.check()
    elif not makes_array:
        refuse_unfinished(target.place, "Finish it by the same call without run_dir")


def refuse_unfinished(place: Place, remedy: str) -> None:
    """Refuse to go on if a run whose state lies in the bucket of an array has not ended."""
    store = place.store
    if not isinstance(store, if_loaded("shardwrite.stores.bucket", "BucketStore")):
        return
    from shardwrite.journal.bucket_lease import read_lease  # for buckets

    found = read_lease(store)
    if found is not None and (found[0].holder or found[0].state):
        raise JournalError(
            f"a run on {place.label} keeps its state in the bucket, and has not ended. {remedy}",
            path=place.label,
        )


def refuse_in_store(
    target: Target, why: str = "this operation cannot keep the state of its run in the bucket"
) -> None:
    """Refuse an operation that cannot keep its state in a bucket."""
    if target.in_store:
        raise SpecError(
            why,
            field="run_dir",
            value=None,
            remedy="give a directory that all processes of the run see, such as "
            'run_dir="/scratch/me/runs", or set shardwrite.run-dir in the configuration of dask',
        )


def confirm(target: Target) -> None:
    """Put all of the run state into the bucket, and verify that this process holds the lease.

    Nothing is done for targets whose run state lies in a directory.

    - Raises RunEndedError if another process has taken the lease over.
    """
    work = _work_on(target)
    if work is not None:
        work.confirm()


def fence_of(target: Target) -> Fence | None:
    """The way from tasks to the lease in the bucket; None if the run state lies in a directory."""
    work = _work_on(target)
    return None if work is None else work.fence


def shared_fence_of(target: Target, directory: str = "") -> SharedFence | None:
    """The way from tasks to a run of which nobody will hold the lease; else as `fence_of`."""
    if not target.in_store:
        return None
    from shardwrite.journal.bucket_runs import SharedFence, store_of  # for states in buckets

    return SharedFence(store_of(target), directory, target.label)


def ensure_held(target: Target) -> None:
    """Verify that no other process can have taken the lease over, without asking the service.

    - Raises RunEndedError if another process has taken the lease over.
    """
    work = _work_on(target)
    if work is not None:
        work.check()
        if work.is_late:
            raise StoreError(
                f"the lease of {target.label} could not be renewed in time, so another process may "
                "have taken it over; make the same call again",
                key=str(target.run_path),
                errno=errno.ETIMEDOUT,
            )


def is_resumed(target: Target, run: str) -> bool:
    """Whether a run was there already when this process took the lease."""
    work = _work_on(target)
    return work is not None and run in work.resumed


def _work_on(target: Target) -> Share | None:
    """Work of this process on the state of a target, if that lies in the bucket."""
    if not target.in_store:
        return None
    from shardwrite.journal.bucket_runs import work_on  # for states in buckets

    return work_on(target)
