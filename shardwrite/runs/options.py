"""Keywords that say how a run goes, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from shardwrite.errors import SpecError
from shardwrite.place.checks import REPLACE
from shardwrite.stores import DURABILITIES

__all__ = ["RunOptions", "for_new_array"]

_CHOICES: dict[str, tuple[object, ...]] = {
    "mode": ("w-", "w", "r+"),  # the last one is for internal use
    "publish": ("last", "first"),
    "durability": (*DURABILITIES, None),
    **dict.fromkeys(("restart", "recheck", "keep_report", "drop_hdf5"), (False, True)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run goes; none of this changes what is written.

    Attributes
    ----------
    mode : {"w-", "w", "r+"}
        ``"w-"`` refuses to overwrite, ``"w"`` replaces an existing array, and ``"r+"`` writes
        into one. An unfinished run goes on in the same way with ``"w-"`` and ``"w"``.
    publish : {"last", "first"}
        Whether ``zarr.json`` appears when the array is whole, or at the start of the run.
    durability : {"full", "batch", "none"} or None
        Whether shards are synced one by one before they count as committed, many at a time, or
        never. None stands for the strongest that the store can promise; see `Job.durability`.
    restart : bool
        Remove the shards of an unfinished run and start over; give up an unfinished update.
    recheck : bool
        Decode the shards that journals call committed, and those of an array that is finished.
    keep_report : bool
        Keep a report of the run in the array.
    drop_hdf5 : bool
        Shards that are files of HDF5 may become plain shards.
    remedy_if_there : str
        What a user can do where an array exists. Not every operation can replace it.

    Raises
    ------
    SpecError
        If a value is not one of the choices.
    """

    mode: str = "w-"
    publish: str = "last"
    durability: str | None = None
    restart: bool = False
    recheck: bool = False
    keep_report: bool = False
    drop_hdf5: bool = False
    remedy_if_there: str = REPLACE

    def __post_init__(self) -> None:
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if value not in allowed:
                shown = [choice for choice in allowed if choice not in ("r+", None)]
                raise SpecError(
                    "no such choice", field=field, value=value, remedy=f"use one of {shown}"
                )


def for_new_array(options: RunOptions) -> RunOptions:
    """Check the options of a run that makes an array.

    Raises
    ------
    SpecError
        If the mode is ``"r+"``. Operations that write into an existing array have checks of their
        own.
    """
    if options.mode == "r+":
        raise SpecError(
            "no such choice", field="mode", value="r+", remedy=f"use one of {['w-', 'w']}"
        )
    return options
