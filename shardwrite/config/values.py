"""Values of settings.

A setting has the value that was decided for a run, or else the value in the configuration of dask.
This package knows nothing of dask: `use` is called with a function that reads its configuration.

Decisions are taken in the process that begins a run. `Decided` holds them, and travels with the
tasks, so that workers whose files and environment differ do the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwrite.config.table import SETTINGS, Setting
from shardwrite.errors import SpecError

T = TypeVar("T")
Look = Callable[[Setting[Any]], Any]
"""Function that gives the value of a setting in the configuration, not parsed."""

_TRAVELLING = tuple(setting for setting in SETTINGS if setting.travels)
_decided: ContextVar[Mapping[str, Any] | None] = ContextVar("shardwrite-decided", default=None)


def _defaults(setting: Setting[Any]) -> Any:
    return setting.default


def _no_source(setting: Setting[Any]) -> str:
    return setting.path


_look: list[tuple[Look, Callable[[Setting[Any]], str]]] = [(_defaults, _no_source)]


def use(look: Look, where: Callable[[Setting[Any]], str]) -> None:
    """Set the functions that read the configuration.

    - `look`: function that gives the value of a setting, not parsed.
    """
    _look[:] = [(look, where)]


def value_of(setting: Setting[T]) -> T:
    """Value of a setting."""
    decided = _decided.get()
    if decided is not None and setting.name in decided:
        found: T = decided[setting.name]
        return found
    look, _ = _look[-1]
    return parsed(setting, look(setting))


def parsed(setting: Setting[T], value: Any) -> T:
    """Check a value of a setting, and turn it into a value of its kind."""
    try:
        return setting.kind.parse(value)
    except (TypeError, ValueError):
        raise refused(setting, value) from None


def refused(setting: Setting[Any], value: Any, message: str = "", remedy: str = "") -> SpecError:
    """Error that refuses the value of a setting.

    - `message`, `remedy`: what is wrong, and what to do. By default, the value is of the wrong
      kind.
    """
    _, where = _look[-1]
    return SpecError(
        f"{message or 'not a valid value'} (set {where(setting)})",
        field=setting.path,
        value=type(value).__name__ if setting.is_secret else value,
        remedy=remedy or setting.kind.remedy,
    )


@dataclass(frozen=True, slots=True)
class Decided:
    """Values of the settings that travel with the tasks of a run."""

    values: tuple[tuple[str, Any], ...]  # name and value of each setting

    @contextlib.contextmanager
    def holds(self) -> Iterator[None]:
        """Use these values in this thread until the block ends."""
        token = _decided.set(dict(self.values))
        try:
            yield
        finally:
            _decided.reset(token)


def decide() -> Decided:
    """Values that hold here and now."""
    return Decided(tuple((setting.name, value_of(setting)) for setting in _TRAVELLING))
