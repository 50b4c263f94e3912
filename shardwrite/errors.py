"""Everything that shardwrite raises on purpose.

One base, :class:`ShardwriteError`; below it one class for each kind of remedy. Every error keeps its
facts in typed attributes and survives pickling, because dask ships errors between processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = [
    "ClusterError",
    "ClusterLostError",
    "CodecError",
    "CorruptShardError",
    "IncompleteError",
    "JournalError",
    "PlanError",
    "RunCancelledError",
    "RunEndedError",
    "ShardwriteError",
    "SourceError",
    "SpecError",
    "StoreError",
    "SubmitError",
    "UntrustedStateError",
    "WorkersLostError",
]

_SCHEME = (
    r"(?<![\w+.-])([A-Za-z][\w+.-]+:/{1,2})(?!/)"  # of file:///, what follows is a path and no host
)
_USER_INFO = re.compile(
    _SCHEME + r"[^\s'\"<>]*@"
)  # up to the last @, since a secret may hold a slash
_QUERY = re.compile(_SCHEME + r"([^\s'\"<>?#]*)[?#][^\s'\"<>]*")
_ADDRESS = re.compile(_SCHEME + r".*@", re.DOTALL)


def redacted(text: str) -> str:
    """A text without the credentials that addresses in it may hold: user and password, and what follows a question mark.

    Examples
    --------
    >>> redacted("s3://KEY:SECRET@bucket/x")
    's3://***@bucket/x'
    >>> redacted("cannot read https://host/x?signature=abc at 7:30")
    'cannot read https://host/x?*** at 7:30'
    """
    return _QUERY.sub(r"\1\2?***", _USER_INFO.sub(r"\1***@", text))


def _without_credentials(value: Any) -> Any:
    """A fact of an error, redacted if it is a text, or a list of texts."""
    if isinstance(value, str):
        address = _ADDRESS.match(value)  # all of it is one, whatever characters its secret holds
        return redacted(value if address is None else f"{address[1]}***@{value[address.end() :]}")
    if type(value) in (list, tuple):
        kept = type(value)(
            _without_credentials(item) if isinstance(item, str) else item for item in value
        )
        return value if all(a is b for a, b in zip(kept, value, strict=True)) else kept
    return value


class ShardwriteError(Exception):
    """Base of all errors raised by shardwrite.

    Parameters
    ----------
    message : str
        What is wrong, and what to do about it.
    **fields
        The facts behind the message; each becomes an attribute.

    Notes
    -----
    Credentials in addresses are taken out of the message and of all facts.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        message = redacted(message)
        super().__init__(message)
        self.message = message
        self.fields = {name: _without_credentials(value) for name, value in fields.items()}
        for name, value in self.fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(cls: type[ShardwriteError], message: str, fields: dict[str, Any]) -> ShardwriteError:
    return cls(message, **fields)


class SpecError(ShardwriteError, ValueError):
    """An argument, or what a document says, is not something that can be written.

    Attributes
    ----------
    field : str
        Name of the argument or metadata field.
    value : object
        The offending value.
    remedy : str
        What would be accepted.
    """

    def __init__(self, message: str, *, field: str, value: object, remedy: str) -> None:
        super().__init__(message, field=field, value=value, remedy=remedy)

    def __str__(self) -> str:
        return f"{self.fields['field']}={self.fields['value']!r}: {self.message}; {self.fields['remedy']}"


class PlanError(ShardwriteError, ValueError):
    """No plan fits the limits.

    Attributes
    ----------
    needed_nbytes, allowed_nbytes : int
        What the plan would need and what it may use, in bytes.
    knob : str
        What to change so that it fits.
    """

    def __init__(self, message: str, *, needed_nbytes: int, allowed_nbytes: int, knob: str) -> None:
        super().__init__(
            message, needed_nbytes=needed_nbytes, allowed_nbytes=allowed_nbytes, knob=knob
        )

    def __str__(self) -> str:
        return f"{self.message}; {self.fields['knob']}"


class CorruptShardError(ShardwriteError, ValueError):
    """A shard holds bytes that no correct writer puts there.

    Attributes
    ----------
    key : str
        Storage key of the shard, relative to the array.
    inner_chunk : tuple of int or None
        Position of the inner chunk in the shard's grid, or None for the index.
    offset, nbytes : int or None
        Where in the shard, in bytes.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        inner_chunk: tuple[int, ...] | None = None,
        offset: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        super().__init__(message, key=key, inner_chunk=inner_chunk, offset=offset, nbytes=nbytes)

    def __str__(self) -> str:
        where = f"shard {self.fields['key']!r}" if self.fields["key"] else "shard"
        if self.fields["inner_chunk"] is not None:
            where += f", inner chunk {self.fields['inner_chunk']}"
        if self.fields["offset"] is not None:
            where += f", bytes {self.fields['offset']}+{self.fields['nbytes']}"
        return f"{where}: {self.message}"

    def located(self, **fields: Any) -> CorruptShardError:
        """The same error with fields (for instance ``key``) filled in by a caller who knows them."""
        return CorruptShardError(self.message, **{**self.fields, **fields})


class StoreError(ShardwriteError, OSError):
    """The environment refused: no space, no permission, no directory, another file in the way.

    Attributes
    ----------
    key : str
        Key or path concerned.
    errno : int or None
        The system's error number, where there is one.
    """

    def __init__(self, message: str, *, key: str = "", errno: int | None = None) -> None:
        super().__init__(message, key=key, errno=errno)


class SourceError(ShardwriteError):
    """The source gave something other than what dask declared, or raised.

    Attributes
    ----------
    region : tuple of (int, int)
        The box of the array concerned, one ``(start, stop)`` per axis.
    """

    def __init__(self, message: str, *, region: Sequence[tuple[int, int]]) -> None:
        super().__init__(message, region=tuple(tuple(r) for r in region))

    def __str__(self) -> str:
        box = ", ".join(f"{start}:{stop}" for start, stop in self.fields["region"])
        return f"source region [{box}]: {self.message}"


class CodecError(ShardwriteError):
    """A codec failed, or cannot be had here.

    Attributes
    ----------
    codec : str
        Name of the codec as it stands in the metadata.
    """

    def __init__(self, message: str, *, codec: str) -> None:
        super().__init__(message, codec=codec)


class JournalError(ShardwriteError):
    """What lies beside the array does not fit this run.

    Attributes
    ----------
    path : str
        The directory or file concerned.
    holder : dict or None
        Who holds the target, where that is the reason: host, pid, job and more.
    differences : list of str
        What differs between the run that was begun and this one, where that is the reason.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        holder: dict[str, Any] | None = None,
        differences: Sequence[str] = (),
    ) -> None:
        super().__init__(message, path=path, holder=holder, differences=list(differences))


class RunEndedError(JournalError):
    """The run that a task belongs to has ended, or another has taken its place; nothing was committed."""


class UntrustedStateError(JournalError):
    """What lies beside the array belongs to somebody who could not replace the array, so that it is not followed.

    Attributes
    ----------
    path : str
        What is not trusted.
    owner : str
        Its owner's name, or number where it has none.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        owner: str,
        holder: dict[str, Any] | None = None,
        differences: Sequence[str] = (),
    ) -> None:
        facts = {"path": path, "owner": owner, "holder": holder, "differences": list(differences)}
        ShardwriteError.__init__(self, message, **facts)


class IncompleteError(ShardwriteError):
    """A run ended and not every planned shard is committed.

    Attributes
    ----------
    missing : list of str
        Keys of the shards that are missing, at most a thousand of them.
    parts : list of int
        Where the array is written in parts, and their number is known: which of them are not done.
    n_written : int
        Shards that this attempt has committed, where that is known.
    """

    def __init__(
        self, message: str, *, missing: Sequence[str], parts: Sequence[int] = (), n_written: int = 0
    ) -> None:
        super().__init__(message, missing=list(missing), parts=list(parts), n_written=n_written)


class RunCancelledError(IncompleteError):
    """The work was cancelled by ``shardwrite slurm cancel``; nothing starts it again by itself."""


class SubmitError(ShardwriteError):
    """SLURM's commands are not here, or one of them failed.

    Attributes
    ----------
    command : str
        What was run.
    """

    def __init__(self, message: str, *, command: str) -> None:
        super().__init__(message, command=command)


class ClusterError(ShardwriteError):
    """There are no workers, and there were none for so long that waiting makes no sense.

    Attributes
    ----------
    waited_seconds : float
        For how long there were none.
    jobs : list of dict
        What SLURM says of the jobs that were to be workers: ``id``, ``state`` and ``reason``; empty where it has none of them.
    """

    def __init__(
        self, message: str, *, waited_seconds: float, jobs: Sequence[dict[str, str]] = ()
    ) -> None:
        super().__init__(message, waited_seconds=waited_seconds, jobs=list(jobs))


class WorkersLostError(ShardwriteError):
    """A cluster cannot go on: no worker came, or none that ran some tasks survived. What was committed stays.

    Attributes
    ----------
    n_tasks : int
        Tasks that were given up, where that is the reason.
    """

    def __init__(self, message: str, *, n_tasks: int = 0) -> None:
        super().__init__(message, n_tasks=n_tasks)


class ClusterLostError(WorkersLostError):
    """A cluster was lost during the work: its scheduler, or all workers for too long. The same call goes on with another."""
