"""Uploads in parts to S3, by the library botocore, since obstore can neither list nor abort them.

The client of botocore gets the address, the keys and the other options of a store of obstore, and
what these leave out from the same environment variables. Files such as ``~/.aws/credentials`` are
not read, because obstore does not read them. What a service answers is told in the words of
`bucket_errors`, without keys. What botocore would log of a request for debugging is not logged.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.bucket_credentials import credentials_from
from shardwrite.stores.bucket_errors import as_bucket_error
from shardwrite.stores.bucket_uploads import Condition, Upload, Uploads

T = TypeVar("T")
_MARK = "shardwrite-upload"
# Options of obstore that a client of botocore is given, and those that do not matter to uploads.
_KNOWN = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "region",
        "default_region",
        "endpoint",
        "endpoint_url_s3",
        "endpoint_url",
        "virtual_hosted_style_request",
        "skip_signature",
        "unsigned_payload",
        "request_payer",
        "server_side_encryption",
        "sse_kms_key_id",
        "sse_bucket_key_enabled",
    }
)
_OF_NO_MATTER = frozenset(
    {
        "bucket",
        "bucket_name",
        "allow_http",
        "conditional_put",
        "copy_if_not_exists",
        "disable_tagging",
        "disable_bulk_delete",
        "imdsv1_fallback",
    }
)
_KNOWN_OF_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "timeout",
        "read_timeout",
        "proxy_url",
    }
)
_OF_CLIENT_OF_NO_MATTER = frozenset(
    {
        "default_content_type",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "randomize_addresses",
        "user_agent",
    }
)
_DURATION = re.compile(r"([\d.]+) ?(ms|s|m|min|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIMEOUT_SECONDS, _CONNECT_SECONDS, _MAX_RETRIES = 600.0, 5.0, 8
_CONNECTIONS = 64
# Meaning of errors of botocore that are no answers of a service, in words of `bucket_errors`
_MEANINGS = {
    "EndpointConnectionError": "ConnectError",
    "ConnectionClosedError": "HTTP error: connection closed",
    "ConnectTimeoutError": "timed out",
    "ReadTimeoutError": "timed out",
    "NoCredentialsError": "CredentialsError",
    "PartialCredentialsError": "CredentialsError",
    "CredentialRetrievalError": "CredentialsError",
    "TokenRetrievalError": "CredentialsError",
}

_MOST_CLIENTS = 8
_TOLD = ("config", "client_options", "retry_config")
_clients: dict[tuple[object, ...], tuple[Any, Any]] = {}
_lock = threading.Lock()
_is_ours: ContextVar[bool] = ContextVar("is_ours", default=False)


class S3Uploads(Uploads):
    """Uploads into the bucket of a store of obstore.

    - `where`: URL of the store for messages, without credentials.
    """

    def __init__(self, store: Any, endpoint: str, where: str) -> None:
        self._options = _Options(store)
        self._bucket = str(self._options.get("bucket"))
        prefix = str(getattr(store, "prefix", None) or "").strip("/")
        self._root = f"{prefix}/" if prefix else ""
        self._where = where
        self._client = _shared_client(store, self._options, endpoint)

    def begin(self, name: str, metadata: Mapping[str, str]) -> Upload:
        """See :meth:`Uploads.begin`."""
        mark = uuid.uuid4().hex
        answer = self._asked(
            "upload",
            name,
            self._client.create_multipart_upload,
            Metadata={**metadata, _MARK: mark},
            **self._options.encryption,
        )
        return Upload(name, str(answer["UploadId"]), mark)

    def put_part(self, upload: Upload, number: int, data: bytes | bytearray) -> str:
        """See :meth:`Uploads.put_part`."""
        answer = self._asked(
            "upload",
            upload.name,
            self._client.upload_part,
            UploadId=upload.id,
            PartNumber=number,
            Body=data,
        )
        return str(answer["ETag"])

    def complete(self, upload: Upload, tags: Sequence[str], condition: Condition) -> bool:
        """See :meth:`Uploads.complete`."""
        from botocore.exceptions import BotoCoreError, ClientError

        parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, start=1)]
        if condition is None:
            headers = {}
        else:
            (tag,) = condition
            headers = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            self._call(
                self._client.complete_multipart_upload,
                upload.name,
                UploadId=upload.id,
                MultipartUpload={"Parts": parts},
                **headers,
            )
        except (BotoCoreError, ClientError) as error:
            if self._stands(upload):
                return True  # the answer was lost, or an attempt after it was refused
            if _code(error) in ("PreconditionFailed", "412"):
                return False
            raise self._failed(error, "upload", upload.name) from None
        return True

    def _stands(self, upload: Upload) -> bool:
        """Whether the object of an upload stands there."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = self._call(self._client.head_object, upload.name)
        except (BotoCoreError, ClientError) as error:
            if _code(error) in ("NoSuchKey", "404"):
                return False
            raise self._failed(error, "look at", upload.name) from None
        return bool(found.get("Metadata", {}).get(_MARK) == upload.mark)

    def abort(self, upload: Upload) -> None:
        """See :meth:`Uploads.abort`."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._call(self._client.abort_multipart_upload, upload.name, UploadId=upload.id)
        except (BotoCoreError, ClientError) as error:
            if _code(error) not in ("NoSuchUpload", "404"):
                raise self._failed(error, "abort the upload of", upload.name) from None

    def found(self, prefix: str) -> Iterator[Upload]:
        """See :meth:`Uploads.found`."""
        after: dict[str, object] = {}
        while True:
            page = self._asked(
                "list uploads in", "", self._client.list_multipart_uploads, Prefix=prefix, **after
            )
            for one in page.get("Uploads") or []:
                name = str(one["Key"]).removeprefix(self._root)
                if name.startswith(prefix):
                    yield Upload(name, str(one["UploadId"]))
            last = page.get("NextKeyMarker"), page.get("NextUploadIdMarker")
            if not page.get("IsTruncated") or not last[0]:
                return
            after = {"KeyMarker": last[0], "UploadIdMarker": last[1] or ""}

    def _asked(self, doing: str, name: str, call: Callable[..., T], **given: Any) -> T:
        """What a request gives."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._call(call, name, **given)
        except (BotoCoreError, ClientError) as error:
            raise self._failed(error, doing, name) from None

    def _call(self, call: Callable[..., T], name: str, **given: Any) -> T:
        if "Prefix" in given:
            given["Prefix"] = self._root + given["Prefix"]
        else:
            given["Key"] = self._root + name
        with _quietly():
            return call(Bucket=self._bucket, **self._options.payer, **given)

    def _failed(self, error: Exception, doing: str, name: str) -> StoreError:
        if _code(error) == "NoSuchUpload":
            return StoreError(
                f"the upload of {name!r} in parts is gone: another process has aborted it",
                key=name,
                errno=errno.ESTALE,
            )
        return as_bucket_error(error, doing, name, self._where, _text(error))


def _code(error: Exception) -> str:
    """Code of an answer; empty if there was none."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _text(error: Exception) -> str:
    """What went wrong, for `bucket_errors`, without what botocore says of the request."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return _MEANINGS.get(type(error).__name__, "HTTP error: no answer")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = str(answer.get("Error", {}).get("Message", "")).replace("<", " ")
    return f"error response: {status}: <Code>{_code(error)}</Code><Message>{message}"


class _Options:
    """Options of a store of obstore, or where it has none, of the environment."""

    def __init__(self, store: Any) -> None:
        config = dict(getattr(store, "config", None) or {})
        self._given = {name.removeprefix("aws_"): value for name, value in config.items()}
        unknown = sorted(set(self._given) - _KNOWN - _OF_NO_MATTER)
        client = set(getattr(store, "client_options", None) or {})
        unknown += sorted(client - _KNOWN_OF_CLIENT - _OF_CLIENT_OF_NO_MATTER)
        if unknown:
            raise SpecError(
                f"uploads in parts do not know the option {unknown[0]}",
                field="storage_options",
                value=unknown,
                remedy="leave it out, or give smaller shards, or set shardwrite.bucket.put-limit "
                "to 5 GiB, so that shards are put in one request",
            )

    def get(self, *names: str) -> str:
        """Value of the first of some options that is set; empty if none is."""
        for name in names:
            value = self._given.get(name)
            if value is None:
                value = os.environ.get(f"AWS_{name.upper()}")
            if value is not None and str(value):
                return str(value)
        return ""

    def is_on(self, name: str) -> bool:
        """Whether an option is switched on."""
        return self.get(name).lower() in ("true", "1", "yes", "on", "y", "t")

    @property
    def payer(self) -> dict[str, str]:
        """Who pays for a request."""
        is_named = self.get("request_payer").lower() == "requester"
        return {"RequestPayer": "requester"} if is_named or self.is_on("request_payer") else {}

    @property
    def encryption(self) -> dict[str, object]:
        """How the service encrypts an object."""
        kind, key = self.get("server_side_encryption"), self.get("sse_kms_key_id")
        if kind == "sse-c":
            raise SpecError(
                "uploads in parts do not know the encryption sse-c",
                field="storage_options",
                value=["server_side_encryption"],
                remedy="give smaller shards",
            )
        found: dict[str, object] = {"ServerSideEncryption": kind} if kind else {}
        if key:
            found["SSEKMSKeyId"] = key
        if self.is_on("sse_bucket_key_enabled"):
            found["BucketKeyEnabled"] = True
        return found


def _shared_client(store: Any, options: _Options, endpoint: str) -> Any:
    """A client for a store of obstore, which other copies of the store in this process use, too.

    Each task of a run may bring a copy, and to make a client takes a tenth of a second or two.
    """
    provider = getattr(store, "credential_provider", None)
    told = {name: getattr(store, name, None) for name in _TOLD}
    told["environment"] = {name: os.environ[name] for name in os.environ if name[:4] == "AWS_"}
    text = json.dumps(told, sort_keys=True, default=str)
    key = os.getpid(), endpoint, text, id(provider)
    with _lock:
        kept = _clients.get(key)
        if kept is None:
            with _quietly():
                kept = _client(store, options, endpoint), provider  # so that its id stays its own
            _silence()
            if len(_clients) >= _MOST_CLIENTS:
                del _clients[next(iter(_clients))]
            _clients[key] = kept
        return kept[0]


def _client(store: Any, options: _Options, endpoint: str) -> Any:
    """A client of botocore that reaches the same service as a store of obstore."""
    try:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError:
        raise SpecError(
            "shards of this size are uploaded in parts, which needs the library botocore, and "
            "that is not installed",
            field="store",
            value="S3Store",
            remedy='install it with: pip install "shardwrite[cloud]", or set '
            "shardwrite.bucket.put-limit to 5 GiB, so that shards are put in one request",
        ) from None
    client: Mapping[str, Any] = getattr(store, "client_options", None) or {}
    retries: Mapping[str, Any] = getattr(store, "retry_config", None) or {}
    is_virtual = options.is_on("virtual_hosted_style_request")
    bucket = options.get("bucket")
    if is_virtual and f"://{bucket}." in endpoint:
        endpoint = endpoint.replace(f"://{bucket}.", "://", 1)  # botocore puts it there
    style: dict[str, object] = {"addressing_style": "virtual" if is_virtual else "path"}
    if options.is_on("unsigned_payload"):
        style["payload_signing_enabled"] = False
    proxy = client.get("proxy_url")
    config = Config(
        region_name=options.get("region", "default_region") or "us-east-1",
        signature_version=UNSIGNED if options.is_on("skip_signature") else "s3v4",
        s3=style,
        connect_timeout=_seconds(client.get("connect_timeout"), _CONNECT_SECONDS),
        read_timeout=_seconds(client.get("read_timeout", client.get("timeout")), _TIMEOUT_SECONDS),
        retries={
            "mode": "standard",
            "total_max_attempts": 1 + int(retries.get("max_retries", _MAX_RETRIES)),
        },
        proxies={"http": str(proxy), "https": str(proxy)} if proxy else None,
        max_pool_connections=_CONNECTIONS,
        # Not all services that are like S3 know checksums after the body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        ignore_configured_endpoint_urls=True,
    )
    # Without these, botocore would look for a profile and its keys in files.
    nothing = (None, None, None, None)
    session = botocore.session.Session(session_vars={"profile": nothing})
    for file in ("config_file", "credentials_file"):
        session.set_config_variable(file, os.devnull)
    keys: dict[str, str] = {}
    provider = getattr(store, "credential_provider", None)
    if provider is not None:
        _use(session, provider)
    elif options.get("access_key_id") and options.get("secret_access_key"):
        keys["aws_access_key_id"] = options.get("access_key_id")
        keys["aws_secret_access_key"] = options.get("secret_access_key")
        if token := options.get("session_token"):
            keys["aws_session_token"] = token
    is_checked = str(client.get("allow_invalid_certificates", "")).lower() != "true"
    return session.create_client(
        "s3", endpoint_url=endpoint or None, verify=is_checked, config=config, **keys
    )


def _use(session: Any, provider: Callable[[], Any]) -> None:
    """Have a session ask the function that gives obstore its keys."""
    from botocore.credentials import CredentialProvider, Credentials, RefreshableCredentials

    credentials = credentials_from(provider, "S3Store")
    _ = credentials.function  # which is refused here, if it is asynchronous

    def fetched() -> dict[str, str | None]:
        given: Any = credentials()
        until = given["expires_at"]
        return {
            "access_key": given["access_key_id"],
            "secret_key": given["secret_access_key"],
            "token": given.get("token"),
            "expiry_time": None if until is None else until.isoformat(),
        }

    class Provider(CredentialProvider):  # type: ignore[misc]
        METHOD = "obstore"
        CANONICAL_NAME = "obstore"

        def load(self) -> Any:
            first = fetched()
            if first["expiry_time"] is None:
                return Credentials(first["access_key"], first["secret_key"], first["token"])
            return RefreshableCredentials.create_from_metadata(first, fetched, self.METHOD)

    session.get_component("credential_provider").insert_before("env", Provider())


def _seconds(value: Any, default: float) -> float:
    """Length of time that obstore was given, in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    found = _DURATION.fullmatch(str(value).strip())
    return default if found is None else float(found[1]) * _SECONDS[found[2]]


class _Quiet(logging.Filter):
    """Drops what botocore logs for debugging, which holds keys, while this module calls it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO or not _is_ours.get()


_QUIET = _Quiet()


def _silence() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "botocore":
            logging.getLogger(name).addFilter(_QUIET)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)
