"""Filters of HDF5 as codecs of Zarr v3 that give the same bytes.

Filters are looked up by their registered numbers, before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwrite.codecs.documents import Codec

__all__ = ["Filter", "Mapped", "mapped"]

_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_BZIP2, _BLOSC, _ZSTD = 307, 32001, 32015
_NAMES = {
    4: "szip",
    5: "nbit",
    6: "scale-offset",
    32000: "lzf",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32026: "blosc2",
}
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_CHECKSUM_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a dataset.

    Attributes
    ----------
    number : int
        Its registered number.
    values : tuple of int
        Its parameters, as the file has them.
    """

    number: int
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mapped:
    """Codecs that give the same bytes as the filters of a dataset.

    Attributes
    ----------
    codecs : tuple of Codec
        Bytes-to-bytes codecs of Zarr v3, in order of encoding.
    is_checked : bool
        Whether a fletcher32 checksum follows the encoded bytes of each chunk in the file.
    why_not : str
        Why there are no such codecs; empty if there are.
    """

    codecs: tuple[Codec, ...] = ()
    is_checked: bool = False
    why_not: str = ""

    @property
    def foreign(self) -> list[str]:
        """Names of the codecs that not every reader of Zarr v3 knows."""
        names = [str(codec["name"]) for codec in self.codecs]
        return [name for name in names if name.startswith("numcodecs.")]


def mapped(filters: Sequence[Filter], itemsize: int) -> Mapped:
    """Find the codecs for the filters of a dataset.

    Parameters
    ----------
    filters : sequence of Filter
        The filters, in order of encoding.
    itemsize : int
        Size of an element, in bytes.
    """
    rest = list(filters)
    is_checked = bool(rest) and rest[-1].number == _FLETCHER32
    if is_checked:
        rest.pop()
    codecs: list[Codec] = []
    for number, one in enumerate(rest):
        found = _codec(one, itemsize)
        # numcodecs shuffles whole elements only, and a checksum before it adds four bytes.
        is_after_checksum = any(before.number == _FLETCHER32 for before in rest[:number])
        is_ragged = is_after_checksum and one.number == _SHUFFLE and _CHECKSUM_NBYTES % itemsize
        if isinstance(found, str) or is_ragged:
            return Mapped(
                why_not=found if isinstance(found, str) else "the filter shuffle after fletcher32"
            )
        codecs += found
    return Mapped(tuple(codecs), is_checked)


def _codec(one: Filter, itemsize: int) -> list[Codec] | str:
    """Codecs for one filter, or why there are none."""
    values = one.values
    if one.number == _DEFLATE:
        return [_made("numcodecs.zlib", level=min(_at(values, 0, 6), 9))]
    if one.number == _SHUFFLE:
        size = _at(values, 0, itemsize)
        return [_made("numcodecs.shuffle", elementsize=size)] if size > 1 else []
    if one.number == _FLETCHER32:
        return [_made("numcodecs.fletcher32")]
    if one.number == _BZIP2:
        return [_made("numcodecs.bz2", level=min(max(_at(values, 0, 9), 1), 9))]
    if one.number == _ZSTD:
        return [_made("zstd", level=min(_at(values, 0, 3), 22), checksum=False)]
    if one.number == _BLOSC:
        return _blosc(values, itemsize)
    return f"the filter {_NAMES.get(one.number, one.number)}, which no codec of Zarr v3 equals"


def _blosc(values: Sequence[int], itemsize: int) -> list[Codec] | str:
    """The codec for the filter blosc, of which the last four parameters may be missing."""
    level, shuffle, compressor = _at(values, 4, 5), _at(values, 5, 1), _at(values, 6, 0)
    if shuffle >= len(_BLOSC_SHUFFLES) or compressor >= len(_BLOSC_COMPRESSORS):
        return "a parameter of the filter blosc that is not known"
    if _BLOSC_COMPRESSORS[compressor] == "snappy":
        return "the compressor snappy of the filter blosc, which few readers have"
    size = _at(values, 2, itemsize)
    return [
        _made(
            "blosc",
            typesize=size if 0 < size < 256 else 1,
            cname=_BLOSC_COMPRESSORS[compressor],
            clevel=min(level, 9),
            shuffle=_BLOSC_SHUFFLES[shuffle],
            blocksize=0,
        )
    ]


def _at(values: Sequence[int], place: int, default: int) -> int:
    """A parameter of a filter, or its default where the file leaves it out."""
    return int(values[place]) if place < len(values) else default


def _made(name: str, **configuration: int | str | bool) -> Codec:
    return {"name": name, "configuration": configuration}
