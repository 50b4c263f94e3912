"""Arrays whose shards are whole HDF5 files of others, as older versions made them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

import shardwrite
from shardwrite.format.index import ShardIndex
from shardwrite.grid import ravel


def make_shards(files, path, *, dataset, index="end"):
    """Make an array of files along the first axis. Each shard is a whole file, with an index."""
    import h5py

    how = shardwrite.Hdf5(index=index, dataset=dataset)
    shardwrite.adopt(files, path, dataset=dataset, strategy=how)
    metadata = shardwrite.open_sharded(path).metadata
    grid = metadata.grid
    for number, file in enumerate(files):
        offsets, nbytes = np.zeros((2, grid.n_chunks_per_shard), np.int64) - [[0], [1]]
        with h5py.File(file) as opened:
            node, block_nbytes = opened[dataset].id, opened.userblock_size
            for chunk in map(node.get_chunk_info, range(node.get_num_chunks())):
                at = [a // c for a, c in zip(chunk.chunk_offset, grid.chunks, strict=True)]
                rank = ravel(at, grid.chunks_per_shard)
                offsets[rank], nbytes[rank] = chunk.byte_offset, chunk.size
        data = bytearray(Path(file).read_bytes())
        seal = metadata.index_codec.seal(ShardIndex.build(offsets, nbytes))
        data[: len(seal.prefix)] = seal.prefix
        if seal.suffix:
            end = len(data) + len(seal.suffix)
            struct.pack_into("<Q", data, block_nbytes + 40, end)  # of a superblock of version 0
            data += seal.suffix
        shard = Path(path) / metadata.shard_key((number,) + (0,) * (grid.ndim - 1))
        shard.chmod(0o644)
        shard.write_bytes(data)
        shard.chmod(0o444)
        os.unlink(file)
    return Path(path)
