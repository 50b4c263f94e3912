"""What is measured: array, shards, inner chunks, codec, dask chunks and scheduler of each case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["CASES", "CODECS", "SCALES", "Case", "Codec", "Scale", "select"]

Scale = Literal["small", "default", "large"]
Content = Literal["dense", "sparse"]
Shape = tuple[int, ...]
SCALES: tuple[Scale, ...] = ("small", "default", "large")

_VOLUME: dict[Scale, Shape] = {
    "small": (256, 512, 512),
    "default": (512, 1024, 1024),
    "large": (1024, 1024, 2048),
}
_PLANE: dict[Scale, Shape] = {
    "small": (3200, 5120),
    "default": (12800, 12800),
    "large": (25600, 25600),
}
_SHARD: Shape = (256, 256, 256)


@dataclass(frozen=True)
class Codec:
    """A compressor in the terms of Zarr v3 metadata, with the same settings for every contestant.

    Parameters
    ----------
    name : str
        Name in the metadata; empty for no compression.
    configuration : dict
        Its configuration in the metadata.
    """

    name: str
    configuration: dict[str, Any]

    def metadata(self) -> list[dict[str, Any]]:
        """What follows the `bytes` codec in the metadata."""
        return [{"name": self.name, "configuration": dict(self.configuration)}] if self.name else []


CODECS = {
    "zstd": Codec("zstd", {"level": 3, "checksum": False}),
    "lz4": Codec(
        "blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}
    ),
    "none": Codec("", {}),
    "gzip": Codec("gzip", {"level": 1}),
}


@dataclass(frozen=True)
class Case:
    """One thing to write.

    Parameters
    ----------
    name : str
        What `--cases` calls it.
    shapes : dict
        Array shape at each scale.
    shards, chunks : tuple of int
        Shape of shards and inner chunks.
    dask_chunks : tuple of int
        Chunks of the dask array; -1 for the whole axis.
    codec : str
        A key of `CODECS`.
    content : {"dense", "sparse"}
        Which source array.
    workers : int
        Worker processes of a `distributed` cluster; 0 for the threaded scheduler.
    """

    name: str
    shapes: dict[Scale, Shape]
    shards: Shape
    chunks: Shape
    dask_chunks: Shape
    codec: str = "zstd"
    content: Content = "dense"
    workers: int = 0

    @property
    def compressor(self) -> Codec:
        """The codec itself."""
        return CODECS[self.codec]

    @property
    def whole_shards(self) -> bool:
        """Whether every dask chunk consists of whole shards."""
        return all(d > 0 and d % s == 0 for d, s in zip(self.dask_chunks, self.shards, strict=True))

    def describe(self) -> str:
        """One line for reports."""

        def text(shape: Shape) -> str:
            return " x ".join("all" if n < 0 else str(n) for n in shape)

        extra = f", {self.workers} worker processes" if self.workers else ""
        parts = f"shards {text(self.shards)}, inner {text(self.chunks)}, dask chunks {text(self.dask_chunks)}"
        return f"{parts}, {self.codec}, {self.content}{extra}"


def _volume(
    name: str,
    *,
    chunks: int,
    dask_chunks: Shape = _SHARD,
    codec: str = "zstd",
    content: Content = "dense",
    workers: int = 0,
) -> Case:
    return Case(name, _VOLUME, _SHARD, (chunks,) * 3, dask_chunks, codec, content, workers)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(
            _volume(f"{codec}-{inner}", chunks=inner, codec=codec)
            for codec in CODECS
            for inner in (64, 32, 16)
        ),
        _volume("small-blocks", chunks=32, dask_chunks=(64, 64, 64)),
        _volume("slabs", chunks=64, dask_chunks=(1, -1, -1)),
        _volume("unaligned", chunks=64, dask_chunks=(100, 110, 90)),
        _volume("sparse", chunks=32, content="sparse"),
        Case("many-shards", _PLANE, (64, 128), (32, 64), (640, 1280)),
        _volume("two-workers", chunks=32, workers=2),
    )
}


def select(names: Iterable[str] | None) -> list[Case]:
    """Cases by name, all of them by default.

    Parameters
    ----------
    names : iterable of str, optional
        Names; one that ends in `*` stands for all that begin so.

    Returns
    -------
    list of Case
        In the order of the table.

    Raises
    ------
    ValueError
        If a name matches nothing.
    """
    if names is None:
        return list(CASES.values())
    chosen: set[str] = set()
    for name in names:
        found = {
            key
            for key in CASES
            if key == name or (name.endswith("*") and key.startswith(name[:-1]))
        }
        if not found:
            raise ValueError(f"no case is called {name!r}; there are {', '.join(CASES)}")
        chosen |= found
    return [case for key, case in CASES.items() if key in chosen]
