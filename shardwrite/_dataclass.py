"""Dataclasses whose methods are made when they are first used.

The standard library compiles six methods for each frozen dataclass, which takes half a millisecond.
A first write imports 144 of them, and calls few of their methods. Here all of them share what tells
them apart by their fields alone, and ``__init__`` is compiled by the first instance. Type checkers
see the standard decorator.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_PUT = object.__setattr__


def _dataclass(
    cls: type | None = None, *, frozen: bool = False, init: bool = True, **how: Any
) -> Any:
    """`dataclasses.dataclass`, which does the work for those that are not frozen."""
    if cls is None:
        return lambda cls: _dataclass(cls, frozen=frozen, init=init, **how)
    if not frozen:
        return dataclasses.dataclass(init=init, **how)(cls)
    own = dict(vars(cls))
    shared: dict[str, Callable[..., object]] = {
        "__setattr__": _set,
        "__delattr__": _delete,
    }
    if how.pop("repr", True):
        shared["__repr__"] = _repr
    if how.pop("eq", True):
        shared["__eq__"] = _equal
        if own.get("__hash__") is None:
            own.pop("__hash__", None)
            shared["__hash__"] = _hash
    if how.get("slots"):
        shared |= {"__getstate__": _state, "__setstate__": _restore}
    above = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
    how["frozen"] = any(params.frozen for params in above if params is not None)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **how)(cls)
    made.__dataclass_params__.frozen = True  # for standard ones that come from it
    for name, method in shared.items():
        if name not in own:
            setattr(made, name, method)
    if init and "__init__" not in own:
        made.__init__ = _to_be_compiled(made)
        made.__signature__ = _Signature(made)
    return made


class _Signature:
    """The signature of a class, for whoever asks before the first instance is made."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        # A class below may have an `__init__` of its own, and an instance a `__call__`.
        if instance is not None or owner is not self._cls:
            raise AttributeError("__signature__")
        init = inspect.signature(_compiled(owner))
        return init.replace(parameters=[*init.parameters.values()][1:])


def _to_be_compiled(cls: type) -> Callable[..., None]:
    """An ``__init__`` that replaces itself when the first instance is made."""

    def __init__(self: Any, *args: Any, **values: Any) -> None:  # noqa: N807
        compiled = _compiled(cls)
        if vars(cls)["__init__"] is __init__:  # nobody has wrapped it
            cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, *args, **values)

    return __init__


@cache
def _compiled(cls: Any) -> Callable[..., None]:
    """The ``__init__`` of a class, from its fields."""
    known: dict[str, object] = {"_put": _PUT, "_missing": dataclasses.MISSING}
    positional: list[str] = []
    keywords: list[str] = []
    body: list[str] = []
    for field in dataclasses.fields(cls):
        name = argument = value = field.name
        default = f"_default_{name}"
        if field.default_factory is not dataclasses.MISSING:
            known[default], argument = field.default_factory, f"{name}=_missing"
            value = f"{default}() if {name} is _missing else {name}"
            default = f"{default}()"
        elif field.default is not dataclasses.MISSING:
            known[default], argument = field.default, f"{name}={default}"
        elif not field.init:
            continue
        if field.init:
            (keywords if field.kw_only else positional).append(argument)
        body.append(f"_put(self, {name!r}, {value if field.init else default})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ["self", *positional, *(["*", *keywords] if keywords else [])]
    lines = [
        f"  def __init__({', '.join(arguments)}):",
        *(f"   {line}" for line in body or ["pass"]),
    ]
    text = "\n".join([f"def make({', '.join(known)}):", *lines, "  return __init__"])
    outer: dict[str, Callable[..., Any]] = {}
    exec(text, vars(sys.modules[cls.__module__]), outer)  # noqa: S102 (its own text)
    init = outer["make"](**known)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in dataclasses.fields(cls) if f.init}
    return init  # type: ignore[no-any-return]


def _values_of(names: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


@cache
def _compared(cls: type) -> Callable[[Any], Any]:
    return _values_of(tuple(field.name for field in dataclasses.fields(cls) if field.compare))


@cache
def _hashed(cls: type) -> Callable[[Any], Any]:
    fields = dataclasses.fields(cls)
    return _values_of(tuple(f.name for f in fields if (f.compare if f.hash is None else f.hash)))


def _equal(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    cls: Any = self.__class__
    values = _compared(cls)
    return values(self) == values(other)


def _hash(self: Any) -> int:
    cls: Any = self.__class__
    return hash(_hashed(cls)(self))


def _repr(self: Any) -> str:
    values = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _check_free(self: Any, name: str, doing: str) -> None:
    """Refuse a change of a field, and any change of what is a dataclass itself."""
    cls = type(self)
    if "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot {doing} field {name!r}")


def _set(self: Any, name: str, value: object) -> None:
    _check_free(self, name, "assign to")
    _PUT(self, name, value)


def _delete(self: Any, name: str) -> None:
    _check_free(self, name, "delete")
    object.__delattr__(self, name)


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        _PUT(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass
