"""Keywords that say how a run goes, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from shardwrite.errors import SpecError
from shardwrite.options import RunKeywords
from shardwrite.place.checks import REPLACE
from shardwrite.seams import needed
from shardwrite.stores import DURABILITIES

__all__ = ["RunOptions", "for_new_array"]

_CHOICES: dict[str, tuple[object, ...]] = {
    "mode": ("w-", "w", "r+"),  # the last one is for internal use
    "publish": ("last", "first"),
    "durability": (*DURABILITIES, None),
    **dict.fromkeys(("restart", "recheck", "keep_report", "drop_hdf5"), (False, True)),
}


@dataclass(frozen=True, kw_only=True)
class RunOptions(RunKeywords):
    """How a run goes; none of this changes what is written."""

    # ``"w-"`` refuses to overwrite, ``"w"`` replaces an existing array, and ``"r+"`` writes into
    # one. An unfinished run goes on in the same way with ``"w-"`` and ``"w"``.
    mode: str = "w-"
    # Whether ``zarr.json`` appears when the array is whole, or at the start of the run
    publish: str = "last"
    drop_hdf5: bool = False  # shards that are files of another format may become plain shards
    # What a user can do where an array exists. Not every operation can replace it.
    remedy_if_there: str = REPLACE

    def __post_init__(self) -> None:
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if value not in allowed:
                shown = [choice for choice in allowed if choice not in ("r+", None)]
                raise SpecError(
                    "no such choice", field=field, value=value, remedy=f"use one of {shown}"
                )
        if self.keep_report:  # rather than when all is written
            needed("report", "run", "a report", field="keep_report", value=True)


def for_new_array(options: RunOptions) -> RunOptions:
    """Check the options of a run that makes an array."""
    if options.mode == "r+":
        raise SpecError(
            "no such choice", field="mode", value="r+", remedy=f"use one of {['w-', 'w']}"
        )
    return options
