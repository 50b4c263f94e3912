"""Extension of griffe: references of docstrings, such as ``:func:`plan` ``, become links."""

from __future__ import annotations

import inspect
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


def _made() -> dict[str, Any]:
    """Public functions, methods and classes that take fields as arguments, by their paths."""
    made = {}
    for name in shardwrite.__all__:
        public = getattr(shardwrite, name)
        members = vars(public) if isinstance(public, type) else {}
        own = {f"{path_of(name)}.{member}": value for member, value in members.items()}
        made |= {path: call for path, call in own.items() if hasattr(call, "__signature__")}
        if hasattr(public, "__signature__") or hasattr(members.get("__init__"), "__signature__"):
            made[path_of(name)] = public
    return made


def _parameters(function: Any) -> griffe.Parameters:
    return griffe.Parameters(
        *(
            griffe.Parameter(
                one.name,
                annotation=str(one.annotation),
                kind=griffe.ParameterKind[one.kind.name.lower()],
                default=None if one.default is one.empty else repr(one.default),
            )
            for one in inspect.signature(function).parameters.values()
        )
    )


class Roles(griffe.Extension):
    """Replaces roles by links of Markdown, where the name is public, and by code elsewhere.

    Functions that take their keywords from groups get the parameters that they have when they run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made = _made()

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """See :meth:`griffe.Extension.on_object`."""
        made = self._made.get(obj.path)
        if made is not None and isinstance(obj, griffe.Function):
            obj.parameters = _parameters(made)
        if made is not None and made.__doc__ is not None:
            obj.docstring = griffe.Docstring(made.__doc__, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(_link, obj.docstring.value)
