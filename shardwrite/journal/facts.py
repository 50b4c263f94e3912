"""Facts about a run in ``plan.json``, and the checks that they pass before they are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crc32c import crc32c

from shardwrite.stores import DURABILITIES, parse_json

__all__ = ["check_region", "parse_facts", "sealed"]

_SEAL = "crc32c"
_LARGEST = 2**63


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Add a crc32c of the facts to the facts."""
    return {**facts, _SEAL: _checksum(facts)}


def _checksum(facts: Mapping[str, Any]) -> int:
    return crc32c(
        json.dumps(
            {name: value for name, value in facts.items() if name != _SEAL}, sort_keys=True
        ).encode()
    )


def parse_facts(data: bytes, *, is_update: bool) -> dict[str, Any]:
    """Parse and check the content of a ``plan.json``.

    Parameters
    ----------
    data : bytes
        Content of the file. A file of an older version has no checksum, and is accepted.
    is_update : bool
        Whether the file lies in a directory for an update of an array.

    Raises
    ------
    ValueError
        If the file is torn, does not match its checksum, or holds facts that no run has.
    """
    facts = parse_json(data)
    if not isinstance(facts, dict):
        raise ValueError("it is no object")  # noqa: TRY004 (the file is wrong, not its type)
    if _SEAL in facts and facts[_SEAL] != _checksum(facts):
        raise ValueError("it does not match its checksum")
    run, identity = facts.get("run"), facts.get("identity")
    if not (
        isinstance(run, str)
        and run.isalnum()
        and isinstance(facts.get("digest"), str)
        and isinstance(identity, dict)
    ):
        raise ValueError("it does not name its run")
    if facts.get("mode") not in ("w-", "w", "r+") or facts.get("durability") not in DURABILITIES:
        raise ValueError("it does not say how it writes")
    if not isinstance(facts.get("replaces"), bool) or (facts["replaces"] and facts["mode"] == "r+"):
        raise ValueError("it does not say what it replaces")
    if (facts["mode"] == "r+") != (identity.get("mode") == "r+") or (
        is_update and facts["mode"] != "r+"
    ):
        raise ValueError("it says in two ways how it writes")
    _check_window(facts.get("shards_from"), is_needed=is_update)
    if is_update or "region" in identity:
        check_region(identity.get("region"))
    return facts


def _check_window(window: Any, *, is_needed: bool) -> None:
    """Refuse a window that is not the position of a first shard and a number of shards per axis."""
    if window is None and not is_needed:
        return
    if (
        not isinstance(window, list)
        or len(window) != 2
        or not all(_are_sizes(corner) for corner in window)
    ):
        raise ValueError("it does not say which shards it writes")
    if len(window[0]) != len(window[1]):
        raise ValueError("its shards have no place")


def check_region(region: Any) -> None:
    """Refuse a region that is not a list of ``[start, stop]``, one for each axis, in elements.

    Raises
    ------
    ValueError
        If it is not such a list, or a start is greater than its stop.
    """
    if not isinstance(region, list) or not all(
        _are_sizes(pair) and len(pair) == 2 and pair[0] <= pair[1] for pair in region
    ):
        raise ValueError("it does not say which region it writes")


def _are_sizes(found: Any) -> bool:
    """Whether a value is a list of integers from 0 to 2**63 - 1."""
    return isinstance(found, list) and all(type(n) is int and 0 <= n < _LARGEST for n in found)
