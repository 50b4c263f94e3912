"""The record of a run, ``plan.json``: what it writes, and by whom and how it was begun.

The record is written once, when the run begins, and is never changed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Annotated

from crc32c import crc32c

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.journal.process import Process
from shardwrite.options import DURABILITIES
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.plan.partition import Cuts
from shardwrite.records import (
    Check,
    OtherVersionError,
    Record,
    RecordError,
    check_format,
    lenient,
    one_of,
    rest,
)
from shardwrite.seams import Ref
from shardwrite.stores.looking import parse_json

FORMAT = 1
_SEAL = "crc32c"

_NAME = Check(str.isalnum, "a name of letters and digits")
_MODE = one_of("w-", "w", "r+")
_DURABILITY = one_of(*DURABILITIES)
_HAS_PLACE = Check(lambda window: len(window.first) == len(window.counts), "shards with a place")


class SealError(ValueError):
    """Sealed facts are not what they were when they were sealed."""


class EarlierVersionError(OtherVersionError):
    """A record was made by an earlier version of this package, which sealed none."""

    version = "an earlier"

    def __init__(self) -> None:
        super().__init__("it has no checksum")


@dataclass(frozen=True, slots=True)
class _Named(Record):
    """A `Ref`, whose kind the field tells."""

    name: str
    configuration: Mapping[str, JSON]


def _ref(kind: str) -> Callable[[JSON], Ref]:
    def read(found: JSON) -> Ref:
        named = _Named.from_dict(found)
        return Ref(kind, named.name, named.configuration)

    return read


_STRATEGY, _SHARD_FORMAT = _ref("write strategy"), _ref("shard format")
_SOURCE = _ref("source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Together(Record):
    """What the record of an array says if the same run writes others, too.

    The arrays have one directory of the run, and in it each has a directory of its own. Its name is
    the number of the array.
    """

    number: int  # of this array among all
    n_arrays: int  # number of all
    n_shards: int  # number of shards of all of them
    name: str  # path of this array in the hierarchy
    home: str  # directory that holds the run's own, as a path from that of the array's run state
    state: str  # the latter directory as a path from the former


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent(Record):
    """What a run will write, before it has begun. The fields are in the order of the file."""

    identity: Identity  # what the digest covers
    # Figures of the plan, which are only shown to people, and fields that this version does not
    # know
    figures: Mapping[str, JSON] = rest()
    # Shards that the run writes; None for all shards of the array
    shards_from: Annotated[ShardWindow, _HAS_PLACE] | None = None
    # Whether encoded chunks of another array are copied. Processes that write parts copy them, too.
    copies: bool = False
    # For processes that read the plan back: the write strategy, the shard format, and the source
    # if any process can open it
    strategy: Annotated[Ref, _STRATEGY] | None = None
    shard_format: Annotated[Ref, _SHARD_FORMAT] | None = None
    source: Annotated[Ref, _SOURCE] | None = None
    # Groups and blocks of the plan, for processes that write parts of it, which alone need them
    partition: Cuts | None = lenient()
    digest: str  # digest of the plan. That of a stream or a salvage is a random name.
    # ``"r+"`` if the run changes an array that exists, otherwise as in
    # :func:`shardwrite.to_sharded_zarr`
    mode: Annotated[str, _MODE]

    @property
    def makes_array(self) -> bool:
        """Whether the run makes the array, rather than updating or repairing an existing one."""
        return self.mode != "r+"

    @property
    def layout(self) -> str | None:
        """Scheme of the plan's tasks: ``fused``, ``direct`` or ``staged``."""
        found = self.figures.get("layout")
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Intent):
    """What a run writes, and by whom and how it was begun.

    The fields of `Intent` come first.
    """

    run: Annotated[str, _NAME]  # name of the run
    replaces: bool  # whether an array stood there, which the run replaces
    durability: Annotated[str, _DURABILITY]  # durability level of the run
    begun_by: Process | None = None  # the process that began the run
    document_crc32c: int  # of the metadata document with which the run began
    array: str  # name of the array's directory
    together: Together | None = None  # None if the run writes one array
    # Whether the new array is built in the directory of the run, and the old one stays until then
    aside: bool = False
    # Length of the array along the axis of an append when a run on several arrays began; else None
    length: int | None = None

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields and a checksum of them, in the order of the file."""
        made = Record.to_dict(self)
        if self.partition is None:  # a stream or a salvage, which have no plan
            return sealed({"digest": self.digest, "mode": self.mode, **made})
        return sealed({"format": FORMAT, **made})

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return fields_in_lines(self.to_dict())

    @classmethod
    def from_json(cls, data: bytes, *, is_update: bool) -> RunRecord:
        """Parse and check the content of a ``plan.json``.

        - `data`: content of the file.
        - Raises OtherVersionError if another version of this package has begun the run.
        """
        found = parse_json(data)
        if not isinstance(found, dict):
            raise RecordError("an object", record=cls.__name__)
        check_format(found.get("format", FORMAT), FORMAT, cls.__name__)
        check_seal(found)
        if _SEAL not in found and {"run", "digest", "identity"} <= found.keys():
            raise EarlierVersionError
        own = {name: value for name, value in found.items() if name not in ("format", _SEAL)}
        record = cls.from_dict(own)
        is_change = record.mode == "r+"
        if is_change != (record.identity.mode == "r+") or (is_update and not is_change):
            raise ValueError("it says in two ways how it writes")
        if record.replaces and is_change:
            raise ValueError("it does not say what it replaces")
        if is_update and record.shards_from is None:
            raise ValueError("it does not say which shards it writes")
        if is_update and record.identity.region is None:
            raise ValueError("it does not say which region it writes")
        return record


def new_name() -> str:
    """Make a name for a run."""
    return uuid.uuid4().hex[:12]


def fields_in_lines(facts: Mapping[str, JSON]) -> bytes:
    """JSON text of an object, with a line for each field.

    Python has an encoder in C only for text without `indent`.
    """
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def sealed(facts: Mapping[str, JSON]) -> dict[str, JSON]:
    """Add a crc32c of the facts to the facts."""
    return {**facts, _SEAL: _checksum(facts)}


def check_seal(facts: Mapping[str, JSON]) -> None:
    """Refuse facts that have changed since they were sealed, if they were.

    - Raises SealError.
    """
    if _SEAL in facts and facts[_SEAL] != _checksum(facts):
        raise SealError("it does not match its checksum")


def _checksum(facts: Mapping[str, JSON]) -> int:
    return crc32c(
        json.dumps(
            {name: value for name, value in facts.items() if name != _SEAL}, sort_keys=True
        ).encode()
    )
