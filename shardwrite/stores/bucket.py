"""Object stores through the library obstore: S3, GCS, Azure, web servers, memory, and files.

Each object is put in one request, so it is visible whole or not at all. Where the service can, an
object is replaced only if it is still the version that was read. A request whose answer was lost is
not assumed to have failed: what stands there is compared with what was to be put.

What is larger than one request takes is refused before a run. obstore could upload it in parts, but
has no conditions for that. The last request would replace whatever stands there.

*Errors.* The texts of obstore hold addresses and answers of the service, and those may hold
signatures and keys. So only the code and the message of an answer are taken over.

*Reading.* The first request for an object takes its last bytes. The answer says how large it is and
which version, and the bytes hold the index of a shard, so one more request reads an inner chunk.
Azure cannot be asked for last bytes. There, the first request takes the first bytes, which are all
of a small object, and the second one the last bytes. All later requests ask for the same version:
what was replaced meanwhile is an error. A simple web server gives whole objects only, and may tell
no version. Then nothing is kept after a call.

*Requests.* obstore makes most requests again by itself. It does not do so if a connection breaks,
or an answer is late, and the request has a condition, as nearly all puts have: it may have been
done. Here it is made again. If it had been done, the service refuses the second one, and the caller
looks at what stands there.

*Scratch.* An object that waits on the disk of this machine lies in a file without a name, which is
gone when the process ends, however it ends. It is put from a memory map of the file. The system can
drop the pages of a map at any time, so they take no memory of the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shardwrite._dataclass import dataclass
from shardwrite.config.table import READ_REQUEST, VIA, value_of
from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.base import (
    COPIED_NBYTES,
    Capability,
    ObjectReader,
    changed_meanwhile,
    check_key,
    require,
)
from shardwrite.stores.bucket_kinds import (
    CONDITIONS,
    KINDS,
    NOTHING,
    RETRIES,
    Probed,
    given_address,
)
from shardwrite.stores.looking import as_store_error, pwrite_all, writev_all
from shardwrite.stores.removal import TEMPORARY_SUFFIX
from shardwrite.stores.whole import COPIED_AT_ONCE_NBYTES, WholeStore, WholeTransaction, WholeWriter

# ---- Errors, in words that say what to set, and without credentials


_STATUS = re.compile(r"(?:status code|error response): (\d{3}[^:\n]*)")

# None of: missing (404, 410), too slow (408), too often (429).
_REFUSED = r"(?:status code|error response): (?:4(?!04|08|10|29)\d\d|501)|Content-Length"

_CODE = re.compile(r"<Code>([\w.-]{1,80})</Code>")

_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")

_TRANSPORT = re.compile(r"(?:HTTP error|Generic \w+ error): ([A-Za-z' -]{1,80})")

_MISSING = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
# Parts of a text that hold addresses and names of objects. In these, a number is no status code.
_ADDRESS = re.compile(r"https?:[^\s,;\"'<>()]*")
# Without keys, obstore asks these addresses for some, which only machines in a cloud have.
_METADATA = ("//169.254.", "//[fd00:ec2:", "//metadata.google.internal")
# What `bucket_credentials` says, which obstore passes on among other things.
_PROVIDER = re.compile(r"credential_provider=[\w.:<>]+ [\w ]{1,120}")

_NAMES = re.compile(
    r'path: "(?:[^"\\]|\\.)*"'
    r"|(?<=at location )(?:.*?(?=: Error performing)|.*)"
    r"|(?<=for path )(?:.*?(?=: Error performing)|.*)"
    r"|<(Key|Resource|BucketName|RequestId|HostId)>.*?</\1>",
)


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A kind of trouble: how it is recognised, and what it means."""

    pattern: str
    number: int
    meaning: str


_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN)",
    "http": "default_headers in client_options of the setting shardwrite.storage",
}

_ADDRESSES = {
    "s3": "AWS_ENDPOINT_URL, or endpoint in storage_options",
    "gs": "GOOGLE_BASE_URL, or base_url in storage_options",
    "az": "AZURE_STORAGE_ENDPOINT, or endpoint in storage_options",
    "http": "the URL",
}
_FORBIDDEN = {
    "http": "the server forbids it. Some do so where a file is missing. If it wants to know who "
    "you are, set {keys}",
}
_NO_RIGHT = (
    "the keys have no right to do that. They need the rights to read, list, write and delete "
    "objects. Set {keys}, or storage_options"
)
# A meaning may name the variables of its service for keys and address.
_NONE_FOUND = (
    "no credentials were found, or they are not valid. Set {keys}, or storage_options, or "
    "skip_signature for a bucket that is public"
)

_TROUBLES = (
    _Trouble(
        "|".join(_MISSING),
        errno.ENXIO,
        "the bucket does not exist there. Make it, or correct its name. If the service has an "
        "address of its own, set {address}",
    ),
    _Trouble(
        r"RequestTimeTooSkewed",
        errno.EACCES,
        "the clock of this machine is wrong by many minutes. Set it",
    ),
    _Trouble(
        r"ExpiredToken|TokenRefreshRequired|InvalidToken",
        errno.EACCES,
        "the session token has expired or is not valid. Renew AWS_SESSION_TOKEN and the keys that "
        "belong to it",
    ),
    _Trouble(
        r"without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"
        r"|incorrectly configured region",
        errno.ENXIO,
        "the bucket lies in another region. Set AWS_REGION, or region in storage_options",
    ),
    _Trouble(
        r"token request|metadata endpoint|instance metadata|CredentialsError|IMDS",
        errno.EACCES,
        _NONE_FOUND,
    ),
    _Trouble(
        r"InvalidBucketName|InvalidResourceName",
        errno.EINVAL,
        "no bucket can have that name. It has 3 to 63 lowercase letters, digits, dots and hyphens",
    ),
    _Trouble(
        r"InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed|failed to authenticate"
        r"|\b401\b",
        errno.EACCES,
        "the service does not know the keys. Set {keys}, or storage_options",
    ),
    _Trouble(
        r"\b403\b|AccessDenied",
        errno.EACCES,
        "{forbidden}",
    ),
    _Trouble(
        r"EntityTooLarge",
        errno.EFBIG,
        "the object is too large for one request. Give smaller shards",
    ),
    _Trouble(
        r"credential",
        errno.EACCES,
        _NONE_FOUND,
    ),
    _Trouble(
        r"Connect\b|ConnectError|dns error|connection refused|builder error",
        errno.EIO,
        "the service cannot be reached. Check the network, and {address}",
    ),
    # Every text of obstore names its retry_timeout, too.
    _Trouble(
        r"(?<!retry_)[Tt]imed? ?[Oo]ut",
        errno.ETIMEDOUT,
        "the service did not answer in time. If large shards take longer, set timeout among the "
        "client_options in storage_options, such as 3600s",
    ),
    _Trouble(
        r"UnexpectedRange|Requested \d+\.\.",
        errno.EIO,
        "the server gives other bytes than those that it was asked for. Copy the files to this "
        "machine",
    ),
    _Trouble(
        r"Content-Length|content-length|Content-Range|content-range|CONTENT_RANGE",
        errno.EIO,
        "the server does not say how many bytes it gives, or compresses them. Copy the files to "
        "this machine",
    ),
    _Trouble(
        r"\b(429|50[0234])\b|SlowDown",
        errno.EIO,
        "the service is overloaded or out of order, and several attempts were made",
    ),
)


def as_bucket_error(error: BaseException, doing: str, name: str, where: str) -> StoreError:
    """Error that says what went wrong in a bucket, and what to do.

    - `where`: URL of the store, without credentials.
    """
    text = _without_names(error)
    problem = f"cannot {doing} {name!r} in {where}" if name else f"cannot {doing} {where}"
    if (provider := _PROVIDER.search(text)) is not None:
        return StoreError(f"{problem}: {provider[0].strip()}", key=name, errno=errno.EACCES)
    for trouble in _TROUBLES:
        if re.search(trouble.pattern, text):
            kind = where.partition(":")[0].replace("https", "http")
            kind = kind if kind in _KEYS else "s3"
            meaning = trouble.meaning.replace("{forbidden}", _FORBIDDEN.get(kind, _NO_RIGHT))
            meaning = meaning.format(keys=_KEYS[kind], address=_ADDRESSES[kind])
            message = f"{problem}: {meaning} ({_answer(error, text)})"
            return StoreError(message, key=name, errno=trouble.number)
    return StoreError(f"{problem}: {_answer(error, text)}", key=name, errno=errno.EIO)


def is_missing_bucket(error: BaseException) -> bool:
    """Whether an object is missing because there is no bucket."""
    text = _without_names(error)
    return any(word in text for word in _MISSING)


def is_refused_condition(error: BaseException) -> bool:
    """Whether a service refused to put an object because another one stands there."""
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    return isinstance(error, AlreadyExistsError | PreconditionError)


def is_method_refused(error: BaseException) -> bool:
    """Whether a web server may refuse the method of a request, or leaves out the size.

    That does not say whether there is an object, although obstore says so for status 405.
    """
    return re.search(_REFUSED, _without_names(error)) is not None


def is_unanswered(error: BaseException) -> bool:
    """Whether a request got no answer, and obstore did not make it again."""
    text = _without_names(error).partition("Debug source")[0]
    return "HTTP error" in text and not re.search(r"after \d+ retries|status code", text)


def _without_names(error: BaseException) -> str:
    """Text of an error, without addresses and names, which a user may have chosen."""

    def named(address: re.Match[str]) -> str:
        is_metadata = any(host in address[0] for host in _METADATA)
        return "instance metadata" if is_metadata else "http:"

    return _NAMES.sub("", _ADDRESS.sub(named, str(error)))


def _answer(error: BaseException, text: str) -> str:
    """What the service or the network said, without addresses and keys."""
    matches = [pattern.search(text) for pattern in (_STATUS, _CODE, _MESSAGE)]
    parts = [match[1].strip() for match in matches if match is not None]
    if not parts and (match := _TRANSPORT.search(text)) is not None:
        parts = [match[1].strip()]
    return ", ".join([type(error).__name__, *parts])


# ---- Requests, made again if no answer came, and never in the child of a fork


T = TypeVar("T")


def raised() -> tuple[type[Exception], ...]:
    """What obstore raises: errors of its own, and some of Python's."""
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError, RuntimeError


def made_again(store: Any, request: Callable[[], T]) -> T:
    """Make a request, and make it again as long as no answer comes.

    - `store`: the store, whose ``retry_config`` says how often, and after which pauses.
    """
    pauses = _pauses(getattr(store, "retry_config", None) or {})
    while True:
        try:
            return request()
        except raised() as error:
            pause = next(pauses, None) if is_unanswered(error) else None
            if pause is None:
                raise
        time.sleep(pause)


def _pauses(config: Mapping[str, Any]) -> Iterator[float]:
    """Pauses before further attempts, in seconds, until they are too many or take too long."""
    how = {**RETRIES, **config}  # a user may have opened the store
    backoff = {**RETRIES["backoff"], **(config.get("backoff") or {})}
    until = time.monotonic() + how["retry_timeout"].total_seconds()
    first, most = (backoff[name].total_seconds() for name in ("init_backoff", "max_backoff"))
    for number in range(int(how["max_retries"])):
        pause = min(most, first * float(backoff["base"]) ** number)
        # The pause is random, so that many workers do not come back at once.
        pause *= random.uniform(0.5, 1)  # noqa: S311
        if time.monotonic() + pause > until:
            return
        yield pause


_used_in: list[int] = []


def check_process() -> None:
    """Refuse the child of a fork, in which obstore would wait for threads that are not there."""
    if not _used_in:
        _used_in.append(os.getpid())
    elif _used_in[0] != os.getpid():
        raise StoreError(
            "a process that was forked cannot use the connections to a bucket of its parent; start "
            'processes with "spawn", as dask does',
            errno=errno.ENOTSUP,
        )


# ---- Reading of objects by ranges


_FIRST_TAIL_NBYTES, _MOST_TAIL_NBYTES = 2**16, 2**22
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress"})

Version = tuple[int, str | None, str | None]
"""Size of an object in bytes, its ETag, and the version or generation that its service names."""


def version_from(facts: Any) -> Version:
    """Version of an object, from what obstore tells of it."""
    tag, version = facts["e_tag"], facts["version"]
    return int(facts["size"]), tag, version if tag or version else str(facts["last_modified"])


@dataclass(frozen=True, slots=True)
class Seen:
    """What one request has told of an object."""

    version: Version  # size, ETag and version
    data: Any = b""  # some of its bytes
    start: int = 0  # where they lie


class Tails:
    """How many bytes are read from the ends of objects, for all parts of a store."""

    def __init__(self) -> None:
        self.nbytes = _FIRST_TAIL_NBYTES

    def wanted(self, nbytes: int) -> None:
        """Note that a reader needed the last `nbytes` bytes, so that the next object gives them."""
        self.nbytes = max(self.nbytes, min(nbytes, _MOST_TAIL_NBYTES))


def is_strong(version: Version) -> bool:
    """Whether a version has an ETag that differs wherever bytes differ, and requests can name it.

    Other ETags, and times, which may be whole seconds, are only compared.
    """
    tag = version[1]
    return bool(tag) and not str(tag).startswith("W/")


def _short(name: str, n_answered: int, n_wanted: int) -> StoreError:
    message = f"{n_answered} of {n_wanted} bytes of {name!r} were answered"
    return StoreError(message, key=name, errno=errno.EIO)


def _check_not_compressed(name: str, attributes: Mapping[str, Any]) -> None:
    """Refuse an object whose bytes stand for others, which clients of the web make of them."""
    encoding = attributes.get("Content-Encoding", "")
    if encoding in _COMPRESSED:
        raise StoreError(
            f"cannot read {name!r}: it is given in another form (Content-Encoding: {encoding}). "
            "Have the server or bucket give it as it is, or copy it to this machine",
            key=name,
            errno=errno.EOPNOTSUPP,
        )


Get = Callable[[str, int, int, Version], bytes | None]
"""Reads a range of one version of an object; None if that version is not there any more."""
Look = Callable[[str], Version | None]
"""Asks for the version of an object; None if it is missing."""


class BucketReader(ObjectReader):
    """An object of which ranges are read as they are asked for.

    - `is_kept`: whether that was kept from earlier. Then the service is asked at least once, at the
      latest when the reader is closed, whether the object is still the same.
    """

    is_distant = True

    def __init__(
        self, name: str, seen: Seen, tails: Tails, get: Get, look: Look, *, is_kept: bool = False
    ) -> None:
        self._name, self._seen, self._tails = name, seen, tails
        self._get, self._look = get, look
        self._is_asked = not is_kept
        self.version = seen.version
        self.identity = seen.version if is_strong(seen.version) else None
        self.nbytes = seen.version[0]

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        seen = self._seen  # which another thread may replace
        end = offset + nbytes
        if end > self.nbytes:
            message = f"{self._name!r} ends at byte {self.nbytes}"
            raise StoreError(message, key=self._name, errno=errno.EIO)
        if seen.start <= offset and end <= seen.start + len(seen.data):
            return bytes(memoryview(seen.data)[offset - seen.start : end - seen.start])
        if not nbytes:
            return b""
        if end == self.nbytes and offset and nbytes <= _MOST_TAIL_NBYTES:
            return self._ending(nbytes)
        return self._asked(offset, end)

    @property
    def held(self) -> tuple[int, int]:  # type: ignore[override]
        """See :attr:`ObjectReader.held`."""
        return self._seen.start, self._seen.start + len(self._seen.data)

    def release(self) -> None:
        """See :meth:`ObjectReader.release`."""
        self._seen = Seen(self.version)

    def _ending(self, nbytes: int) -> bytes:
        """The last bytes, of which more are read, for those who read them piece by piece."""
        self._tails.wanted(nbytes)
        start = max(0, self.nbytes - self._tails.nbytes)
        tail = self._asked(start, self.nbytes)
        self._seen = Seen(self.version, tail, start)
        return tail[len(tail) - nbytes :]

    def _asked(self, start: int, end: int) -> bytes:
        """A range, as the service gives it."""
        data = self._get(self._name, start, end, self.version)
        if data is None:
            raise self._changed()
        self._is_asked = True
        if len(data) != end - start:
            raise _short(self._name, len(data), end - start)
        return data

    def _changed(self) -> StoreError:
        """The error for another version."""
        return StoreError(
            f"{self._name!r} was replaced or removed while it was read",
            key=self._name,
            errno=errno.ESTALE,
        )

    def __exit__(self, *exc_info: object) -> None:
        if not self._is_asked and not any(exc_info):
            self._is_asked = True
            if self._look(self._name) != self.version:
                raise self._changed()


# ---- Scratch: objects that wait on the disk of this machine until they are put


@dataclass(frozen=True, slots=True)
class Room:
    """Room in a directory for objects that wait."""

    disk: int  # number of the file system, which two directories may share
    free_nbytes: int  # bytes that are free there


def room_in(directory: str) -> Room:
    """Look whether files can be made in a directory, and how much room there is."""
    with as_store_error(directory, "cannot write to"), _file_in(directory) as file:
        facts = os.fstatvfs(file.fileno())
        return Room(os.fstat(file.fileno()).st_dev, facts.f_bavail * facts.f_frsize)


class ScratchWriter(WholeWriter):
    """An object that grows in a file without a name.

    - `directory`: directory of the file. It may name variables of the environment.
    """

    def __init__(self, transaction: WholeTransaction, key: str, directory: str) -> None:
        super().__init__(transaction, key)
        self._where = _expanded(directory)
        with self._storing():
            self._file: Any = _file_in(directory)
        self._nbytes = 0

    def _storing(self) -> Any:
        return as_store_error(self._key, f"cannot keep a shard in {self._where} until it is put:")

    def _fd(self) -> int:
        if self._file is None:
            raise StoreError(f"{self._key!r} is not being written", key=self._key)
        return int(self._file.fileno())

    def write(self, buffers: Sequence[Any]) -> int:
        """See :meth:`ObjectWriter.write`."""
        fd = self._fd()
        parts = [memoryview(buffer) for buffer in buffers]
        views = [view.cast("B") for view in parts if view.nbytes]
        with self._storing():
            n_written = writev_all(fd, views)
        self._nbytes += n_written
        return n_written

    def write_at(self, offset: int, data: bytes) -> None:
        """See :meth:`ObjectWriter.write_at`."""
        fd = self._fd()
        with self._storing():
            pwrite_all(fd, data, offset)

    def skip(self, nbytes: int) -> None:
        """See :meth:`ObjectWriter.skip`."""
        fd = self._fd()
        with self._storing():
            self._nbytes = os.lseek(fd, nbytes, os.SEEK_CUR)
            if nbytes:  # the file must be as long, and what is left out reads as zeros
                pwrite_all(fd, b"\0", self._nbytes - 1)

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`ObjectWriter.finish`."""
        fd = self._fd()
        self._transaction.check(guard)
        with self._storing():
            # The map keeps the file until nobody needs it any more.
            data = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if self._nbytes else b"")
        self._close()
        self._transaction.put(lambda: self._put(data, guard))

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _file_in(directory: str) -> Any:
    """A new file that has no name, or loses it at once where the file system wants one."""
    where = _expanded(directory)
    return tempfile.TemporaryFile(dir=where, prefix="shardwrite-", buffering=0)


def _expanded(directory: str) -> str:
    """Path of this machine; the configuration may name variables of it, or the home directory."""
    return os.path.expanduser(os.path.expandvars(directory))


# ---- The store


# The first request to Azure reads so much in place of a HEAD, so that a small object, such as a
# lease that is renewed meanwhile, needs one request.
_SMALL_NBYTES = 4096
# Objects that show what a service can do. They lie among the state of runs; see `place.base`.
_PROBES = "shardwrite-run/probes/"

_MOST_PROBES = 2
# Memory for an object that may be larger is not reserved, since it may become much smaller.
_MOST_RESERVED_NBYTES = 128 * 2**20
# Options that say where a store is. Others may be credentials, which change.
_LOCATIONS = ("endpoint", "base_url", "bucket", "region", "account_name", "container_name")


def opened(store: Any, *, is_read: bool) -> BucketStore:
    """A store of obstore as one of this package.

    - `is_read`: promise that nothing will be written.
    - Raises SpecError if it would be written, and is a web server.
    """
    made = BucketStore(store)
    if not is_read:
        made.check_writable()
    return made


class BucketStore(WholeStore):
    """A store of obstore.

    What S3 itself, GCS and Azure can do is known. Services that are like S3 may lack conditional
    requests, or accept and ignore them. So :meth:`prepare` tries them with a small object.

    - `store`: an `S3Store`, `GCSStore`, `AzureStore`, `HTTPStore`, `LocalStore` or `MemoryStore`.

    Examples
    --------
    >>> from obstore.store import MemoryStore
    >>> store = BucketStore(MemoryStore())
    >>> store.create_new("c/0", b"abc"), store.create_new("c/0", b"xyz")
    (True, False)
    """

    def __init__(self, store: Any) -> None:
        self._obstore = store
        self._kind = KINDS[type(store).__name__]
        self._tails = Tails()
        self._probed = Probed()
        self._top: BucketStore | None = None
        self._via: str | None = None
        self._metadata: Mapping[str, str] = NOTHING
        self._given: dict[str, Any] = dict(getattr(store, "config", {}))
        if self._kind.scheme == "s3" and self._is_aws:
            self._probed = Probed(CONDITIONS)

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        """See :attr:`Store.capabilities`."""
        return WholeStore.capabilities | self._kind.can | self._probed.can

    def __reduce__(self) -> tuple[Any, ...]:
        require(self, Capability.SHARED, field="store", value=repr(self))
        shared = self._obstore, self._tails, self._probed
        return _rebuild, (*shared, self.prefix, self._via, self.is_exclusive)

    @property
    def _endpoint(self) -> str:
        """Address of a service that is not the usual one; empty for that."""
        return given_address(type(self._obstore).__name__, self._given)

    @property
    def _is_aws(self) -> bool:
        host = self._endpoint.partition("://")[2].partition("/")[0]
        return not self._endpoint or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    @property
    def url(self) -> str:
        """URL of the store, without credentials, which opens the same place again."""
        inside = "/".join(
            str(part).strip("/")
            for part in (self._given.get(self._kind.container), self._prefix, self.prefix)
            if part
        )
        for mark in "%?#":  # the first of them begins all others
            inside = inside.replace(mark, f"%{ord(mark):02X}")
        if self._kind.is_web:
            return "/".join(filter(None, (self._obstore.url.rstrip("/"), inside)))
        return f"{self._kind.scheme}://{'/' if self._kind.scheme == 'file' else ''}{inside}"

    @property
    def _prefix(self) -> str:
        return str(getattr(self._obstore, "prefix", None) or "")

    def __repr__(self) -> str:
        return self.url

    @property
    def owner(self) -> object:
        """See :attr:`Store.owner`."""
        return self._obstore

    @property
    def is_in_memory(self) -> bool:
        """See :attr:`Store.is_in_memory`."""
        return self._kind.scheme == "memory"

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """See :attr:`WholeStore.is_remote`."""
        return not self.is_in_memory and self._kind.scheme != "file"

    @property
    def lists(self) -> bool:  # type: ignore[override]
        """See :attr:`Store.lists`."""
        return not self._kind.is_web

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        """See :attr:`Store.keeps_state`."""
        return self.is_remote and not self._kind.is_web

    @property
    def local_root(self) -> Path | None:
        """See :attr:`Store.local_root`."""
        return Path(self._prefix or "/").absolute() if self._kind.scheme == "file" else None

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        if self.is_in_memory:
            return super().token
        if self._kind.is_web:
            return self.url
        options = dict(self._given)
        if self._endpoint:
            options[self._kind.address] = self._endpoint
        if self._kind.scheme == "az" and (account := os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")):
            options.setdefault("account_name", account)
        where = [f"{key}={options[key]}" for key in _LOCATIONS if key in options]
        path = self.local_root or self._prefix
        return f"{' '.join([type(self._obstore).__qualname__, *where, str(path)])}/{self.prefix}"

    @property
    def put_limit(self) -> int | None:
        """See :attr:`Store.put_limit`: what one request takes."""
        return self._kind.most_nbytes if self.is_remote else None

    @property
    def scratch(self) -> str | None:
        """See :attr:`Store.scratch`."""
        if not self.is_remote:
            return None
        return value_of(VIA) if self._via is None else self._via

    @property
    def loses_changes(self) -> bool:
        """See :attr:`Store.loses_changes`; known after :meth:`prepare`."""
        is_safe = Capability.CONDITIONAL in self.capabilities
        return self.is_remote and not is_safe and not self.is_exclusive

    def via(self, directory: str) -> BucketStore:
        """The store as one whose shards wait in a directory until they are put."""
        store = self.at("")
        store._via = directory  # noqa: SLF001 (of this class)
        return store

    def described(self, metadata: Mapping[str, str]) -> BucketStore:
        """See :meth:`WholeStore.described`."""
        store = self.at("")
        store._metadata = self._kind.metadata(metadata)  # noqa: SLF001 (of this class)
        return store

    def whole(self) -> tuple[WholeStore, str]:
        """See :meth:`Store.whole`; the bucket, with the options and keys of this store."""
        if not self._prefix or not self.is_remote:
            return super().whole()
        if self._top is None:
            arguments, keywords = self._obstore.__getnewargs_ex__()
            client = type(self._obstore)(*arguments, **{**keywords, "prefix": None})
            self._top = _rebuild(client, Tails(), self._probed, "", None, is_exclusive=False)
        return self._top, f"{self._prefix.strip('/')}/{self.prefix}".removesuffix("/")

    def held_nbytes(self, most_nbytes: int) -> int:
        """See :meth:`Store.held_nbytes`: the whole object, unless it waits in a file."""
        if not self.is_remote:
            return 0
        if self.scratch is not None:
            return min(most_nbytes, COPIED_AT_ONCE_NBYTES)
        return most_nbytes

    def as_zarr(self) -> Any:
        """The store as one of zarr-python that is only read, and the path of the whole store."""
        from zarr.storage import ObjectStore

        return ObjectStore(self._obstore, read_only=True)

    def check_writable(self) -> None:
        """See :meth:`Store.check_writable`."""
        if self._kind.is_web:
            raise SpecError(
                "on a web server, which is only read",
                field="store",
                value=self.url,
                remedy="write to a directory, or to a bucket by its own URL, such as "
                "s3://bucket/x.zarr",
            )

    def prepare(self) -> None:
        """See :meth:`Store.prepare`.

        A small object is put and removed. For services that are only like S3, the attempts to put
        it again, to replace another version of it, and to replace it show whether conditions are
        kept. Such objects of processes that were killed are removed.
        """
        if self._probed.is_done or self.is_in_memory or self._kind.scheme == "file":
            return
        for _ in range(_MOST_PROBES):
            if self._probe(f"{self.prefix}{_PROBES}{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"):
                break
        for left in list(self._listed(f"{self.prefix}{_PROBES}")):
            self.remove_object(left)
        self._probed.is_done = True

    def check_nbytes(self, most_nbytes: int, *, exists: bool = False) -> None:
        """See :meth:`Store.check_nbytes`."""
        allowed = self.put_limit
        if allowed is not None and most_nbytes > allowed:
            remedy = (
                "make an array with smaller shards of it, for instance by reshard"
                if exists
                else "give smaller shards, or compression_ratio= if all shards will be so much "
                "smaller than that"
            )
            raise SpecError(
                f"a shard may take {most_nbytes:,} bytes, and one request takes at most "
                f"{allowed:,}",
                field="shards",
                value=most_nbytes,
                remedy=remedy,
            )

    def writer(self, transaction: WholeTransaction, key: str) -> WholeWriter:
        """See :meth:`WholeStore.writer`.

        A task says how large its shards may be. These may wait in a file.
        """
        most_nbytes, scratch = transaction.most_nbytes, self.scratch
        if scratch is not None and most_nbytes:
            return ScratchWriter(transaction, key, scratch)
        writer = super().writer(transaction, key)
        if self.is_remote and most_nbytes <= _MOST_RESERVED_NBYTES:
            writer.reserve(most_nbytes)
        return writer

    def _probe(self, name: str) -> bool:
        """Try the service with an object, and return whether it keeps conditions.

        Another process, which takes the object for left over, may remove it. Then it does not.
        """
        try:
            if Capability.EXCLUSIVE in self.capabilities:
                self.put_object(name, b"1")
                return True
            if self._keeps_conditions(name):
                self._probed.can = CONDITIONS
                return True
            return False
        finally:
            self.remove_object(name)

    def _keeps_conditions(self, name: str) -> bool:
        """Whether the service puts an object once, and replaces only the version that is named."""
        conditions: list[Any] = ["create", "create", {"e_tag": '"0123456789abcdef"'}]
        refused = []
        for number, mode in enumerate(conditions):
            try:
                self._put(name, b"%d" % number, mode)
            except raised() as error:
                if not is_refused_condition(error) and not isinstance(error, NotImplementedError):
                    if number:
                        return False  # the service does not know conditions
                    raise self._failed(error, "put", name) from None
                refused.append(number)
        # The first one is refused, too, if its answer was lost and obstore asked again.
        if refused[-2:] != [1, 2]:
            return False
        # A proxy may change the ETags that it passes on. Then no condition on them is ever met.
        version = self.version_of_object(name)
        return version is not None and self._put_if(name, b"3", version)

    def open_object(self, name: str) -> BucketReader | None:
        """See :meth:`WholeStore.open_object`."""
        seen = self._see(name)
        return None if seen is None else self._reader(name, seen)

    def open_for(
        self, key: str, first: int, identity: Any = None, *, whole_nbytes: int = 0
    ) -> BucketReader | None:
        """See :meth:`Store.open_for`; of a larger object, one end is read."""
        name = self.prefix + check_key(key)
        if identity is not None and self._probed.has_ranges:
            return self._reader(name, Seen(identity), is_kept=True)
        seen = self._see(name, first, min(whole_nbytes, value_of(READ_REQUEST)))
        return None if seen is None else self._reader(name, seen)

    def _reader(self, name: str, seen: Seen, *, is_kept: bool = False) -> BucketReader:
        look = self.version_of_object
        reader = BucketReader(name, seen, self._tails, self._get, look, is_kept=is_kept)
        if self.local_root is not None:  # tags of files are times, which a quick change may leave
            reader.identity = None
        return reader

    def version_of_object(self, name: str) -> Version | None:
        """See :meth:`WholeStore.version_of_object`."""
        facts = self._asked("look at", name, lambda: self._facts(name))
        return None if facts is None else version_from(facts)

    def _facts(self, name: str) -> Any:
        """What the service tells of an object. A web server may refuse to tell it without bytes."""
        import obstore

        if self._probed.has_heads:
            try:
                return obstore.head(self._obstore, name)
            except raised() as error:
                if not (self._kind.is_web and is_method_refused(error)):
                    raise
        facts = obstore.get(self._obstore, name).meta  # nobody asks for its bytes
        self._probed.has_heads = False
        return facts

    def size(self, key: str) -> int | None:
        """See :meth:`Store.size`."""
        version = self.version(key)
        return None if version is None else int(version[0])

    def changed_at(self, key: str) -> float | None:
        """See :meth:`WholeStore.changed_at`; the clock is that of the service."""
        import obstore

        name = self.prefix + check_key(key)
        facts = self._asked("look at", name, lambda: obstore.head(self._obstore, name))
        return None if facts is None else float(facts["last_modified"].timestamp())

    def put_object(self, name: str, data: bytearray | bytes) -> None:
        """See :meth:`WholeStore.put_object`."""
        self._check_size(name, len(data))
        try:
            self._put(name, data, "overwrite")
        except raised() as error:
            raise self._failed(error, "put", name) from None

    def replace_object(self, name: str, data: bytearray | bytes, version: Any) -> None:
        """See :meth:`WholeStore.replace_object`."""
        if not self._put_if(name, data, version):
            raise changed_meanwhile(name)

    def create_new(self, key: str, data: bytes) -> bool:
        """See :meth:`Store.create_new`."""
        if Capability.EXCLUSIVE not in self.capabilities:
            return super().create_new(key, data)
        return self._put_if(self.prefix + check_key(key), data, None)

    def remove_object(self, name: str) -> None:
        """See :meth:`WholeStore.remove_object`."""
        import obstore

        def remove() -> None:
            made_again(self._obstore, lambda: obstore.delete(self._obstore, name))

        self._asked("remove", name, remove)

    def list_names(self, prefix: str) -> Iterator[str]:
        """See :meth:`WholeStore.list_names`."""
        for name in self._listed(prefix):
            if not name.endswith(TEMPORARY_SUFFIX):
                yield name

    def _listed(self, prefix: str) -> Iterator[str]:
        """Names of all objects that begin with a prefix, the temporary ones too."""
        import obstore

        if not self.lists:
            raise StoreError(
                f"a web server does not list what lies below {self.url}; give the path of an "
                "array, or copy the files to a directory",
                key=prefix,
                errno=errno.EOPNOTSUPP,
            )
        check_process()
        try:
            for page in obstore.list(self._obstore, prefix=prefix or None):
                for facts in page:
                    path = str(facts["path"])
                    if path and path.startswith(prefix):  # a console marks a folder by an empty key
                        yield path
        except FileNotFoundError as error:
            # A directory may be missing. A bucket lists nothing where there is nothing, so this
            # answer says something else.
            if self._kind.scheme != "file":
                raise self._failed(error, "list", "") from None
        except raised() as error:
            raise self._failed(error, "list", "") from None

    def check_reachable(self, client: Any = None) -> None:
        """Ask the service for an object that may be missing.

        - `client`: store of the same objects that gives up soon. By default it is this store's own.
        """
        import obstore

        store = self._obstore if client is None else client
        try:
            self._asked("open", "", lambda: obstore.get(store, f"{self.prefix}.probe"))
        except StoreError as error:
            # A web server may forbid what is missing.
            if not self._kind.is_web or error.errno != errno.EACCES:
                raise

    def _see(self, name: str, first: int = 0, nbytes: int = 0) -> Seen | None:
        """Some bytes of an object, and what is known of it; None if it is missing.

        - `first`: see :meth:`Store.open_for`. By default they are the last ones, or the first ones
          where last bytes cannot be asked for.
        - `nbytes`: how many are read, if that is more.
        """
        import obstore
        from obstore.exceptions import NotSupportedError

        n_last = max(min(max(self._tails.nbytes, -first), _MOST_TAIL_NBYTES), nbytes)
        is_start = 0 < first <= _MOST_TAIL_NBYTES or not self._kind.has_suffixes
        n_first = max(first if 0 < first <= _MOST_TAIL_NBYTES else _SMALL_NBYTES, nbytes)
        wanted: Any = {"range": (0, n_first) if is_start else {"suffix": n_last}}

        def see() -> Seen:
            try:
                options = wanted if self._probed.has_ranges else None
                answer = obstore.get(self._obstore, name, options=options)
            except NotSupportedError:  # a web server may give the whole object in place of a range
                answer = obstore.get(self._obstore, name)
                if answer.meta["size"] > (n_first if is_start else n_last):
                    self._probed.has_ranges = False
            _check_not_compressed(name, answer.attributes)
            version, data = version_from(answer.meta), answer.bytes()
            start, end = answer.range
            if len(data) != end - start:
                raise _short(name, len(data), end - start)
            return Seen(version, data, start)

        try:
            return self._asked("read", name, see)
        except StoreError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise
            # An empty object has no such bytes, which most services call an error. Some web servers
            # take the first and the last byte of a range, and nothing else.
            version = self.version_of_object(name)
            if version is not None and not version[0]:
                return Seen(version)
            if version is None or not self._kind.is_web:
                raise
            start = max(0, version[0] - n_last)
            tail = self._get(name, start, version[0], version)
            if tail is None:
                raise
            return Seen(version, tail, start)

    def _get(self, name: str, start: int, end: int, version: Version) -> bytes | None:
        """See :data:`Get`."""
        import obstore
        from obstore.exceptions import NotSupportedError, PreconditionError

        def get(same: Any) -> tuple[bytes, Version]:
            try:
                part: Any = {"range": (start, end), **same}
                response = obstore.get(self._obstore, name, options=part)
                data = bytes(response.bytes())
            except NotSupportedError:  # a web server gives the whole object in place of this range
                response = obstore.get(self._obstore, name, options=same)
                self._probed.has_ranges &= response.meta["size"] <= end - start
                data = bytes(response.bytes())[start:end]
            return data, version_from(response.meta)

        def get_same() -> tuple[bytes, Version] | None:
            if not is_strong(version) or not self._probed.has_conditions:
                return get({})
            try:
                return get({"if_match": version[1]})
            except PreconditionError:
                if not self._kind.is_web:
                    return None
            # What lies before a web server may change its tags, and then none of them is the same.
            data, current = get({})
            self._probed.has_conditions = current != version
            return data, current

        answer = self._asked("read", name, get_same)
        return None if answer is None or answer[1] != version else answer[0]

    def _put_if(self, name: str, data: bytearray | bytes, version: Version | None) -> bool:
        """Put an object if another stands there, or none, and return whether it stands there now.

        If the answer was lost, or an attempt after it was refused, the object may be there.
        """
        self._check_size(name, len(data))
        mode: Any = "create"
        if version is not None:
            named = {"e_tag": version[1], "version": version[2]}
            mode = {name: value for name, value in named.items() if value is not None}
        try:
            self._put(name, data, mode)
        except raised() as error:
            is_refused = is_refused_condition(error) or isinstance(error, FileNotFoundError)
            if is_missing_bucket(error):
                raise self._failed(error, "put", name) from None
            if self._holds(name, data):
                return True
            if not is_refused:
                raise self._failed(error, "put", name) from None
            return False
        return True

    def _holds(self, name: str, data: bytearray | bytes) -> bool:
        """Whether an object has certain bytes. Few of them are read at a time."""
        version = self.version_of_object(name)
        if version is None or version[0] != len(data):
            return False
        with memoryview(data) as wanted:
            return all(
                self._get(name, start, min(start + COPIED_NBYTES, len(data)), version)
                == bytes(wanted[start : start + COPIED_NBYTES])
                for start in range(0, len(data), COPIED_NBYTES)
            )

    def _put(self, name: str, data: bytearray | bytes, mode: Any) -> str | None:
        """Put an object, and return its ETag."""
        import obstore

        check_process()
        more: Any = {"attributes": dict(self._metadata)} if self._metadata else {}
        more |= {"mode": mode, "use_multipart": False}
        put = made_again(self._obstore, lambda: obstore.put(self._obstore, name, data, **more))
        return put["e_tag"]

    def _asked(self, doing: str, name: str, call: Callable[[], T]) -> T | None:
        """What a request gives; None if the object is missing."""
        check_process()
        try:
            return call()
        except FileNotFoundError as error:
            if is_missing_bucket(error) or (self._kind.is_web and is_method_refused(error)):
                raise self._failed(error, doing, name) from None
            return None
        except raised() as error:
            raise self._failed(error, doing, name) from None

    def _failed(self, error: BaseException, doing: str, name: str) -> StoreError:
        if isinstance(error, StoreError):
            return error
        return as_bucket_error(error, doing, name.removeprefix(self.prefix), self.url)

    def _check_size(self, name: str, nbytes: int) -> None:
        most = self._kind.most_nbytes
        if nbytes > most:
            raise StoreError(
                f"{name!r} has {nbytes:,} bytes, and one request puts at most {most:,}; "
                "give smaller shards",
                key=name,
                errno=errno.EFBIG,
            )


def _rebuild(
    store: Any,
    tails: Tails,
    probed: Probed,
    prefix: str,
    via: str | None,
    is_exclusive: bool,
) -> BucketStore:
    rebuilt = BucketStore(store).at(prefix.removesuffix("/"))
    rebuilt.is_exclusive = is_exclusive
    rebuilt._tails, rebuilt._probed, rebuilt._via = tails, probed, via  # noqa: SLF001 (of this class)
    return rebuilt
