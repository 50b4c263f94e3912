"""The record of a conversion in place, ``record.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from shardwrite.stores import parse_json


@dataclass(frozen=True, slots=True)
class Record:
    """What a conversion in place was begun with."""

    first: str  # token of the process that began it
    leaf: str  # name of the tree
    old: int  # inode number of the old tree
    layout: Mapping[str, str]  # digest of what each array becomes, by the path of the array

    def to_json(self) -> bytes:
        """The record as JSON text."""
        return json.dumps(
            {
                "version": 1,
                "first": self.first,
                "leaf": self.leaf,
                "old": self.old,
                "layout": dict(self.layout),
            }
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Record:
        """Parse a record."""
        found = parse_json(data)
        if not isinstance(found, dict) or found.get("version") != 1:
            raise ValueError("no record of a version that is known here")
        first, leaf, old, layout = (found.get(n) for n in ("first", "leaf", "old", "layout"))
        if not (
            isinstance(first, str)
            and isinstance(leaf, str)
            and isinstance(old, int)
            and isinstance(layout, dict)
        ):
            raise ValueError("it is not whole")  # noqa: TRY004 (of the file)
        return cls(first, leaf, old, {str(name): str(seal) for name, seal in layout.items()})
