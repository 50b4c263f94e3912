"""What every fault test judges by: values that tell where and when they belong, acknowledgements
kept elsewhere, three readers.

A value is a function of its coordinate and of the version of the array, so a stale, torn, mixed or
misplaced chunk shows. Acknowledgements go to a file outside the store, one shard a line, as reports
come in.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import dask.array as da
import numpy as np
import tensorstore as ts
import zarr

import shardwrite
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Box

sys.path.insert(0, str(Path(__file__).parents[1]))
from seams import built_at, conversion_beside, metadata_of, state_beside


def values(shape, version=0, empty=None):
    """The array of a version: uint32, never the fill value 0 but inside the box `empty` (a tuple of
    slices)."""
    linear = np.arange(np.prod(shape, dtype=np.uint64), dtype=np.uint64).reshape(shape)
    mixed = (linear * np.uint64(2654435761) + np.uint64(version) * np.uint64(97531)) & np.uint64(
        0xFFFFFFFF
    )
    found = (mixed | np.uint64(1)).astype(np.uint32)
    if empty is not None:
        found[empty] = 0
    return found


def source(shape, chunks, version=0, empty=None):
    """The same as a dask array."""
    return da.from_array(values(shape, version, empty), chunks=chunks)


class Acks:
    """Shards that were acknowledged; survives the process that wrote it.

    Parameters
    ----------
    path : path
        A file outside the store.
    """

    def __init__(self, path):
        self.path = Path(path)

    def __call__(self, report):
        """Given to `to_sharded_zarr` as `progress`."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, "".join(f"{rank}\n" for rank in report.shards).encode())
        finally:
            os.close(fd)

    def ranks(self):
        """Row-major ranks of the acknowledged shards."""
        if not self.path.exists():
            return set()
        return {int(line) for line in self.path.read_text().split("\n")[:-1]}


def shard_boxes(metadata: ArrayMetadata) -> dict[int, Box]:
    """In-bounds box of every shard by its rank."""
    grid = metadata.grid
    return {
        n: grid.shard_box(i).intersect(grid.whole) for n, i in enumerate(grid.shards_in(grid.whole))
    }


def _by_tensorstore(path, region):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return ts.open(spec).result()[region].read().result()


def _by_zarr_python(path, region):
    pipeline = {} if is_python_due() else {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
    with zarr.config.set(pipeline):
        return zarr.open_array(path, mode="r")[region]


def is_python_due():
    """Whether zarr-python reads with its own codecs, as it does one time in eight.

    Else it reads with the codecs of zarrs, which take a tenth of the time. Processes that are
    forked for one reading each begin at another number.
    """
    return (os.getpid() + next(_readings)) % 8 == 0


_readings = itertools.count()
READERS = {
    "shardwrite": lambda path, region: np.asarray(shardwrite.open_sharded(path)[region]),
    "zarr-python": _by_zarr_python,
    "tensorstore": _by_tensorstore,
}


def read_everywhere(path, metadata: ArrayMetadata) -> dict[str, np.ndarray]:
    """The whole array by three readers, from a copy that has the metadata if the array has none
    yet.

    Any reader that cannot read raises: no key may be unreadable.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "x.zarr"
        if Path(path).exists():
            shutil.copytree(path, copy)
        copy.mkdir(exist_ok=True)
        (copy / "zarr.json").write_text(metadata.text)
        whole = (slice(None),) * metadata.grid.ndim
        return {name: np.asarray(read(copy, whole)) for name, read in READERS.items()}


def check_partial(path, acked, *candidates):
    """After a fault: acknowledged shards are there; every shard is one version's, whole, or not
    there.

    Parameters
    ----------
    path : path
        The array.
    acked : set of int
        Shards that must hold the last of the candidates.
    *candidates : numpy.ndarray
        Versions that a shard may hold; the last is the one being written.

    Returns
    -------
    int
        Shards that are lost or torn is what raises; given back is how many are there.
    """
    metadata = metadata_of(path)
    n_there = 0
    for reader, found in read_everywhere(built_at(Path(path)), metadata).items():
        n_there = 0
        for rank, box in shard_boxes(metadata).items():
            shard = found[box.slices]
            wanted = candidates[-1][box.slices]
            if rank in acked:
                assert (shard == wanted).all(), (
                    f"{reader}: acknowledged shard {rank} is lost or wrong"
                )
                n_there += 1
                continue
            allowed = [c[box.slices] for c in candidates] + [np.zeros_like(wanted)]
            assert any((shard == a).all() for a in allowed), (
                f"{reader}: shard {rank} is torn or mixed"
            )
            n_there += bool((shard == wanted).all() and wanted.any())
    return n_there


def check_whole(path, wanted):
    """After a run that said success: three readers agree with the source, and nothing is left lying
    about."""
    check_values(path, wanted)
    check_tidy(path)


def check_values(path, wanted):
    """Three readers agree with the source."""
    for reader, found in read_everywhere(path, metadata_of(path)).items():
        np.testing.assert_array_equal(found, wanted, err_msg=reader)


def check_tidy(path):
    """No temporaries, no locks, no directory beside the array."""
    path = Path(path)
    left = [p for p in path.rglob("*") if p.name.endswith(".swtmp")]
    assert not left, left
    for beside in (state_beside(path), conversion_beside(path), path / "shardwrite-run"):
        assert not beside.exists(), sorted(beside.rglob("*"))


@contextlib.contextmanager
def collecting_later():
    """Leave the objects of other tests alone, because some remove a directory when they end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
