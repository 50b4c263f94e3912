"""Functions of other libraries that are replaced for some calls, until they are put back."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

Instead = Callable[[], Any] | None
"""What to call in place of the library's function; None if that makes the call."""

Replacement = tuple[tuple[Any, ...], str, Callable[[Mapping[str, Any], Mapping[str, Any]], Instead]]
"""Modules or classes that have a function, its name, and what decides about its calls."""

_LOCK = threading.Lock()


class Patch:
    """A patch of a library; all patches of one class replace the same functions."""

    _live: ClassVar[set[Patch]]
    # For each owner and name: the function of the library, and the one that replaces it.
    _replaced: ClassVar[dict[tuple[Any, str], tuple[Callable[..., Any], Callable[..., Any]]]]

    def __init_subclass__(cls) -> None:
        cls._live, cls._replaced = set(), {}

    def __init__(self) -> None:
        with _LOCK:
            if not self._live:
                self._install()
            self._live.add(self)

    @classmethod
    def replacements(cls) -> Iterator[Replacement]:
        """What is replaced by what."""
        raise NotImplementedError

    def restore(self) -> None:
        """Take the patch back. To do so twice changes nothing."""
        with _LOCK:
            if self in self._live:
                self._live.remove(self)
                if not self._live:
                    self._uninstall()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()

    @classmethod
    def _install(cls) -> None:
        for owners, name, instead in cls.replacements():
            ours = cls._in_place_of(getattr(owners[0], name), instead)
            for owner in owners:
                cls._replaced[owner, name] = (getattr(owner, name), ours)
                setattr(owner, name, ours)

    @classmethod
    def _uninstall(cls) -> None:
        """Put the functions back, unless somebody else has replaced them meanwhile."""
        for (owner, name), (original, ours) in cls._replaced.items():
            if getattr(owner, name) is ours:
                setattr(owner, name, original)
        cls._replaced.clear()

    @classmethod
    def _in_place_of(cls, original: Callable[..., Any], instead: Callable[..., Instead]) -> Any:
        """A function that makes some calls, and leaves the others to the library."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def patched(*arguments: Any, **keywords: Any) -> Any:
            if not cls._live:  # others may still hold this function when the patch was taken back
                return original(*arguments, **keywords)
            write = instead(*named_arguments(signature, arguments, keywords))
            return original(*arguments, **keywords) if write is None else write()

        return patched


def named_arguments(
    signature: inspect.Signature, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Arguments of a call by the names that the installed version has, and all others."""
    given = dict(signature.bind(*arguments, **keywords).arguments)
    others: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            others = given.pop(name, {})
    return given, others
