"""Errors that shardwrite raises.

All errors derive from :class:`ShardwriteError`, with one class for each kind of remedy. Each error
keeps its facts in typed attributes, and can be pickled, because dask sends errors between
processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = [
    "ChangedError",
    "ClusterError",
    "ClusterLostError",
    "CodecError",
    "ConflictError",
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

# These are compiled when they are first needed.
# file:/// does not match, since a path follows it, and no host.
_SCHEME = r"(?<![\w+.-])([A-Za-z][\w+.-]+:/{1,2})(?!/)"
# This matches up to the last @, since a secret may contain a slash.
_USER_INFO = _SCHEME + r"[^\s'\"<>]*@"
# This takes a backslash with the character that it escapes, so that JSON stays JSON.
_QUERY = _SCHEME + r"([^\s'\"<>?#]*)[?#](?:\\[^\s'\"<>]|[^\s'\"<>\\])*"
_ADDRESS = "(?s)" + _SCHEME + r".*@"

# Control characters except tab and newline, characters that change the direction of writing, and
# bytes that are not text.
_UNPRINTABLE = (
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_MOST_SHOWN = 1000  # characters of a value in a message, whose remedy comes behind it


def text_of(error: BaseException) -> str:
    """Class and message of an error that users' code may have raised, whose text may raise, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 (the first error is the one to tell)
        return type(error).__name__


def redacted(text: str) -> str:
    """Text with the credentials in its URLs replaced by ``***``.

    Credentials are user and password, and all that follows a question mark.

    Examples
    --------
    >>> redacted("s3://KEY:SECRET@bucket/x")
    's3://***@bucket/x'
    >>> redacted("cannot read https://host/x?signature=abc at 7:30")
    'cannot read https://host/x?*** at 7:30'
    """
    return re.sub(_QUERY, r"\1\2?***", re.sub(_USER_INFO, r"\1***@", text))


def printable(text: str) -> str:
    r"""Spell out the control characters of a text. A text in JSON stays one.

    Examples
    --------
    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return re.sub(_UNPRINTABLE, _spelt_out, text)


def _spelt_out(found: re.Match[str]) -> str:
    if found[0] == "\x7f":  # the only one that JSON can hold as it is
        return r"\u007f"
    return found[0].encode("unicode-escape").decode()


def _without_credentials(value: Any) -> Any:
    """Field of an error, redacted if it is a string or a list or tuple with strings."""
    if isinstance(value, str):
        # A value that is one URL as a whole may have any characters in its secret.
        address = re.match(_ADDRESS, value)
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
        Facts about the error. Each becomes an attribute.

    Notes
    -----
    Credentials in URLs are removed from the message and from all fields. Control characters in the
    message, such as a name can have, are spelt out.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        message = printable(redacted(message))
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = {
            name: _without_credentials(value) for name, value in fields.items()
        }
        for name, value in self.fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(cls: type[ShardwriteError], message: str, fields: dict[str, Any]) -> ShardwriteError:
    return cls(message, **fields)


class SpecError(ShardwriteError, ValueError):
    """An argument or a metadata document has a value that is not valid or not supported.

    Attributes
    ----------
    field : str
        Name of the argument or metadata field.
    value : object
        The value that was refused.
    remedy : str
        What to do, for instance which values are accepted.
    """

    def __init__(self, message: str, *, field: str, value: object, remedy: str) -> None:
        super().__init__(message, field=field, value=value, remedy=remedy)

    def __str__(self) -> str:
        shown = _shown(self.fields["value"])
        return printable(f"{self.fields['field']}={shown}: {self.message}; {self.fields['remedy']}")


def _shown(value: object) -> str:
    """A value as Python shows it, shortened; its type if Python cannot show it.

    That is so for integers of thousands of digits, and for lists that are nested too deep.
    """
    try:
        shown = repr(value)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


class PlanError(ShardwriteError, ValueError):
    """No plan fits the limits.

    Attributes
    ----------
    needed_nbytes, allowed_nbytes : int
        Bytes that the plan would need, and bytes that it may use. Both are 0 if the limit is not
        one of bytes.
    remedy : str
        What to change so that a plan fits.
    """

    def __init__(
        self, message: str, *, needed_nbytes: int, allowed_nbytes: int, remedy: str
    ) -> None:
        super().__init__(
            message, needed_nbytes=needed_nbytes, allowed_nbytes=allowed_nbytes, remedy=remedy
        )

    def __str__(self) -> str:
        return printable(f"{self.message}; {self.fields['remedy']}")


class CorruptShardError(ShardwriteError, ValueError):
    """A shard contains bytes that no correct writer would have written.

    Attributes
    ----------
    key : str
        Storage key of the shard, relative to the array; empty if it is not known.
    inner_chunk : tuple of int or None
        Position of the inner chunk in the shard's grid of inner chunks. None if the error is about
        the index or the whole shard.
    offset, nbytes : int or None
        Range of the bad bytes in the shard. None if the error is not about a range.
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
        """Copy of the error with some fields set, by a caller who knows them.

        Parameters
        ----------
        **fields
            Fields and their values, for instance ``key``.
        """
        return CorruptShardError(self.message, **{**self.fields, **fields})


@contextmanager
def damage_in(**fields: Any) -> Iterator[None]:
    """Have errors of the block about damage say where that is; see `CorruptShardError.located`."""
    try:
        yield
    except CorruptShardError as error:
        raise error.located(**fields) from error


def not_installed(name: str, extra: str, *, field: str, value: object) -> SpecError:
    """The error that a library is missing which an extra of this package installs."""
    return SpecError(
        f"needs the library {name}, which is not installed",
        field=field,
        value=value,
        remedy=f'pip install "shardwrite[{extra}]"',
    )


class StoreError(ShardwriteError, OSError):
    """Storage refused an operation: for instance no space, no permission, or a missing directory.

    Attributes
    ----------
    key : str
        Key or path for which the operation failed.
    errno : int or None
        Error number of the system, if there is one.
    """

    def __init__(self, message: str, *, key: str = "", errno: int | None = None) -> None:
        super().__init__(message, key=key, errno=errno)


class SourceError(ShardwriteError):
    """The source raised an error, or gave data that differ from what dask declared.

    Attributes
    ----------
    region : tuple of (int, int)
        Region of the array, one ``(start, stop)`` for each axis.
    """

    def __init__(self, message: str, *, region: Sequence[tuple[int, int]]) -> None:
        super().__init__(message, region=tuple(tuple(r) for r in region))

    def __str__(self) -> str:
        box = ", ".join(f"{start}:{stop}" for start, stop in self.fields["region"])
        return f"source region [{box}]: {self.message}"


class CodecError(ShardwriteError):
    """A codec failed, or is not available.

    Attributes
    ----------
    codec : str
        Name of the codec in the array's metadata.
    key : str
        Key of the shard whose inner chunk could not be encoded, if it is known.
    region : tuple of (int, int)
        Region of that inner chunk in the array, one ``(start, stop)`` for each axis.
    """

    def __init__(
        self, message: str, *, codec: str, key: str = "", region: Sequence[tuple[int, int]] = ()
    ) -> None:
        super().__init__(message, codec=codec, key=key, region=tuple(tuple(r) for r in region))

    def __str__(self) -> str:
        if not self.fields["key"]:
            return self.message
        box = ", ".join(f"{start}:{stop}" for start, stop in self.fields["region"])
        return printable(f"{self.fields['key']}, region [{box}]: {self.message}")

    def located(self, key: str, region: Sequence[tuple[int, int]]) -> CodecError:
        """Copy of the error that names a shard and the region of an inner chunk in it.

        Parameters
        ----------
        key : str
            Key of the shard.
        region : sequence of (int, int)
            Region of the inner chunk in the array.
        """
        return CodecError(self.message, codec=self.fields["codec"], key=key, region=region)


class JournalError(ShardwriteError):
    """The run state beside the array is not valid, or belongs to another run.

    Attributes
    ----------
    path : str
        Directory or file that is the reason.
    holder : dict or None
        Process that works on the array, if that is the reason: host, pid, job and more.
    differences : list of str
        Differences between the plan of the run that was begun and this plan, if that is the reason.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        holder: Mapping[str, object] | None = None,
        differences: Sequence[str] = (),
    ) -> None:
        super().__init__(message, path=path, holder=holder, differences=list(differences))


class ChangedError(ShardwriteError):
    """A finished array has changed since its last run, so a repeated call stops.

    Attributes
    ----------
    path : str
        Path of the array.
    changed : tuple of str
        Keys of shards whose objects another program has written or replaced; 1000 at most.
    missing : tuple of str
        Keys of shards whose objects are gone; 1000 at most.
    """

    def __init__(
        self, message: str, *, path: str, changed: Sequence[str] = (), missing: Sequence[str] = ()
    ) -> None:
        super().__init__(message, path=path, changed=tuple(changed), missing=tuple(missing))


class ConflictError(ShardwriteError):
    """Another writer has moved a branch of an Icechunk repository, so nothing was published.

    Attributes
    ----------
    branch : str
        The branch.
    expected, found : str
        Snapshot that the branch pointed to when the session began, and the one that it points to
        now.
    """

    def __init__(self, message: str, *, branch: str, expected: str, found: str) -> None:
        super().__init__(message, branch=branch, expected=expected, found=found)


class RunEndedError(JournalError):
    """The run has ended, or another run has taken its place.

    The operation that raises this error has committed nothing.
    """


class UntrustedStateError(JournalError):
    """The run state beside the array is not trusted, so it is not followed.

    Run state is trusted only if its owner could also replace the array.


    Attributes
    ----------
    path : str
        File or directory that is not trusted.
    owner : str
        Name of its owner, or ``uid`` and a number if the owner has no name.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        owner: str,
        holder: Mapping[str, object] | None = None,
        differences: Sequence[str] = (),
    ) -> None:
        facts = {"path": path, "owner": owner, "holder": holder, "differences": list(differences)}
        ShardwriteError.__init__(self, message, **facts)


class IncompleteError(ShardwriteError):
    """A run stopped before all planned shards were committed.

    Attributes
    ----------
    missing : list of str
        Keys of missing shards, at most a thousand.
    parts : list of int
        Numbers of the parts that are not done, if the array is written in a known number of parts.
    n_written : int
        Number of shards that this attempt has committed, if it is known.
    """

    def __init__(
        self, message: str, *, missing: Sequence[str], parts: Sequence[int] = (), n_written: int = 0
    ) -> None:
        super().__init__(message, missing=list(missing), parts=list(parts), n_written=n_written)


class RunCancelledError(IncompleteError):
    """The run was cancelled by ``shardwrite slurm cancel``.

    It does not start again by itself.
    """


class SubmitError(ShardwriteError):
    """A command of SLURM is missing, or has failed.

    Attributes
    ----------
    command : str
        The command.
    """

    def __init__(self, message: str, *, command: str) -> None:
        super().__init__(message, command=command)


class ClusterError(ShardwriteError):
    """The cluster has had no workers for so long that it is useless to wait for them.

    Attributes
    ----------
    waited_seconds : float
        Time without workers, in seconds.
    jobs : list of dict
        ``id``, ``state`` and ``reason`` that SLURM gives for each job that was to be a worker.
        Empty if SLURM knows none of the jobs.
    """

    def __init__(
        self, message: str, *, waited_seconds: float, jobs: Sequence[dict[str, str]] = ()
    ) -> None:
        super().__init__(message, waited_seconds=waited_seconds, jobs=list(jobs))


class WorkersLostError(ShardwriteError):
    """A cluster cannot continue: no worker appeared, or all workers that ran some tasks died.

    Shards that were committed stay committed.


    Attributes
    ----------
    n_tasks : int
        Number of tasks that were given up, if that is the reason.
    """

    def __init__(self, message: str, *, n_tasks: int = 0) -> None:
        super().__init__(message, n_tasks=n_tasks)


class ClusterLostError(WorkersLostError):
    """A cluster was lost during the work: its scheduler, or all of its workers for too long.

    The same call continues the run on another cluster.
    """
