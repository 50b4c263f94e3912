"""Extension of griffe: references of docstrings, such as ``:func:`plan` ``, become links."""

from __future__ import annotations

import re
from typing import Any

import griffe

import shardwrite

_ROLE = re.compile(r":(?:func|class|meth|data|mod|exc|attr):`~?([\w.]+)`")


def path_of(name: str) -> str:
    """Where the code defines a public name; the site's anchors are these paths."""
    public = getattr(shardwrite, name)
    return f"{public.__module__}.{public.__qualname__}"


def _link(match: re.Match[str]) -> str:
    name = match[1].removeprefix("shardwrite.")
    return f"[`{name}`][{path_of(name)}]" if name in shardwrite.__all__ else f"`{name}`"


class Roles(griffe.Extension):
    """Replaces roles by links of Markdown, where the name is public, and by code elsewhere."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """See :meth:`griffe.Extension.on_object`."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(_link, obj.docstring.value)
