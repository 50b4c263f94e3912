"""Parameters of the sharded format: which shard and which minishard hold a chunk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Self

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError
from shardwrite.format.precomputed.hashing import HASHES, hashed
from shardwrite.grid import ceil_div

TYPE = "neuroglancer_uint64_sharded_v1"
ENCODINGS = ("raw", "gzip")
_ID_BITS = 64
_ENTRY_NBYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingParameters:
    """How 64-bit chunk ids are spread over shards, and over minishards inside of them.

    An id is shifted by `preshift_bits` and hashed. The lowest `minishard_bits` bits of the result
    are the number of the minishard, and the next `shard_bits` bits are that of the shard.

    Parameters
    ----------
    preshift_bits : int
        Number of low bits of an id that do not count, so that neighbours share a minishard.
    hash : {"identity", "murmurhash3_x86_128"}
        The hash function.
    minishard_bits, shard_bits : int
        There are ``2**minishard_bits`` minishards in a shard, and ``2**shard_bits`` shards.
    minishard_index_encoding, data_encoding : {"raw", "gzip"}
        Encoding of the indexes of minishards, and of the chunks.

    Raises
    ------
    SpecError
        If a value is none of these, or both numbers need more than the 64 bits of an id.

    Examples
    --------
    >>> from shardwrite.format.precomputed.parameters import ShardingParameters
    >>> sharding = ShardingParameters(preshift_bits=2, minishard_bits=3, shard_bits=5)
    >>> shard, minishard = sharding.locate([0b10111010])
    >>> sharding.key_of(int(shard[0])), int(minishard[0])
    ('05.shard', 6)
    """

    preshift_bits: int = 0
    hash: str = "identity"
    minishard_bits: int = 0
    shard_bits: int = 0
    minishard_index_encoding: str = "raw"
    data_encoding: str = "raw"

    def __post_init__(self) -> None:
        for field in ("preshift_bits", "minishard_bits", "shard_bits"):
            value = getattr(self, field)
            is_number = isinstance(value, Integral) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _ID_BITS:
                remedy = f"give an integer from 0 to {_ID_BITS}"
                raise SpecError("not a number of bits", field=field, value=value, remedy=remedy)
            object.__setattr__(self, field, int(value))  # numpy's cannot be written as JSON
        for field, known in (
            ("hash", HASHES),
            ("minishard_index_encoding", ENCODINGS),
            ("data_encoding", ENCODINGS),
        ):
            value = getattr(self, field)
            if value not in known:
                remedy = f"use one of {list(known)}"
                raise SpecError("not known", field=field, value=value, remedy=remedy)
        if self.minishard_bits + self.shard_bits > _ID_BITS:
            raise SpecError(
                f"with minishard_bits={self.minishard_bits} these are more than the {_ID_BITS} "
                "bits of a hashed id",
                field="shard_bits",
                value=self.shard_bits,
                remedy=f"give at most {_ID_BITS - self.minishard_bits}",
            )

    @classmethod
    def from_dict(cls, document: object) -> Self:
        """Make parameters from the member ``sharding`` of an ``info`` document.

        Encodings that are missing are raw, as all readers have it.

        Raises
        ------
        SpecError
            If the document is not one of the format, a member is missing or unknown, or a value is
            not valid.
        """
        if not isinstance(document, Mapping):
            remedy = "give a mapping with the parameters of the format"
            raise SpecError("not a mapping", field="sharding", value=document, remedy=remedy)
        members: Document = dict(document)
        if members.pop("@type", None) != TYPE:
            value, remedy = document.get("@type"), f'give "@type": "{TYPE}"'
            raise SpecError("not the sharded format", field="@type", value=value, remedy=remedy)
        required = {"preshift_bits", "hash", "minishard_bits", "shard_bits"}
        known = required | {"minishard_index_encoding", "data_encoding"}
        if missing := sorted(required - set(members)):
            remedy = "give these members, too"
            raise SpecError("members are missing", field="sharding", value=missing, remedy=remedy)
        if unknown := sorted(map(str, set(members) - known)):
            remedy = f"use only {sorted(known)}"
            raise SpecError("unknown members", field="sharding", value=unknown, remedy=remedy)
        return cls(**members)

    def to_dict(self) -> Document:
        """Member ``sharding`` of an ``info`` document."""
        return {"@type": TYPE, **asdict(self)}

    @property
    def n_minishards(self) -> int:
        """Number of minishards in each shard."""
        return 1 << self.minishard_bits

    @property
    def shard_index_nbytes(self) -> int:
        """Size of the index at the start of each shard."""
        return _ENTRY_NBYTES << self.minishard_bits

    def covers(self, n_bits: int) -> bool:
        """Whether no bit of ids is left out, so that ids of one shard differ in low bits only.

        Parameters
        ----------
        n_bits : int
            Number of bits of the largest id.
        """
        return self.preshift_bits + self.minishard_bits + self.shard_bits >= n_bits

    def locate(self, ids: npt.ArrayLike) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Numbers of the shards and of the minishards that hold chunks.

        Parameters
        ----------
        ids : array_like of uint64, shape (n,)
            The chunk ids.

        Returns
        -------
        shards, minishards : numpy.ndarray of uint64, shape (n,)
            The numbers.
        """
        codes = hashed(_shifted(np.asarray(ids, np.uint64), self.preshift_bits), self.hash)
        shards = _low(_shifted(codes, self.minishard_bits), self.shard_bits)
        return shards, _low(codes, self.minishard_bits)

    def key_of(self, shard: int, ending: str = "shard") -> str:
        """Key of a shard: its number in hexadecimal, of a fixed width, and an ending.

        Parameters
        ----------
        shard : int
            Number of the shard.
        ending : str
            What follows the dot.
        """
        return f"{shard:0{self._n_digits}x}.{ending}"

    def shard_of(self, key: str) -> int | None:
        """Number of the shard with a key; None if no shard has this key.

        Parameters
        ----------
        key : str
            Key of an object.
        """
        match = re.fullmatch(r"([0-9a-f]+)\.shard", key)
        if match is None or len(match[1]) != max(1, self._n_digits):
            return None
        shard = int(match[1], 16)
        return shard if shard >> self.shard_bits == 0 else None

    @property
    def _n_digits(self) -> int:
        return ceil_div(self.shard_bits, 4)


def _shifted(values: npt.NDArray[np.uint64], n_bits: int) -> npt.NDArray[np.uint64]:
    """Values without their lowest bits. numpy leaves shifts by 64 undefined."""
    return values >> np.uint64(n_bits) if n_bits < _ID_BITS else np.zeros_like(values)


def _low(values: npt.NDArray[np.uint64], n_bits: int) -> npt.NDArray[np.uint64]:
    """The lowest bits of values."""
    return values & np.uint64((1 << n_bits) - 1)
