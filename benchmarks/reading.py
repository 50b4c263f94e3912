"""How fast an array is read: ``python -m benchmarks.reading``.

Inner chunks at random, planes along each axis, and the whole array; by shardwrite, tensorstore, zarr-python, also by `CachedStore`, and with the
codecs of zarrs. The array lies in a directory, on a web server of this machine that waits before each answer, or at a URL of yours
(``--url s3://bucket/x.zarr``, with the array already there). Each measurement is a fresh process, contestants in turn, and each reads
every case twice: *cold* opens the array, *warm* reads other chunks with what was kept. What is read is compared with the source. The
server counts requests and bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import http.server
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import machine, versions

__all__ = ["CASES", "CONTESTANTS", "Server", "main", "regions"]

CHUNK, SHARD = 32, 128
Index = tuple[slice, ...]
Read = Callable[[Index], npt.NDArray[Any]]


def values(n: int) -> npt.NDArray[np.uint16]:
    """A cube that compresses about as well as images do."""
    draw = np.random.default_rng(0)
    z, y, x = np.ogrid[:n, :n, :n]
    smooth = 200 * (np.sin(z / 17) + np.cos(y / 23) + np.sin(x / 13) + 3)
    return np.asarray(smooth + draw.normal(0, 8, (n, n, n)), "u2")


def regions(case: str, n: int, seed: int) -> list[Index]:
    """What is read in a case, one region after the other."""
    draw = np.random.default_rng(seed)
    if case == "chunks":
        starts = draw.integers(0, n // CHUNK, (64, 3)) * CHUNK
        return [tuple(slice(a, a + CHUNK) for a in start) for start in starts.tolist()]
    everything = [slice(0, n)] * 3
    if case == "whole":
        return [tuple(everything)]
    axis = "zyx".index(case[-1])
    planes = draw.integers(0, n, 2).tolist()
    return [tuple(slice(p, p + 1) if i == axis else s for i, s in enumerate(everything)) for p in planes]  # fmt: skip


CASES = ("chunks", "plane z", "plane x", "whole")


# ---- Contestants: each opens the array, and gives a function that reads a region


def _shardwrite(url: str) -> Read:
    import shardwrite

    return shardwrite.open_sharded(url).__getitem__


def _zarr_python(url: str) -> Read:
    import zarr

    store: Any = url
    if "://" in url:
        from shardwrite.stores.bucket_url import open_bucket

        store = open_bucket(url, is_read=True).as_zarr()  # an ObjectStore of zarr-python
    array: Any = zarr.open_array(store, mode="r")
    return lambda region: np.asarray(array[region])


def _zarrs(url: str) -> Read:
    import zarr
    import zarrs  # noqa: F401  # registers its pipeline

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return _zarr_python(url)


def _zarr_python_kept(url: str) -> Read:
    import zarr

    import shardwrite

    array: Any = zarr.open_array(shardwrite.CachedStore(url), mode="r")
    return lambda region: np.asarray(array[region])


def _tensorstore(url: str) -> Read:
    import tensorstore

    kvstore: Any = {"driver": "file", "path": url}
    if "://" in url:
        base, _, path = url.rpartition("/")
        kvstore = f"{url}/" if url.startswith("s3") else {"driver": "http", "base_url": base, "path": f"/{path}/"}  # fmt: skip
    spec = {"driver": "zarr3", "kvstore": kvstore, "context": {"cache_pool": {"total_bytes_limit": 2**26}}}  # fmt: skip
    array = tensorstore.open(spec, read=True).result()
    return lambda region: np.asarray(array[region].read().result())


CONTESTANTS: dict[str, Callable[[str], Read]] = {
    "shardwrite": _shardwrite,
    "tensorstore": _tensorstore,
    "zarr-python": _zarr_python,
    "zarr-python with CachedStore": _zarr_python_kept,
    "zarr-python with zarrs": _zarrs,
}


# ---- A web server that waits


class Server:
    """Serves a directory by ranges and ETags, after a pause, and counts what it is asked for.

    Its files must not change.

    Parameters
    ----------
    directory : Path
        What it serves.
    seconds : float
        Pause before each answer.
    """

    def __init__(self, directory: Path, seconds: float) -> None:
        self.n_requests = self.n_bytes = 0
        lock, served = threading.Lock(), self

        @functools.cache  # so that the server takes little of the processor, which all share
        def held(path: str) -> tuple[bytes | None, str]:
            file = directory / path.lstrip("/")
            data = file.read_bytes() if file.is_file() else None
            return data, f'"{hashlib.md5(data or b"").hexdigest()}"'

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(is_head=True)

            def do_GET(self) -> None:
                self._answer(is_head=False)

            def _answer(self, *, is_head: bool) -> None:
                time.sleep(seconds)
                data, tag = held(self.path)
                part, status = data or b"", 200 if data is not None else 404
                wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
                first = 0
                if data is not None and wanted:
                    start, end = wanted.groups()
                    first = int(start) if start else max(0, len(data) - int(end))
                    stop = min(len(data), int(end) + 1) if start and end else len(data)
                    part, status = data[first:stop], 206
                with lock:
                    served.n_requests += 1
                    served.n_bytes += 0 if is_head else len(part)
                self.send_response(status)
                if status == 206 and data is not None:
                    last = first + len(part) - 1
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
                if data is not None:
                    self.send_header("ETag", tag)
                self.send_header("Content-Length", str(len(part)))
                self.send_header("Last-Modified", "Sun, 29 Nov 2026 12:00:00 GMT")
                self.end_headers()
                if not is_head:
                    self.wfile.write(part)

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def counted(self) -> tuple[int, int]:
        """Requests and bytes since the last call."""
        counts, self.n_requests, self.n_bytes = (self.n_requests, self.n_bytes), 0, 0
        return counts

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def _places(options: argparse.Namespace, directory: Path) -> Iterator[dict[str, tuple[str, Server | None]]]:  # fmt: skip
    server = Server(directory, options.latency / 1000)
    places: dict[str, tuple[str, Server | None]] = {"directory": (str(directory / "x"), None)}
    if options.url:
        places["url"] = options.url, None
    places[f"http, {options.latency:g} ms"] = f"{server.url}/x", server
    try:
        yield places
    finally:
        server.close()


# ---- Measurements


def measure(contestant: str, url: str, case: str, n: int) -> dict[str, float]:
    """One contestant in one case, in this process: seconds, cold and warm, of the wall clock and of the processor."""
    expected, found = values(n), {}
    for state in ("cold", "warm"):
        wanted = regions(case, n, seed=0 if state == "cold" else 1)
        begun, used = time.perf_counter(), time.process_time()
        if state == "cold":
            read = CONTESTANTS[contestant](url)
        parts = [read(region) for region in wanted]
        found[f"{state} s"] = time.perf_counter() - begun
        found[f"{state} CPU s"] = time.process_time() - used
        for region, part in zip(wanted, parts, strict=True):
            if not np.array_equal(part, expected[region]):
                raise SystemExit(f"{contestant} has read wrong values in {case}, {region}")
    return found


def _fresh(contestant: str, url: str, case: str, n: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.reading", "--measure", contestant, url, case, "--size", str(n)]  # fmt: skip
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def run(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """All contestants in all cases and places, in turn."""
    import shardwrite

    shardwrite.to_sharded_zarr(
        values(options.size), directory / "x", shards=SHARD, chunks=CHUNK, durability="none"
    )
    rows = []
    with _places(options, directory) as places:
        for place, (url, server) in places.items():
            for case in options.cases.split(","):
                found: dict[str, list[dict[str, float]]] = {}
                for repeat in range(options.repeats):
                    names = options.contestants.split(",")
                    for name in names[:: 1 if repeat % 2 == 0 else -1]:
                        if server is not None:
                            server.counted()
                        one = _fresh(name, url, case, options.size)
                        if server is not None:
                            one["requests"], one["bytes"] = server.counted()
                        found.setdefault(name, []).append(one)
                for name, many in found.items():
                    figures = {k: statistics.median(one[k] for one in many) for k in many[0]}
                    rows.append({"place": place, "case": case, "by": name, **figures})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table of Markdown."""
    times = ["cold s", "cold CPU s", "warm s", "warm CPU s"]
    counts = ["requests", "bytes"]
    keys = ["place", "case", "by", *times, *counts]
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    for row in rows:
        texts = [str(row[key]) for key in keys[:3]]
        texts += [f"{row[key]:.4f}" if key in row else "" for key in times]
        texts += [f"{row[key]:,.0f}" if key in row else "" for key in counts]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="comma-separated")
    parser.add_argument("--size", type=int, default=256, help="length of an edge of the cube")
    parser.add_argument("--latency", type=float, default=20, help="of the web server, in ms")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--url", help="where the same array lies, to be read there, too")
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        contestant, url, case = given.measure
        print(json.dumps(measure(contestant, url, case, given.size)))
        return
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        rows = run(given, Path(directory))
        if given.json:
            facts = {"machine": machine(Path(directory)), "versions": versions(), "rows": rows}
            given.json.write_text(json.dumps(facts, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
