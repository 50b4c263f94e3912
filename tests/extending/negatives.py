"""A toy wing, as an installed package would bring it: pictures, a format of shards, an operation
and a command. Nothing of the core changes for it; `WING` is what its metadata would say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import shardwrite
from shardwrite.format.sharding import ShardingIndexed
from shardwrite.grid import Box
from shardwrite.sources import Format, as_dask, open_source
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import identify

WING = """
[shardwrite.wings]
source.pgm = negatives:PGM
shard-format.index-first = negatives:IndexFirst
operation.negative = negatives:negative
command.negative = negatives:command
"""
PGM = Format(__name__, suffixes=(".pgm",))


@dataclass(frozen=True, slots=True)
class PictureSource(RegionSource):
    """A grey picture of one byte for each pixel."""

    begin: int  # where the pixels begin

    def _read(self, box: Box) -> npt.NDArray[Any]:
        pixels = np.memmap(self.path, "u1", "r", self.begin, self.shape)
        return np.array(pixels[box.slices])


def open_(request: Request) -> Source:
    """Open a picture, which begins with ``P5``, its width, height and largest value in lines."""
    path = os.path.abspath(request.path)
    with open(path, "rb") as file:
        kind, width, height, _ = (file.readline() for _ in range(4))
        begin = file.tell()
    if kind != b"P5\n":
        raise ValueError("it is no grey picture")
    shape = (int(height), int(width))
    return PictureSource(path, shape, np.dtype("u1"), shape, identify("pgm", path), begin=begin)


class IndexFirst(ShardingIndexed):
    """Shards as the specification has them, under a name that no other reader knows."""

    name = "index-first"


def negative(path: str, store: Any, **keywords: Any) -> Any:
    """Write a picture as an array, with black and white exchanged."""
    pixels = 255 - as_dask(open_source(path), (16, -1))
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return shardwrite.to_sharded_zarr(
        pixels, store, shard_format=IndexFirst(codecs, "start"), **keywords
    )


@click.command("negative")
@click.argument("src")
@click.argument("dst")
def command(src: str, dst: str) -> None:
    """Write the picture SRC as the array DST, with black and white exchanged."""
    click.echo(negative(src, dst, shards=16, chunks=4).n_shards)
