"""Credentials that a function of the user gives, and gives anew before they expire.

The function is given itself, or by its name, such as ``"lab.keys:current"``. A name can stand in a
configuration and in a script. Each process, such as a worker or a job, imports the function and
asks it for credentials of its own, so that none are passed on.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import operator
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

from shardwrite.errors import SpecError, StoreError

_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
# What is asked for again is so much younger than what expires, or half of its life.
_AHEAD = timedelta(seconds=60)
# Names of what a function must give, in one of these sets, by the class of obstore.
_NEEDED: dict[str, tuple[frozenset[str], ...]] = {
    "S3Store": (frozenset({"access_key_id", "secret_access_key"}),),
    "GCSStore": (frozenset({"token"}),),
    "AzureStore": tuple(map(frozenset, ({"access_key"}, {"sas_token"}, {"token"}))),
}
# Attributes that obstore looks for at its own providers.
_OF_OBSTORE = ("config", "prefix", "refresh_threshold")

_shared: WeakValueDictionary[tuple[object, str], Credentials] = WeakValueDictionary()
_lock = threading.Lock()


class Credentials:
    """What gives obstore its credentials; it is called for them.

    The last answer is kept in memory until one minute before it expires, or half of its life if
    that is less. Neither its representation nor its pickle holds credentials.

    - `given`: function without arguments, or its name. It returns a mapping with the credentials,
      in the words of obstore, and ``expires_at``: the time when they expire, with a time zone, or
      None. If it is a class, one object of it is made, and called.
    """

    def __init__(self, given: Callable[[], Any] | str, kind: str) -> None:
        self._given = given
        self._kind = kind
        self._found: Callable[[], Any] | None = None
        self._kept: dict[str, object] | None = None
        self._renew_at: datetime | None = None
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return credentials_from, (self._given, self._kind)

    def __repr__(self) -> str:
        return f"credentials by {self.name}"

    def __getattr__(self, name: str) -> object:
        if name in _OF_OBSTORE:
            return getattr(self.function, name)
        raise AttributeError(name)

    @property
    def name(self) -> str:
        """Name of the function."""
        given = self._given
        if isinstance(given, str):
            return given
        named = given if hasattr(given, "__qualname__") else type(given)
        return f"{named.__module__}:{named.__qualname__}"

    @property
    def function(self) -> Callable[[], Any]:
        """The function, which is imported when it is first needed."""
        if self._found is None:
            found = _imported(self._given) if isinstance(self._given, str) else self._given
            if isinstance(found, type):
                found = self._guarded(found)
            call = getattr(found, "__call__", found)  # noqa: B004 (which may be a coroutine function)
            if not callable(found):
                raise _refused("is no function", self.name)
            if inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(call):
                raise _refused("is asynchronous, and requests wait for it in threads", self.name)
            self._found = found
        return self._found

    def __call__(self) -> dict[str, object]:
        """Credentials that have not expired."""
        with self._turn:
            now = _now()
            if self._kept is None or (self._renew_at is not None and now >= self._renew_at):
                self._kept, self._renew_at = None, None
                found = self._checked(self._guarded(self.function), now)
                if isinstance(until := found["expires_at"], datetime):
                    self._renew_at = until - min(_AHEAD, (until - now) / 2)
                self._kept = found
            return dict(self._kept)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """What a call gives. The text of its error may hold credentials, so it is not told."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told by its kind)
            raise self._failed(f"has raised {type(error).__name__}") from None

    def _checked(self, given: Any, now: datetime) -> dict[str, object]:
        if not isinstance(given, Mapping):
            raise self._failed("gives no mapping")
        needed = _NEEDED[self._kind]
        if not any(names <= given.keys() for names in needed):
            names = " or ".join(" and ".join(sorted(names)) for names in needed)
            raise self._failed(f"does not give {names}")
        found: dict[str, object] = {"expires_at": None, **given}
        until = found["expires_at"]
        if until is None:
            return found
        if not isinstance(until, datetime) or until.tzinfo is None:
            raise self._failed("gives an expires_at that is no time with a time zone")
        if until <= now:
            raise self._failed("gives credentials that have expired already")
        return found

    def _failed(self, what: str) -> StoreError:
        return StoreError(f"credential_provider={self.name} {what}", errno=errno.EACCES)


def _now() -> datetime:
    return datetime.now(UTC)


def credentials_from(given: Any, kind: str) -> Credentials:
    """Credentials that a function gives, shared by all stores of a process with that function."""
    if isinstance(given, Credentials):
        return given
    if isinstance(given, str):
        if _NAME.fullmatch(given) is None:
            raise _refused("is not the name of a function", type(given).__name__)
    elif not callable(given):
        raise _refused("is no function", type(given).__name__)
    with _lock:
        try:
            found = _shared.get((given, kind))
        except TypeError:  # it cannot be a key
            return Credentials(given, kind)
        if found is None:
            found = _shared[given, kind] = Credentials(given, kind)
        return found


def _imported(name: str) -> Any:
    """The object that a name stands for."""
    module, _, attribute = name.partition(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told by its kind)
        # What a module raises may hold anything.
        why = str(error) if isinstance(error, ImportError | AttributeError) else "it fails"
        raise _refused(f"cannot be imported: {type(error).__name__}: {why}", name) from None


def _refused(why: str, value: str) -> SpecError:
    return SpecError(
        why,
        field="credential_provider",
        value=value,
        remedy="give an ordinary function without arguments, or its name as 'package.module:name', "
        "which each process of the run can import (set PYTHONPATH)",
    )
