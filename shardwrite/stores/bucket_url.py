"""Opening of a bucket by its URL, with options of obstore.

What the options leave out, obstore reads from the environment of each process: for S3
``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` and so on. The options travel with the tasks of a run.
Nothing of either is written to a file.

A function of the user can give credentials, and give them anew before they expire. It is given
itself, or by its name, such as ``"lab.keys:current"``. A name can stand in a configuration and in a
script. Each process, such as a worker or a job, imports the function and asks it for credentials of
its own, so that none are passed on.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import operator
import re
import threading
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from shardwrite._dataclass import dataclass
from shardwrite.config.table import STORAGE, value_of
from shardwrite.errors import SpecError, StoreError, not_installed
from shardwrite.stores.bucket_kinds import KINDS, NOTHING, RETRIES, given_address
from shardwrite.stores.looking import BUCKET_KINDS, BUCKET_URL

if TYPE_CHECKING:
    from shardwrite.stores.bucket import BucketStore

# ---- Credentials by a function of the user


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

_providers_lock = threading.Lock()


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
            function = _imported(self._given) if isinstance(self._given, str) else self._given
            if isinstance(function, type):
                function = self._guarded(function)
            call = getattr(function, "__call__", function)  # noqa: B004 (which may be a coroutine function)
            if not callable(function):
                raise _refused_credentials("is no function", self.name)
            if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
                raise _refused_credentials(
                    "is asynchronous, and requests wait for it in threads", self.name
                )
            self._found = function
        return self._found

    def __call__(self) -> dict[str, object]:
        """Credentials that have not expired."""
        with self._turn:
            now = _now()
            if self._kept is None or (self._renew_at is not None and now >= self._renew_at):
                self._kept, self._renew_at = None, None
                fresh = self._checked(self._guarded(self.function), now)
                if isinstance(until := fresh["expires_at"], datetime):
                    self._renew_at = until - min(_AHEAD, (until - now) / 2)
                self._kept = fresh
            return dict(self._kept)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """What a call gives. The text of its error may hold credentials, so it is not told."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told by its kind)
            raise self._failed(f"has raised {type(error).__name__}") from None

    def _checked(self, given: Any, now: datetime) -> dict[str, object]:
        """What the function has given, if a store of this kind takes it and it has not expired."""
        if not isinstance(given, Mapping):
            raise self._failed("gives no mapping")
        needed = _NEEDED[self._kind]
        if not any(names <= given.keys() for names in needed):
            names = " or ".join(" and ".join(sorted(names)) for names in needed)
            raise self._failed(f"does not give {names}")
        credentials: dict[str, object] = {"expires_at": None, **given}
        until = credentials["expires_at"]
        if until is None:
            return credentials
        if not isinstance(until, datetime) or until.tzinfo is None:
            raise self._failed("gives an expires_at that is no time with a time zone")
        if until <= now:
            raise self._failed("gives credentials that have expired already")
        return credentials

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
            raise _refused_credentials("is not the name of a function", type(given).__name__)
    elif not callable(given):
        raise _refused_credentials("is no function", type(given).__name__)
    with _providers_lock:
        try:
            credentials = _shared.get((given, kind))
        except TypeError:  # it cannot be a key
            return Credentials(given, kind)
        if credentials is None:
            credentials = _shared[given, kind] = Credentials(given, kind)
        return credentials


def _imported(name: str) -> Any:
    """The object that a name stands for."""
    module, _, attribute = name.partition(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told by its kind)
        # What a module raises may hold anything.
        reason = str(error) if isinstance(error, ImportError | AttributeError) else "it fails"
        raise _refused_credentials(
            f"cannot be imported: {type(error).__name__}: {reason}", name
        ) from None


def _refused_credentials(why: str, value: str) -> SpecError:
    return SpecError(
        why,
        field="credential_provider",
        value=value,
        remedy="give an ordinary function without arguments, or its name as 'package.module:name', "
        "which each process of the run can import (set PYTHONPATH)",
    )


# ---- The URL and its options


_ACCOUNT = re.compile(r"([^@:]+)@([^.@:]+)\.(?:dfs|blob)\.(?:core\.windows\.net|fabric\.[a-z.]+)")
# Words of fsspec for options of obstore.
_WORDS = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "region_name": "region",
}

_OF_REQUESTS = {"client_options", "retry_config"}  # options that every kind of store has

_CLIENT = {"connect_timeout": "5s", "timeout": "600s"}
# For the first question to a service, which may be the wrong one.
_FEW_RETRIES = {**RETRIES, "max_retries": 2, "retry_timeout": timedelta(seconds=10)}

_IMPATIENT = {"connect_timeout": "2s", "timeout": "10s"}

_reached: set[str] = set()

_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Address:
    """What a URL says: kind of store, bucket, path in it, account of Azure, and scheme."""

    kind: str
    bucket: str
    prefix: str
    account: str = ""
    scheme: str = ""

    @property
    def is_web(self) -> bool:
        """Whether it is that of a web server, whose name is taken for that of the bucket."""
        return KINDS[self.kind].is_web

    @property
    def url(self) -> str:
        """URL of what lies on a web server."""
        return f"{self.scheme}://{self.bucket}/{quote(self.prefix)}"


def open_bucket(
    url: str, options: Mapping[str, Any] = NOTHING, *, is_read: bool = False
) -> BucketStore:
    """Open the store at a URL, after a first question to the service.

    - `url`: URL such as ``s3://bucket/x.zarr``. It holds no credentials.
    - `options`: options of obstore for this kind of store, such as ``endpoint`` and ``region``;
      ``client_options``, ``retry_config`` and ``credential_provider`` as obstore takes them. The
      last one may also be the name of a function. The words of fsspec are known, too. Others are
      taken from the settings; for a web server, only those that every kind of store has.
    """
    from shardwrite.stores.bucket import opened  # which imports this module

    address = _parsed(url)
    known = _translated(value_of(STORAGE))
    if address.is_web:
        known = {name: known[name] for name in _OF_REQUESTS & known.keys()}
    config = known | _translated(options)
    store = opened(_client(address, config, RETRIES, _CLIENT), is_read=is_read)
    with _lock:
        is_new = store.token not in _reached
    if is_new:
        store.check_reachable(_client(address, config, _FEW_RETRIES, _IMPATIENT))
        with _lock:
            _reached.add(store.token)
    return store


def parent_of(url: str) -> tuple[str, str]:
    """URL of what an object lies in, and the name of the object there; empty for a bucket itself.

    Examples
    --------
    >>> parent_of("s3://bucket/a/scan%23.h5"), parent_of("s3://bucket")
    (('s3://bucket/a', 'scan#.h5'), ('s3://bucket', ''))
    """
    if not _parsed(url).prefix:
        return url, ""
    above, _, name = url.rstrip("/").rpartition("/")
    return above, unquote(name)


def _parsed(url: str) -> _Address:
    match = BUCKET_URL.match(url)
    if match is None or len(match[2]) != 2:
        remedy = "give it as text, such as 's3://bucket/x.zarr'; a path object loses a slash"
        raise SpecError("not the URL of a bucket", field="store", value=url, remedy=remedy)
    kind, bucket, prefix, account = BUCKET_KINDS[match[1].lower()], match[3], match[4], ""
    if kind == "AzureStore" and (names := _ACCOUNT.fullmatch(bucket)) is not None:
        bucket, account = names[1], names[2]
    is_web = KINDS[kind].is_web
    if "@" in bucket or (":" in bucket and not is_web):
        raise SpecError(
            "holds credentials, which would be seen in messages and logs",
            field="store",
            value=url,
            remedy="give them as default_headers in client_options of the setting "
            "shardwrite.storage, or of storage_options"
            if is_web
            else "set them in the environment, such as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or in storage_options",
        )
    parts = unquote(prefix.rstrip("/")).split("/")
    is_plain = parts == [""] or not {"", ".", ".."} & set(parts)
    if not bucket or not is_plain or "?" in url or "#" in url:
        raise SpecError(
            "not a bucket and a path in it",
            field="store",
            value=url,
            remedy="give for instance 's3://bucket/path/x.zarr', where %3F and %23 stand for ? "
            "and #; a signature after ? is not taken",
        )
    if any(c == "\\" or unicodedata.category(c) == "Cc" for c in "/".join(parts)):
        raise SpecError(
            "has a backslash or a control character, which services treat in different ways",
            field="store",
            value=url,
            remedy="give a path without it",
        )
    return _Address(kind, bucket, "/".join(parts), account, match[1].lower())


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the words of obstore."""
    flat = {**options, **options.get("client_kwargs", {})}
    flat.pop("client_kwargs", None)
    for name in flat:
        if not isinstance(name, str):
            raise _refused("has a name that is no text", [str(name)])
    return {_WORDS.get(name, name.replace("-", "_")): value for name, value in flat.items()}


def _client(
    address: _Address,
    given: Mapping[str, Any],
    retries: Mapping[str, Any],
    client: Mapping[str, Any],
) -> Any:
    """A store of obstore."""
    try:
        import obstore.store
        from obstore.exceptions import BaseError
    except ImportError:
        raise not_installed("obstore", "cloud", field="store", value=address.kind) from None
    config = dict(given)
    if address.account:
        config.setdefault("account_name", address.account)
    rest: dict[str, Any] = {
        "retry_config": {**retries, **_mapping(config, "retry_config")},
        "client_options": {**client, **_mapping(config, "client_options")},
    }
    if (provider := config.pop("credential_provider", None)) is not None:
        credentials = credentials_from(provider, address.kind)
        _ = credentials.function  # which is refused here, if it cannot be imported
        rest["credential_provider"] = credentials
    if "http://" in (f"{address.scheme}://", given_address(address.kind, config).lower()[:7]):
        rest["client_options"].setdefault("allow_http", True)
    flags = {name: value for name, value in config.items() if isinstance(value, bool)}
    config |= {name: str(value).lower() for name, value in flags.items()}
    try:
        make = getattr(obstore.store, address.kind)
        if address.is_web:
            return make.from_url(address.url, **config, **rest)
        return make(address.bucket, prefix=address.prefix or None, config=config, **rest)
    except (BaseError, TypeError, ValueError) as error:
        if "Account must be specified" in str(error):
            raise SpecError(
                "names no account of Azure",
                field="store",
                value=f"az://{address.bucket}",
                remedy="set AZURE_STORAGE_ACCOUNT_NAME, or account_name in storage_options, or "
                "give abfss://container@account.dfs.core.windows.net/path",
            ) from None
        # The text of the error could hold a value, which may be a credential.
        unknown = next((name for name in sorted(config) if f"'{name}'" in str(error)), "")
        reason = f"{type(error).__name__} of obstore"
        if unknown:
            reason = f"{unknown} is not known to obstore"
        raise _refused(reason, sorted(config)) from None


def _mapping(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.pop(name, {})
    if not isinstance(value, Mapping):
        raise _refused(f"{name} is no mapping", [name])
    return dict(value)


def _refused(why: str, names: list[str]) -> SpecError:
    return SpecError(
        why,
        field="storage_options",
        value=names,  # the values may be credentials
        remedy="give options of obstore's S3Store, GCSStore or AzureStore, such as endpoint, "
        "region, access_key_id and secret_access_key; for a web server, client_options (such as "
        "default_headers) and retry_config",
    )
