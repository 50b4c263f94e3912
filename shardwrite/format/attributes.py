"""Attributes by which programs compute what stored values mean."""

from __future__ import annotations

from collections.abc import Mapping

_OF_VALUES = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    *("units", "calendar", "flag_values", "flag_masks", "flag_meanings"),
)
"""Attributes by which programs compute what a stored value means."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "scale_factor": (1,),
    "add_offset": (0,),
    "_Unsigned": ("false",),
    "calendar": ("standard", "gregorian"),
    "_FillValue": ("AAAAAAAA+H8=",),  # NaN, as xarray writes it
    "missing_value": ("NaN",),
}
"""Values of these attributes that say what programs assume without them."""


def changed_meaning(kept: Mapping[str, object], own: Mapping[str, object]) -> str | None:
    """Name of an attribute by which equal values mean different things; None if there is none."""
    for key in _OF_VALUES:
        pair = [attributes.get(key) for attributes in (kept, own)]
        first, second = (None if value in _NEUTRAL.get(key, ()) else value for value in pair)
        if first != second:
            return key
    return None
