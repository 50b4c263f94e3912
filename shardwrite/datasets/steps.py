"""Whether the steps of an append follow those of the store.

Steps are compared where they are numbers or times, and those of the store are sorted. So an append
never goes back, and no step is there twice. Nor is a step of another kind, such as a name, or a
step in no order, unless the store has some twice already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError

if TYPE_CHECKING:
    import xarray

Index: TypeAlias = Any
"""A `pandas.Index`, of which there are no types without more packages."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Steps of a dataset that do not follow those of the store."""

    length: int  # number of steps of the store
    n_steps: int  # of the dataset
    are_last: bool  # whether they are the last ones of the store
    error: SpecError

    @property
    def is_whole(self) -> bool:
        """Whether the store has these steps and no others."""
        return self.are_last and self.n_steps == self.length


def overlap(
    dataset: xarray.Dataset, dim: str, length: int, read: Callable[[Any, bool], Index]
) -> Overlap | None:
    """What is wrong with the steps of a dataset along the dimension of an append; None if nothing.

    - `length`: number of steps of the store.
    - `read`: steps of the store, given those of the dataset, which they are decoded like: all of
      them, or some at the beginning and at the end.
    """
    variable = dataset.variables.get(dim)
    if variable is None or variable.dims != (dim,) or not length or not variable.size:
        return None
    new = variable.to_index()
    if not _can_be_compared(new):
        return _repeated(new, read(new, True), dim)
    _refuse_missing(new, dim)
    old = read(new, False)
    new = _as_stored(new, old.dtype)
    if not (_can_be_compared(old) and _are_sorted(old)):
        return _repeated(new, read(new, True), dim)
    if _kind(old) != _kind(new):
        raise SpecError(
            f"the steps of the dataset along {dim!r} are {_kind(new)}, and those of the store are "
            f"{_kind(old)}, so that nothing tells whether they follow",
            field="append_dim",
            value=dim,
            remedy="give steps of the kind, and the calendar, that the store has",
        )
    both = old.append(new)
    # Of two steps that go down, only times cannot be meant.
    if _are_sorted(both) and not (len(old) == 1 and _are_times(both) and new[0] < old[0]):
        return None
    n = len(new)
    are_last = n <= length and bool(read(new, True)[length - n :].equals(new))
    error = SpecError(
        f"the steps of the dataset along {dim!r} go from {new[0]} to {new[-1]}, and those of the "
        f"store end at {old[-1]}, so that they would go back or repeat",
        field="append_dim",
        value=dim,
        remedy='append only steps that follow; write steps that are there with region="auto"',
    )
    return Overlap(length, n, are_last, error)


def _repeated(new: Index, old: Index, dim: str) -> Overlap | None:
    """What is wrong with steps in no order of which some are in the store; None if none is."""
    there = new[new.isin(old) & new.notna()]
    if not len(there) or not old.is_unique:
        return None
    error = SpecError(
        f"{len(there)} of the {len(new)} steps of the dataset along {dim!r} are in the store, such "
        f"as {there.tolist()[0]!r}",
        field="append_dim",
        value=dim,
        remedy='append only other steps; write steps that are there with region="auto"',
    )
    are_last = bool(old[len(old) - len(new) :].equals(new))
    return Overlap(len(old), len(new), are_last, error)


def _refuse_missing(steps: Index, dim: str) -> None:
    """Refuse steps of which one is NaT or NaN, since nothing tells where it belongs."""
    positions = steps.isna().nonzero()[0]
    if len(positions):
        what = "time" if _are_times(steps) else "value"
        raise SpecError(
            f"the coordinate {dim!r} of the dataset has a missing {what} at position "
            f"{positions[0]}, so that nothing tells whether its steps follow those of the store",
            field="append_dim",
            value=dim,
            remedy=f"give it a {what}, or leave such steps out: "
            f"ds.isel({{{dim!r}: ds[{dim!r}].notnull().values}})",
        )


def _as_stored(steps: Index, dtype: Any) -> Index:
    """Numbers as a store of another dtype has them."""
    if steps.dtype == dtype or steps.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        return steps
    values = steps.to_numpy()
    if steps.dtype.kind == "f" and dtype.kind in "iu":
        values = values.round()
    return type(steps)(values.astype(dtype))


def _kind(steps: Index) -> str:
    """What steps that can be compared are."""
    calendar = getattr(steps, "calendar", None)  # of cftime
    if _are_times(steps):
        is_usual = calendar in (None, "standard", "gregorian", "proleptic_gregorian")
        return "times" if is_usual else f"times of the calendar {calendar}"
    return "durations" if steps.dtype.kind == "m" else "numbers"


def _are_times(steps: Index) -> bool:
    import xarray

    return steps.dtype.kind == "M" or isinstance(steps, xarray.CFTimeIndex)


def _can_be_compared(steps: Index) -> bool:
    """Whether steps are numbers or times, so that one is before another."""
    import xarray

    return steps.dtype.kind in "iufmM" or isinstance(steps, xarray.CFTimeIndex)


def _are_sorted(steps: Index) -> bool:
    """Whether steps that can be compared only go up, or only go down."""
    is_sorted = steps.is_monotonic_increasing or steps.is_monotonic_decreasing
    return bool(is_sorted and steps.is_unique)
