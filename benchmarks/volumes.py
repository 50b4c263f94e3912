"""Volumes of Neuroglancer precomputed for `benchmarks.precomputed`: data, writers and readers.

All writers put the same shards with the same parameters. They take regions of whole shards from an
array that lies in a file in memory. cloud-volume works in processes, as its tasks in igneous do:
each makes a shard with `make_shard`, and puts it. The others work in threads. The bare loop only has
a library encode the chunks, and writes them without an index, so that it shows what can be had.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.data import Regions

__all__ = ["CASES", "KEY", "READERS", "WRITERS", "Case", "check", "crew", "make_source"]

KEY = "4_4_40"
CHUNK = 64
RESOLUTION = (4, 4, 40)
_MOST_PER_MINISHARD_BITS = 9  # an index of 12 kB
Values = npt.NDArray[Any]
Box = tuple[slice, slice, slice]


@dataclass(frozen=True)
class Case:
    """A volume, and how it is written.

    Attributes
    ----------
    dtype : str
        Dtype of the voxels.
    encoding : str
        Encoding of the chunks, as in ``info``.
    data_encoding : {"raw", "gzip"}
        Compression of the chunks in the shards.
    kind : {"image", "segmentation"}
        Type of the volume.
    """

    dtype: str
    encoding: str
    data_encoding: str
    kind: str = "image"

    def side(self, nbytes: int) -> int:
        """Side of the cube that takes so many bytes at most, a power of two of voxels."""
        voxels = nbytes // np.dtype(self.dtype).itemsize
        return int(2 ** ((voxels.bit_length() - 1) // 3))

    def sharding(self, side: int, shard_nbytes: int) -> dict[str, Any]:
        """Parameters of shards that take so many bytes decoded."""
        chunk_nbytes = CHUNK**3 * np.dtype(self.dtype).itemsize
        n_bits = 3 * ((side // CHUNK).bit_length() - 1)
        n_low = min(n_bits, (shard_nbytes // chunk_nbytes).bit_length() - 1)
        preshift = min(n_low, _MOST_PER_MINISHARD_BITS)
        return {
            "@type": "neuroglancer_uint64_sharded_v1",
            "hash": "identity",
            "preshift_bits": preshift,
            "minishard_bits": n_low - preshift,
            "shard_bits": n_bits - n_low,
            "minishard_index_encoding": "gzip",
            "data_encoding": self.data_encoding,
        }

    def shard_shape(self, sharding: dict[str, Any]) -> tuple[int, int, int]:
        """Shape of a shard along z, y and x."""
        n_low = sharding["preshift_bits"] + sharding["minishard_bits"]
        x, y, z = ((n_low - axis + 2) // 3 for axis in range(3))
        return CHUNK << z, CHUNK << y, CHUNK << x


CASES = {
    "gzip": Case("uint8", "raw", "gzip"),
    "raw": Case("uint8", "raw", "raw"),
    "segmentation": Case("uint64", "compressed_segmentation", "gzip", "segmentation"),
    "png": Case("uint8", "png", "raw"),
    "jpeg": Case("uint8", "jpeg", "raw"),
}


def make_source(path: Path, case: Case, side: int) -> None:
    """Write the voxels to a file of numpy: an image with noise, or cells with labels.

    Parameters
    ----------
    path : Path
        The file.
    case : Case
        The volume that is written.
    side : int
        Side of the cube in voxels.
    """
    rng = np.random.default_rng(0)
    made = np.lib.format.open_memmap(path, mode="w+", dtype=case.dtype, shape=(side,) * 3)
    if case.kind == "segmentation":
        names = rng.integers(1, 2**40, (side // 32 + 2,) * 3, dtype="u8")
        at = np.arange(side)
        y, x = np.meshgrid(at, at, indexing="ij")
        for z in range(side):
            cells = (
                (z + 8 + 5 * np.sin(y / 17) + 3 * np.sin(x / 7)) // 32,
                (y + 8 + 5 * np.sin(x / 19) + 3 * np.sin(z / 5)) // 32,
                (x + 8 + 5 * np.sin(z / 23) + 3 * np.sin(y / 11)) // 32,
            )
            made[z] = names[tuple(cell.astype(int) for cell in cells)]
    else:
        coarse = rng.normal(128, 40, (side // 16 + 2,) * 2)
        for z in range(side):
            row = np.roll(coarse, z // 16, axis=0)
            smooth = np.kron(row, np.ones((16, 16)))[:side, :side]
            made[z] = np.clip(smooth + rng.normal(0, 6, (side, side)), 0, 255)
    made.flush()


@dataclass(frozen=True)
class Work:
    """One measurement.

    Attributes
    ----------
    case : Case
        The volume that is written or read.
    source : Path
        File of the voxels, along z, y and x.
    volume : Path
        Directory of the volume.
    sharding : dict
        Parameters of its shards.
    threads : int
        Number of threads, or of processes.
    """

    case: Case
    source: Path
    volume: Path
    sharding: dict[str, Any]
    threads: int

    @property
    def values(self) -> Values:
        """The voxels, along z, y and x."""
        found: Values = np.load(self.source, mmap_mode="r")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Size along z, y and x."""
        return self.values.shape

    def shards(self) -> list[Box]:
        """Box of each shard."""
        return self.boxes(self.case.shard_shape(self.sharding))

    def boxes(self, shape: tuple[int, ...]) -> list[Box]:
        """Boxes of a shape, which fill the volume."""
        axes = (
            [slice(a, min(a + s, n)) for a in range(0, n, s)]
            for s, n in zip(shape, self.shape, strict=True)
        )
        return [(z, y, x) for z, y, x in itertools.product(*axes)]

    @property
    def info(self) -> dict[str, Any]:
        """Document of the volume."""
        scale: dict[str, Any] = {
            "key": KEY,
            "size": list(self.shape[::-1]),
            "resolution": list(RESOLUTION),
            "voxel_offset": [0, 0, 0],
            "chunk_sizes": [[CHUNK] * 3],
            "encoding": self.case.encoding,
            "sharding": self.sharding,
        }
        if self.case.encoding == "compressed_segmentation":
            scale["compressed_segmentation_block_size"] = [8, 8, 8]
        if self.case.encoding == "jpeg":
            scale["jpeg_quality"] = 75
        return {
            "@type": "neuroglancer_multiscale_volume",
            "type": self.case.kind,
            "data_type": self.case.dtype,
            "num_channels": 1,
            "scales": [scale],
        }


def _write_shardwrite(work: Work, pool: Any) -> None:  # noqa: ARG001
    import dask
    import dask.array as da

    import shardwrite

    from_array: Any = da.from_array
    shape = work.case.shard_shape(work.sharding)
    x = from_array(Regions(work.values), chunks=shape, name=False, lock=False)
    with dask.config.set(scheduler="threads", num_workers=work.threads):
        shardwrite.to_precomputed(
            x,
            work.volume,
            axes="zyx",
            resolution=RESOLUTION,
            type=work.case.kind,
            encoding=None if work.case.encoding == "raw" else work.case.encoding,
            sharding=work.sharding,
            durability="none",
        )


def _open_tensorstore(work: Work, *, create: bool) -> Any:
    import tensorstore as ts

    spec: dict[str, Any] = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{work.volume}/"},
        "context": {
            "data_copy_concurrency": {"limit": work.threads},
            "file_io_sync": False,
            "cache_pool": {"total_bytes_limit": 0},
        },
    }
    if create:
        info = work.info
        (scale,) = info["scales"]
        scale["chunk_size"] = scale.pop("chunk_sizes")[0]
        known = ("type", "data_type", "num_channels")
        spec |= {
            "multiscale_metadata": {name: info[name] for name in known},
            "scale_metadata": scale,
            "create": True,
        }
    return ts.open(spec).result()


def _write_tensorstore(work: Work, pool: Any) -> None:  # noqa: ARG001
    import tensorstore as ts

    values, target = work.values, _open_tensorstore(work, create=True)

    def put(box: Box) -> None:
        transaction = ts.Transaction()
        region = (*box[::-1], 0)
        target.with_transaction(transaction)[region].write(values[box].T).result()
        transaction.commit_async().result()

    with ThreadPoolExecutor(work.threads) as threads:
        for _ in threads.map(put, work.shards()):
            pass


def _open_cloud_volume(work: Work) -> Any:
    cloudvolume: Any = importlib.import_module("cloudvolume")
    return cloudvolume.CloudVolume(
        f"file://{work.volume}", progress=False, fill_missing=True, bounded=True, mip=0
    )


def _shard_of_cloud_volume(work: Work, box: Box) -> None:
    """Make one shard, and put it. This runs in a process of its own."""
    cloudfiles: Any = importlib.import_module("cloudfiles")
    cloudvolume: Any = importlib.import_module("cloudvolume")
    volume = _open_cloud_volume(work)
    starts, stops = ([getattr(s, name) for s in box[::-1]] for name in ("start", "stop"))
    values = work.values[box].T[..., np.newaxis]
    name, shard = volume.image.make_shard(values, cloudvolume.Bbox(starts, stops), 0)
    cloudfiles.CloudFiles(f"file://{work.volume / KEY}", progress=False).put(name, shard)


def _write_cloud_volume(work: Work, pool: Pool) -> None:
    work.volume.mkdir(parents=True)
    (work.volume / "info").write_text(json.dumps(work.info))
    for _ in pool.imap_unordered(partial(_shard_of_cloud_volume, work), work.shards()):
        pass


def _encoder(case: Case) -> Callable[[Values], bytes]:
    """Function that encodes a chunk by a library, and does nothing else."""
    isal: Any = importlib.import_module("isal.igzip")
    if case.encoding == "raw":
        if case.data_encoding == "raw":
            return lambda chunk: chunk.tobytes()
        return lambda chunk: bytes(isal.compress(chunk.tobytes()))
    if case.encoding == "compressed_segmentation":
        package: Any = importlib.import_module("compressed_segmentation")
        return lambda chunk: bytes(
            isal.compress(package.compress(np.array(chunk).T, (8, 8, 8), order="F"))
        )
    if case.encoding == "jpeg":
        jpeg: Any = importlib.import_module("simplejpeg")
        return lambda chunk: bytes(
            jpeg.encode_jpeg(chunk.reshape(-1, CHUNK, 1), 75, "GRAY", "Gray", False)
        )
    image: Any = importlib.import_module("PIL.Image")

    def encode(chunk: Values) -> bytes:
        file = io.BytesIO()
        made = image.fromarray(chunk.reshape(-1, CHUNK))
        made.save(file, format=case.encoding, compress_level=6)
        return file.getvalue()

    return encode


def _write_bare_loop(work: Work, pool: Any) -> None:  # noqa: ARG001
    """Encode chunks by a library, and write those of each shard into a file, without an index."""
    encode, values = _encoder(work.case), work.values
    (work.volume / KEY).mkdir(parents=True)

    def put(number: int, box: Box) -> None:
        axes = ([slice(a, a + CHUNK) for a in range(s.start, s.stop, CHUNK)] for s in box)
        chunks = [encode(values[place]) for place in itertools.product(*axes)]
        with (work.volume / KEY / f"{number}.shard").open("wb") as file:
            file.writelines(chunks)

    with ThreadPoolExecutor(work.threads) as threads:
        for _ in threads.map(put, itertools.count(), work.shards()):
            pass


Writer = Callable[[Work, Any], None]
WRITERS: dict[str, Writer] = {
    "shardwrite": _write_shardwrite,
    "tensorstore": _write_tensorstore,
    "cloud-volume": _write_cloud_volume,
    "bare loop": _write_bare_loop,
}


@contextmanager
def crew(name: str, threads: int) -> Iterator[Pool | None]:
    """Processes of a contestant, which are there before the clock starts; None for threads."""
    if name != "cloud-volume" or threads < 2:
        yield None
        return
    with multiprocessing.get_context("spawn").Pool(threads) as pool:
        yield pool


Read = Callable[[Box], Values]


def _read_shardwrite(work: Work) -> Read:
    import dask

    import shardwrite

    x = shardwrite.from_precomputed(work.volume, axes="zyx")

    def read(box: Box) -> Values:
        with dask.config.set(scheduler="synchronous"):
            return np.asarray(x[box])

    return read


def _read_opened(work: Work) -> Read:
    import shardwrite

    x = shardwrite.open_sharded(work.volume / KEY)
    return lambda box: x[box]


def _read_tensorstore(work: Work) -> Read:
    x = _open_tensorstore(work, create=False)
    return lambda box: np.asarray(x[(*box[::-1], 0)].read().result()).T


def _read_cloud_volume(work: Work) -> Read:
    x = _open_cloud_volume(work)
    return lambda box: np.asarray(x[box[::-1]])[..., 0].T


READERS: dict[str, Callable[[Work], Read]] = {
    "shardwrite": _read_opened,
    "shardwrite-dask": _read_shardwrite,
    "tensorstore": _read_tensorstore,
    "cloud-volume": _read_cloud_volume,
}


def check(work: Work) -> int:
    """Compare all voxels by tensorstore, and return the number of shards.

    Raises
    ------
    SystemExit
        If a voxel differs, or there are more or fewer shards.
    """
    found = list((work.volume / KEY).glob("*.shard"))
    if len(found) != len(work.shards()):
        raise SystemExit(f"{len(found)} shards, not {len(work.shards())}")
    reader, values = _read_tensorstore(work), work.values
    for box in work.shards():
        there, wanted = reader(box), values[box]
        is_equal = (
            np.abs(there.astype("i2") - wanted).mean() < 8
            if work.case.encoding == "jpeg"
            else np.array_equal(there, wanted)
        )
        if not is_equal:
            raise SystemExit(f"other values in {box}")
    return len(found)
