"""One measurement in this process: `python -m benchmarks.one CASE CONTESTANT ...`, started by `side_by_side`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.cases import CASES, SCALES, Case
from benchmarks.checks import CheckError, check_data, check_layout
from benchmarks.contestants import CONTESTANTS, expected_bytes, scheduler
from benchmarks.data import DTYPE, Source, ensure_source
from benchmarks.measure import PeakMemory, tree_size

__all__ = ["Rehearsal", "main", "measure_one"]


class Rehearsal:
    """A small source that makes every part of a writer load before the clock starts."""

    def __init__(self, case: Case) -> None:
        self.shape = tuple(
            d if d > s else s for d, s in zip(case.dask_chunks, case.chunks, strict=True)
        )
        self.shape = tuple(min(n, 2 * s) for n, s in zip(self.shape, case.shards, strict=True))
        self.dtype = DTYPE
        self.ndim = len(self.shape)

    def __getitem__(self, index: Any) -> npt.NDArray[np.uint16]:
        block: npt.NDArray[np.uint16] = np.ones(self.shape, dtype=DTYPE)[index].copy()
        return block


def measure_one(
    case: Case,
    name: str,
    source: Source,
    directory: Path,
    *,
    threads: int,
    full_check: bool,
    cold: bool = False,
) -> dict[str, Any]:
    """Write once, then check what was written.

    Parameters
    ----------
    case : Case
        What to write.
    name : str
        Who writes it.
    source : Source
        The data.
    directory : Path
        Where to; outputs are deleted afterwards.
    threads : int
        Threads in use.
    full_check : bool
        Whether everything is read back.
    cold : bool
        Whether nothing is written before, and the source is not in the page cache.

    Returns
    -------
    dict
        `status` "ok" with the figures, or "FAIL" with the `reason`.
    """
    contestant = CONTESTANTS[name]
    target, rehearsal = directory / "array.zarr", directory / "rehearsal.zarr"
    with scheduler(contestant, case, threads, directory / "workers") as workers:
        if not cold:
            contestant.write(Rehearsal(case), case, rehearsal, threads)
            shutil.rmtree(rehearsal)
            source.warm_up()
        gc.collect()  # of what was imported; else it falls on some contestants while the clock runs
        os.sync()
        if cold:
            source.cool_down()
        time.sleep(0.2)
        with PeakMemory(workers) as memory:
            start = time.perf_counter()
            contestant.write(source, case, target, threads)
            seconds = time.perf_counter() - start
        encoded = tree_size(target)
        expected = (
            expected_bytes(source, case, source.nbytes / encoded, contestant.strategy)
            if name.startswith("shardwrite")
            else None
        )
    result: dict[str, Any] = {
        "status": "ok",
        "seconds": seconds,
        "decoded_bytes": source.nbytes,
        "encoded_bytes": encoded,
        "peak_anonymous_bytes": memory.above_idle,
        "expected_anonymous_bytes": expected,
        "baseline_anonymous_bytes": memory.baseline,
        "memory_samples": memory.samples,
        "load": os.getloadavg()[0],
    }
    try:
        result |= check_layout(source, case, target)
        result["elements_compared"] = check_data(source, case, target, everything=full_check)
    except CheckError as error:
        return {"status": "FAIL", "reason": str(error)}
    return result


def main() -> None:
    """Measure as the command line says and write the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one", description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("--scale", choices=SCALES, default="default")
    parser.add_argument("--sources", type=Path, required=True, help="where source arrays are kept")
    parser.add_argument("--dir", type=Path, required=True, help="an empty directory to write in")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--full-check", action="store_true", help="read everything back")
    parser.add_argument("--cold", action="store_true", help="measure the first write")
    parser.add_argument("--result", type=Path, required=True, help="JSON file for the result")
    options = parser.parse_args()
    case = CASES[options.case]
    result: dict[str, Any]
    try:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
        source = ensure_source(case, options.scale, options.sources)
        result = measure_one(
            case,
            options.contestant,
            source,
            options.dir,
            threads=options.threads,
            full_check=options.full_check,
            cold=options.cold,
        )
    except Exception as error:
        result = {
            "status": "FAIL",
            "reason": f"{type(error).__name__}: {error}".splitlines()[0],
            "trace": traceback.format_exc(),
        }
    options.result.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
