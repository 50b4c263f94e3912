"""What cloud-volume's tests of sharding import under this name, and its distribution lacks."""

from __future__ import annotations

import os
import shutil

import numpy as np
from cloudvolume import CloudVolume

CHUNK = (64, 64, 64)
LAYER = os.path.join(os.environ["SHARDWRITE_LAYERS"], "layer")


def create_layer(size, offset):
    """A volume of random bytes that is written without shards, and its values."""
    *shape, n_channels = size
    values = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    info = CloudVolume.create_new_info(
        num_channels=n_channels,
        layer_type="image",
        data_type="uint8",
        encoding="raw",
        resolution=(1, 1, 1),
        voxel_offset=offset,
        volume_size=shape,
        chunk_size=CHUNK,
    )
    volume = CloudVolume(f"file://{LAYER}", info=info)
    volume.commit_info()
    volume[:] = values
    return volume, values


def delete_layer():
    shutil.rmtree(LAYER, ignore_errors=True)
