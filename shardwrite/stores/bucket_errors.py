"""Errors of object stores, in words that say what to set, and without credentials.

The texts of obstore hold addresses and answers of the service, and those may hold signatures and
keys. So only the code and the message of an answer are taken over.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from shardwrite.errors import StoreError

_STATUS = re.compile(r"(?:status code|error response): (\d{3}[^:\n]*)")
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

    pattern: re.Pattern[str]
    number: int
    meaning: str


def _trouble(pattern: str, number: int, meaning: str) -> _Trouble:
    return _Trouble(re.compile(pattern), number, meaning)


_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN)",
}
_ADDRESSES = {
    "s3": "AWS_ENDPOINT_URL, or endpoint in storage_options",
    "gs": "GOOGLE_BASE_URL, or base_url in storage_options",
    "az": "AZURE_STORAGE_ENDPOINT, or endpoint in storage_options",
}
# A meaning may name the variables of its service for keys and address.
_NONE_FOUND = (
    "no credentials were found, or they are not valid. Set {keys}, or storage_options, or "
    "skip_signature for a bucket that is public"
)
_TROUBLES = (
    _trouble(
        "|".join(_MISSING),
        errno.ENXIO,
        "the bucket does not exist there. Make it, or correct its name. If the service has an "
        "address of its own, set {address}",
    ),
    _trouble(
        r"RequestTimeTooSkewed",
        errno.EACCES,
        "the clock of this machine is wrong by many minutes. Set it",
    ),
    _trouble(
        r"ExpiredToken|TokenRefreshRequired|InvalidToken",
        errno.EACCES,
        "the session token has expired or is not valid. Renew AWS_SESSION_TOKEN and the keys that "
        "belong to it",
    ),
    _trouble(
        r"without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"
        r"|incorrectly configured region",
        errno.ENXIO,
        "the bucket lies in another region. Set AWS_REGION, or region in storage_options",
    ),
    _trouble(
        r"token request|metadata endpoint|instance metadata|CredentialsError|IMDS",
        errno.EACCES,
        _NONE_FOUND,
    ),
    _trouble(
        r"InvalidBucketName|InvalidResourceName",
        errno.EINVAL,
        "no bucket can have that name. It has 3 to 63 lowercase letters, digits, dots and hyphens",
    ),
    _trouble(
        r"InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed|failed to authenticate"
        r"|\b401\b",
        errno.EACCES,
        "the service does not know the keys. Set {keys}, or storage_options",
    ),
    _trouble(
        r"\b403\b|AccessDenied",
        errno.EACCES,
        "the keys have no right to do that. They need the rights to read, list, write and delete "
        "objects. Set {keys}, or storage_options",
    ),
    _trouble(
        r"EntityTooLarge",
        errno.EFBIG,
        "the object is too large for one request. Give smaller shards",
    ),
    _trouble(
        r"credential",
        errno.EACCES,
        _NONE_FOUND,
    ),
    _trouble(
        r"Connect\b|ConnectError|dns error|connection refused|builder error",
        errno.EIO,
        "the service cannot be reached. Check the network, and {address}",
    ),
    # Every text of obstore names its retry_timeout, too.
    _trouble(
        r"(?<!retry_)[Tt]imed? ?[Oo]ut",
        errno.ETIMEDOUT,
        "the service did not answer in time. If large shards take longer, set timeout among the "
        "client_options in storage_options, such as 3600s",
    ),
    _trouble(
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
    told = f"cannot {doing} {name!r} in {where}" if name else f"cannot {doing} {where}"
    if (given := _PROVIDER.search(text)) is not None:
        return StoreError(f"{told}: {given[0].strip()}", key=name, errno=errno.EACCES)
    for trouble in _TROUBLES:
        if trouble.pattern.search(text):
            kind = where.partition(":")[0]
            kind = kind if kind in _KEYS else "s3"
            meaning = trouble.meaning.format(keys=_KEYS[kind], address=_ADDRESSES[kind])
            message = f"{told}: {meaning} ({_answer(error, text)})"
            return StoreError(message, key=name, errno=trouble.number)
    return StoreError(f"{told}: {_answer(error, text)}", key=name, errno=errno.EIO)


def is_missing_bucket(error: BaseException) -> bool:
    """Whether an object is missing because there is no bucket."""
    text = _without_names(error)
    return any(word in text for word in _MISSING)


def is_refused_condition(error: BaseException) -> bool:
    """Whether a service refused to put an object because another one stands there."""
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    return isinstance(error, AlreadyExistsError | PreconditionError)


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
    found = [pattern.search(text) for pattern in (_STATUS, _CODE, _MESSAGE)]
    parts = [match[1].strip() for match in found if match is not None]
    if not parts and (match := _TRANSPORT.search(text)) is not None:
        parts = [match[1].strip()]
    return ", ".join([type(error).__name__, *parts])
