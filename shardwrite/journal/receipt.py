"""What stays of a run that succeeded: a small file among the array's own, so that it goes where the array goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import JournalError, StoreError
from shardwrite.journal.ledger import from_runs
from shardwrite.target import RECEIPT_NAME, Target

__all__ = ["Receipt", "read_receipt"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """That an array was written whole.

    Attributes
    ----------
    digest : str
        Of the plan.
    run : str
        Name of the run.
    identity : dict
        What the digest names: metadata, strategy, source.
    durability : str
        Level at which every shard was committed.
    finished : str
        When, in UTC, ISO 8601.
    version : str
        Of shardwrite.
    result : dict
        The result's fields.
    empty : list of [int, int]
        Shards that are empty by design and have no object: first rank and count of each run of neighbours.
    """

    digest: str
    run: str
    identity: dict[str, Any]
    durability: str
    finished: str
    version: str
    result: dict[str, Any]
    empty: list[list[int]]

    def encode(self) -> bytes:
        """As a file."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, n_shards: int | None = None) -> Receipt:
        """From a file.

        Raises
        ------
        ValueError
            If it is none.
        """
        found = json.loads(data)
        if not isinstance(found, Mapping) or found.get("format") != 1:
            raise ValueError("not a receipt of format 1")
        texts = {name: found[name] for name in ("digest", "run", "durability", "finished", "version")}
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("fields that are no text")
        if not isinstance(found["identity"], dict) or not isinstance(found["result"], dict):
            raise ValueError("fields that are no objects")  # noqa: TRY004 (the file is wrong, not its type)
        if n_shards is not None:
            from_runs(found["empty"], n_shards)
        return cls(**texts, identity=found["identity"], result=found["result"], empty=found["empty"])

    def empty_ranks(self, n_shards: int) -> npt.NDArray[np.int64]:
        """Ranks of the shards that are empty by design.

        Raises
        ------
        ValueError
            If they do not fit a grid of `n_shards`.
        """
        return from_runs(self.empty, n_shards)


def read_receipt(target: Target) -> Receipt | None:
    """The receipt of an array, or None.

    Raises
    ------
    JournalError
        If what stands there is no receipt.
    StoreError
        If it cannot be read.
    """
    path = target.path / RECEIPT_NAME
    try:
        return Receipt.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{path} is no receipt ({error}); remove it, and verify --deep instead"
        raise JournalError(message, path=str(path)) from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", key=str(path), errno=error.errno) from error
