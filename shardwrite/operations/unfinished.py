"""Hierarchies in which a run has not ended. They are neither converted nor copied."""

from __future__ import annotations

from shardwrite.errors import JournalError
from shardwrite.journal import look_beside, refuse_unfinished
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target
from shardwrite.read.hierarchy import Hierarchy

_END_IT = (
    "Finish it by the same call, or give it up with abandon (shardwrite abandon), and then convert "
    "or copy the array"
)


def refuse_runs(tree: Hierarchy, *, is_kept: bool = False) -> None:
    """Refuse a hierarchy if a run on one of its arrays has not ended.

    - `is_kept`: whether the hierarchy is only read. Untrusted state beside it is then ignored,
      because anybody may have put it there.
    """
    for name, source in tree.arrays:
        place = tree.place.member(name) if name else tree.place
        if not isinstance(place, Directory):
            refuse_unfinished(place, _END_IT)
            continue
        beside = look_beside(Target(place, place.beside))
        if beside.untrusted is not None and not is_kept:
            raise beside.untrusted
        if beside.run is not None and beside.run.makes_array:
            raise JournalError(
                f"the run that makes {source.label} has not ended, so shards are missing. Make the "
                "same call again to finish it, and then convert or copy the array",
                path=str(place.beside),
            )
        if beside.run is not None or beside.updates:
            raise JournalError(
                f"a run on {source.label} has not ended. {_END_IT}", path=str(place.beside)
            )
