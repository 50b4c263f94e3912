"""Implementations of each codec side by side: ``python -m benchmarks.codecs``.

Inner chunks of the dense source are encoded by one and by two threads, implementations in turn, medians of the repeats; what each
makes is decoded by the codec of shardwrite. The size is part of the result: speed that is bought with it is none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numcodecs
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import zstandard
from isal import isal_zlib
from zlib_ng import zlib_ng

from benchmarks.cases import CASES, CODECS
from benchmarks.data import ensure_source
from benchmarks.measure import machine, versions
from shardwrite.codecs.stages import build_stage

__all__ = ["IMPLEMENTATIONS", "main", "measure"]

Tiles = Sequence[npt.NDArray[np.uint8]]
Encode = Callable[[Tiles], Sequence[Any]]


def _gzip(library: Any, level: int) -> Encode:
    return lambda tiles: [library.compress(tile, level, 31) for tile in tiles]


def _each(codec: Any) -> Encode:
    return lambda tiles: [codec.encode(tile) for tile in tiles]


def _zstandard(level: int) -> Encode:
    def encode(tiles: Tiles) -> Sequence[Any]:
        context: Any = zstandard.ZstdCompressor(level=level, write_checksum=False)
        return [context.compress(tile) for tile in tiles]

    return encode


def _zstandard_together(level: int) -> Encode:
    def encode(tiles: Tiles) -> Sequence[Any]:
        context: Any = zstandard.ZstdCompressor(level=level, write_checksum=False)
        return list(context.multi_compress_to_buffer(list(tiles)))

    return encode


def _blosc(settings: dict[str, Any]) -> Encode:
    compress: Any = numcodecs.blosc.compress
    arguments = (
        settings["cname"].encode(),
        settings["clevel"],
        1,
        settings["blocksize"],
        settings["typesize"],
    )
    return lambda tiles: [compress(tile, *arguments) for tile in tiles]


def _taken(name: str, configuration: dict[str, Any]) -> Encode:
    stage = build_stage(name, configuration, 2)
    assert stage is not None
    return stage.encode


def _implementations() -> dict[str, dict[str, Encode]]:
    blosc = CODECS["lz4"].configuration
    numcodecs_blosc = numcodecs.Blosc(cname="lz4", clevel=blosc["clevel"], shuffle=1, typesize=2)
    found = {
        "zstd, level 3": {
            "numcodecs": _each(numcodecs.Zstd(level=3)),
            "zstandard, context kept": _zstandard(3),
            "zstandard, many in one call": _zstandard_together(3),
            "**taken**": _taken("zstd", {"level": 3, "checksum": False}),
        },
        "blosc lz4": {
            "numcodecs.Blosc": _each(numcodecs_blosc),
            "numcodecs.blosc.compress": _blosc(blosc),
            "**taken**": _taken("blosc", blosc),
        },
    }
    for level in (1, 3, 5, 6, 9):
        found[f"gzip, level {level}"] = {
            "zlib": _gzip(zlib, level),
            **({"ISA-L": _gzip(isal_zlib, level)} if level <= 3 else {}),
            "zlib-ng": _gzip(zlib_ng, level),
            "**taken**": _taken("gzip", {"level": level}),
        }
    return found


IMPLEMENTATIONS = _implementations()


def measure(encode: Encode, tiles: Tiles, n_threads: int) -> tuple[float, int]:
    """Seconds, and encoded bytes, of some inner chunks shared out among threads.

    Parameters
    ----------
    encode : callable
        The implementation.
    tiles : sequence of numpy.ndarray of uint8
        Inner chunks.
    n_threads : int
        How many.
    """
    shares = [tiles[number::n_threads] for number in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(len, shares))  # threads begin
        begun = time.perf_counter()
        encoded = list(pool.map(encode, shares))
        seconds = time.perf_counter() - begun
    return seconds, sum(len(memoryview(part).cast("B")) for share in encoded for part in share)


def _tiles(directory: Path, side: int, nbytes: int) -> Tiles:
    source = ensure_source(CASES["zstd-64"], "small", directory)
    found: list[npt.NDArray[np.uint8]] = []
    for z in range(0, source.shape[0], side):
        for y in range(0, source.shape[1], side):
            for x in range(0, source.shape[2], side):
                found.append(
                    source[z : z + side, y : y + side, x : x + side].reshape(-1).view(np.uint8)
                )
                if len(found) * found[0].nbytes >= nbytes:
                    return found
    return found


def _check(codec: str, encode: Encode, tile: npt.NDArray[np.uint8]) -> None:
    stage = build_stage(
        codec.split(",")[0].split()[0], {"cname": "lz4"} if codec.startswith("blosc") else {}, 2
    )
    assert stage is not None
    decoded = stage.decode(bytes(memoryview(encode([tile])[0])), tile.nbytes)
    assert bytes(memoryview(decoded)) == tile.tobytes(), f"{codec} is decoded to something else"


def run(directory: Path, sides: Sequence[int], nbytes: int, repeats: int) -> list[dict[str, Any]]:
    """All implementations.

    Parameters
    ----------
    directory : Path
        Where the source is kept.
    sides : sequence of int
        Of inner chunks.
    nbytes : int
        To encode in each measurement.
    repeats : int
        How often.
    """
    found = []
    for side in sides:
        tiles = _tiles(directory, side, nbytes)
        size = sum(tile.nbytes for tile in tiles)
        for codec, implementations in IMPLEMENTATIONS.items():
            seconds: dict[tuple[str, int], list[float]] = {}
            encoded: dict[str, int] = {}
            for encode in implementations.values():
                _check(codec, encode, tiles[0])
            for _ in range(repeats):
                for name, encode in implementations.items():
                    for n_threads in (1, 2):
                        took, encoded[name] = measure(encode, tiles, n_threads)
                        seconds.setdefault((name, n_threads), []).append(took)
            for name in implementations:
                rates = [size / statistics.median(seconds[name, n]) / 1e6 for n in (1, 2)]
                found.append(
                    {
                        "codec": codec,
                        "side": side,
                        "by": name,
                        "mb_per_s": rates,
                        "ratio": size / encoded[name],
                    }
                )
    return found


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sides", default="64,16", help="of inner chunks of uint16, comma-separated"
    )
    parser.add_argument("--mbytes", type=int, default=8, help="to encode in each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--dir", type=Path, help="where the source is kept (default: a temporary directory)"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = run(
            given.dir or Path(scratch),
            [int(side) for side in given.sides.split(",")],
            given.mbytes * 10**6,
            given.repeats,
        )
    print(
        "| codec | inner chunk | implementation | MB/s, 1 thread | 2 threads | decoded / encoded |\n|---|---|---|---:|---:|---:|"
    )
    for row in rows:
        one, two = row["mb_per_s"]
        print(
            f"| {row['codec']} | {row['side']}³ | {row['by']} | {one:.0f} | {two:.0f} | {row['ratio']:.3f} |"
        )
    if given.json:
        facts = {"machine": machine(given.dir or Path()), "versions": versions(), "rows": rows}
        given.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
