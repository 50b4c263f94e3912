"""Contract of a store, as a suite that anyone can run who writes one.

`CLAUSES` says what every store does. A store also has each capability that it claims, and refuses
what it does not claim. The checks themselves are in `clauses`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shardwrite.stores import clauses
from shardwrite.stores.base import Capability, Store

__all__ = ["CLAUSES", "BrokenContractError", "check_store"]

CLAUSES: dict[str, Callable[[clauses.Subject], None]] = {
    "An object of any size, of one buffer or many, is read as it was written.": clauses.whole,
    "Exactly the range that is asked for is read; past the end is an error.": clauses.ranges,
    "An unfinished object is invisible, and leaves nothing if it is aborted.": clauses.unfinished,
    "A guard that raises keeps an object from being visible, or removed.": clauses.guards,
    "Two attempts at one object do not disturb each other; the last one stays.": clauses.attempts,
    "Keys may have odd characters; those that leave the store are refused.": clauses.keys,
    "Exactly the visible objects are listed; a path gives a store below.": clauses.listing,
    "A removed object is gone, and no other; none is without a proof.": clauses.removal,
    "The version changes when an object is replaced by another of its size.": clauses.versions,
    "Threads can write different keys at once.": clauses.threads,
    **{
        f"{capability.name}: a store {'can or cannot ' + capability.cannot}.": partial(
            clauses.capability, capability
        )
        for capability in Capability
    },
}
"""What every store does, and the check of it."""


class BrokenContractError(AssertionError):
    """A store does not keep a clause of the contract.

    Attributes
    ----------
    clause : str
        The clause: one of `CLAUSES`.
    """

    def __init__(self, clause: str, reason: str) -> None:
        super().__init__(f"{clause} But: {reason}")
        self.clause = clause


def check_store(make: Callable[[], Store], *, run_path: Path | None = None) -> None:
    """Check that a store keeps the contract of all stores, and has the capabilities it claims.

    Parameters
    ----------
    make : callable
        Returns a new, empty store at each call.
    run_path : pathlib.Path, optional
        Directory that stands for that of a run. A store of files must be on the same file system.
        By default it is a temporary directory.

    Raises
    ------
    BrokenContractError
        If a clause does not hold. It says which, and why.

    Examples
    --------
    >>> from shardwrite.stores import MemoryStore
    >>> check_store(MemoryStore)
    """
    with tempfile.TemporaryDirectory() as directory:
        for clause, check in CLAUSES.items():
            try:
                check(clauses.Subject(make(), run_path or Path(directory)))
            except Exception as error:
                raise BrokenContractError(clause, f"{type(error).__name__}: {error}") from error
