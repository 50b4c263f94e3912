"""The record of a run, ``plan.json``: what it writes, and by whom and how it was begun.

The record is written once, when the run begins, and is never changed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from crc32c import crc32c

from shardwrite.codecs.documents import JSON
from shardwrite.journal.process import Process
from shardwrite.options import DURABILITIES
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.plan.partition import Cuts
from shardwrite.seams import Ref
from shardwrite.stores.looking import parse_json

FORMAT = 1
_SEAL = "crc32c"
_REFS = {"strategy": "write strategy", "shard_format": "shard format", "source": "source"}


class OtherVersionError(ValueError):
    """Only another version of this package goes on with what a record is about."""

    version = "another"


class EarlierVersionError(OtherVersionError):
    """A record was made by an earlier version of this package, which sealed none."""

    version = "an earlier"

    def __init__(self) -> None:
        super().__init__("it has no checksum")


class LaterFormatError(OtherVersionError):
    """A record or receipt has a format that only later versions of this package know."""

    version = "a later"

    def __init__(self, number: int, known: int) -> None:
        super().__init__(f"it has format {number}, and this version knows format {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a run will write, before it has begun."""

    digest: str  # digest of the plan. That of a stream or a salvage is a random name.
    # ``"r+"`` if the run changes an array that exists, otherwise as in
    # :func:`shardwrite.to_sharded_zarr`
    mode: str
    identity: Identity  # what the digest covers
    # Shards that the run writes; None for all shards of the array
    shards_from: ShardWindow | None = None
    # For processes that read the plan back: the write strategy, the shard format, and the source
    # if any process can open it
    strategy: Ref | None = None
    shard_format: Ref | None = None
    source: Ref | None = None
    # Groups and blocks of the plan, for processes that write parts of it
    partition: Cuts | None = None
    # Whether encoded chunks of another array are copied. Processes that write parts copy them, too.
    copies: bool = False
    # Figures of the plan, which are only shown to people, and fields that this version does not
    # know
    figures: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def makes_array(self) -> bool:
        """Whether the run makes the array, rather than updating or repairing an existing one."""
        return self.mode != "r+"

    @property
    def layout(self) -> str | None:
        """Scheme of the plan's tasks: ``fused``, ``direct`` or ``staged``."""
        found = self.figures.get("layout")
        return found if isinstance(found, str) else None

    def refs(self) -> dict[str, Ref]:
        """What other processes open, by the names of the fields."""
        found = {name: getattr(self, name) for name in _REFS}
        return {name: ref for name, ref in found.items() if ref is not None}

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields as values that JSON can hold, in the order of the file."""
        own: dict[str, JSON] = {"digest": self.digest, "mode": self.mode}
        found: dict[str, JSON] = {"identity": self.identity.to_dict()}
        found |= self.figures
        if self.shards_from is not None:
            found["shards_from"] = [list(corner) for corner in self.shards_from]
        if self.copies:
            found["copies"] = True
        for name, ref in self.refs().items():
            found[name] = ref.to_dict()
        if self.partition is None:  # a stream or a salvage, which have no plan
            return {**own, **found}
        return {"format": FORMAT, **found, "partition": self.partition.to_dict(), **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Intent):
    """What a run writes, and by whom and how it was begun.

    The fields of `Intent` come first.
    """

    run: str  # name of the run
    replaces: bool  # whether an array stood there, which the run replaces
    durability: str  # durability level of the run
    begun_by: Process | None = None  # the process that began the run
    document_crc32c: int  # of the metadata document with which the run began
    array: str  # name of the array's directory

    @classmethod
    def begun(
        cls,
        intent: Intent,
        *,
        replaces: bool,
        durability: str,
        begun_by: Process,
        document_crc32c: int,
        array: str,
    ) -> RunRecord:
        """Make the record of a run that begins, under a name of its own."""
        return cls(
            **{each.name: getattr(intent, each.name) for each in fields(Intent)},
            run=uuid.uuid4().hex[:12],
            replaces=replaces,
            durability=durability,
            begun_by=begun_by,
            document_crc32c=document_crc32c,
            array=array,
        )

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields and a checksum of them, in the order of the file."""
        found: dict[str, JSON] = {
            **Intent.to_dict(self),
            "run": self.run,
            "replaces": self.replaces,
            "durability": self.durability,
            "begun_by": None if self.begun_by is None else self.begun_by.to_dict(),
            "document_crc32c": self.document_crc32c,
            "array": self.array,
        }
        return sealed({name: value for name, value in found.items() if value is not None})

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
            raise ValueError("it is no object")  # noqa: TRY004 (the file is wrong, not its type)
        _check_format(found.get("format", FORMAT))
        if _SEAL in found and found[_SEAL] != _checksum(found):
            raise ValueError("it does not match its checksum")
        record = cls._parsed(found)
        if (record.mode == "r+") != (record.identity.mode == "r+") or (
            is_update and record.mode != "r+"
        ):
            raise ValueError("it says in two ways how it writes")
        if is_update and record.shards_from is None:
            raise ValueError("it does not say which shards it writes")
        if is_update and record.identity.region is None:
            raise ValueError("it does not say which region it writes")
        return record

    @classmethod
    def _parsed(cls, found: Mapping[str, JSON]) -> RunRecord:
        run, digest, identity = found.get("run"), found.get("digest"), found.get("identity")
        if not (
            isinstance(run, str)
            and run.isalnum()
            and isinstance(digest, str)
            and isinstance(identity, dict)
        ):
            raise ValueError("it does not name its run")
        mode, durability, replaces = (
            found.get(name) for name in ("mode", "durability", "replaces")
        )
        if mode not in ("w-", "w", "r+") or durability not in DURABILITIES:
            raise ValueError("it does not say how it writes")
        if not isinstance(replaces, bool) or (replaces and mode == "r+"):
            raise ValueError("it does not say what it replaces")
        begun_by, window = found.get("begun_by"), found.get("shards_from")
        refs = {
            name: Ref.from_json(kind, found[name]) for name, kind in _REFS.items() if name in found
        }
        copies = found.get("copies", False)
        if not isinstance(copies, bool):
            raise ValueError("it does not say whether it copies chunks")  # noqa: TRY004 (of the file)
        if _SEAL not in found:
            raise EarlierVersionError
        document, array = found.get("document_crc32c"), found.get("array")
        if not isinstance(document, int) or not isinstance(array, str):
            # The file is wrong, not the type of an argument.
            raise ValueError("it does not say for which array it was begun")  # noqa: TRY004
        return cls(
            digest=digest,
            mode=str(mode),
            identity=Identity.from_dict(identity),
            shards_from=None if window is None else ShardWindow.from_json(window),
            **refs,
            partition=_cuts_in(found),
            copies=copies,
            figures={name: value for name, value in found.items() if name not in _TYPED},
            run=run,
            replaces=replaces,
            durability=str(durability),
            begun_by=Process.from_dict(begun_by) if isinstance(begun_by, dict) else None,
            document_crc32c=document,
            array=array,
        )


_TYPED = {each.name for each in fields(RunRecord)} - {"figures"} | {"format", _SEAL}


def _check_format(found: JSON) -> None:
    """Refuse a format that this version does not know."""
    if type(found) is not int or found < 1:
        raise ValueError("its format is no number")
    if found > FORMAT:
        raise LaterFormatError(found, FORMAT)


def _cuts_in(found: Mapping[str, JSON]) -> Cuts | None:
    """Cuts of the tasks, or None where there are none that can be used.

    A run goes on without them. Only processes that write parts need them, and refuse to work then.
    """
    try:
        return Cuts.from_json(found.get("partition"))
    except ValueError:
        return None


def fields_in_lines(facts: Mapping[str, JSON]) -> bytes:
    """JSON text of an object, with a line for each field.

    Python has an encoder in C only for text without `indent`.
    """
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def sealed(facts: Mapping[str, JSON]) -> dict[str, JSON]:
    """Add a crc32c of the facts to the facts."""
    return {**facts, _SEAL: _checksum(facts)}


def _checksum(facts: Mapping[str, JSON]) -> int:
    return crc32c(
        json.dumps(
            {name: value for name, value in facts.items() if name != _SEAL}, sort_keys=True
        ).encode()
    )
