"""Measure what the start of a process costs: ``python -m benchmarks.start_up``.

Each measurement is a fresh process, cases in turn, everything in the page cache, and the best of nine counts. Seconds are those of
processors, user and system together. Ratios are to dask with zarr-python, which write the same small array. ``--without-bytecode``
measures processes that find no bytecode and keep none, as in containers with ``PYTHONDONTWRITEBYTECODE``. With ``--old``, a commit
or a checkout of another version does the same, in turn with this one. ``--installed`` builds a wheel of each version and compiles it,
and measures it in two environments in turn: this one, and one that has nothing but what the wheel depends on (by uv). ``--python``
names the Python of another environment, and ``--modules`` lists what a first write loads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.commits import checked_out

__all__ = ["CASES", "main"]

_ROOT = Path(__file__).resolve().parent.parent
_SOURCE = "import sys, dask.array as da\nx = da.zeros((8, 8), chunks=4)\n"
_ZARR = f"""{_SOURCE}
import zarr
z = zarr.create_array(sys.argv[1], shape=(8, 8), shards=(8, 8), chunks=(4, 4), dtype="f8")
x.rechunk(8).store(z, lock=False)
"""
_OURS = f"""{_SOURCE}
import shardwrite
shardwrite.to_sharded_zarr(x, sys.argv[1], shards=(8, 8), chunks=(4, 4))
"""
_ON_WORKER = """
import time
from distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, processes=True, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster, Client(cluster) as client:
        before = sum(client.run(time.process_time).values())
        {write}
        print(sum(client.run(time.process_time).values()) - before)
"""
_COMMAND = "from shardwrite.cli import main\nmain()"


@dataclass(frozen=True)
class Case:
    """A program, its arguments (``ARRAY`` and ``SOURCE`` stand for paths), and what is there before it begins."""

    program: str
    arguments: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    tells: bool = False  # it prints its seconds


def _on_worker(program: str) -> str:
    return _ON_WORKER.format(write=program.strip().replace("\n", "\n        "))


_COMPARED = "dask and zarr-python write"
_INIT = ("init", "SOURCE", "ARRAY", "--shards", "8,8", "--chunks", "4,4")
CASES = {
    "import numpy, dask.array": Case("import numpy, dask.array"),
    _COMPARED: Case(_ZARR, ("ARRAY",)),
    "shardwrite writes": Case(_OURS, ("ARRAY",)),
    "shardwrite --help": Case(_COMMAND, ("--help",)),
    "shardwrite info": Case(_COMMAND, ("info", "ARRAY"), ("write", "SOURCE", "ARRAY", *_INIT[3:])),
    "shardwrite write-part": Case(_COMMAND, ("write-part", "SOURCE", "ARRAY", "0/1"), _INIT),
    f"{_COMPARED}: first task on a worker": Case(_on_worker(_ZARR), ("ARRAY",), tells=True),
    "shardwrite writes: first task on a worker": Case(_on_worker(_OURS), ("ARRAY",), tells=True),
}


def _installed(root: Path, into: Path) -> Path:
    """A directory with what a wheel of a version installs, compiled. The wheel lies beside it."""
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--installer=uv",
        "--outdir",
        str(into.parent),
    ]
    subprocess.run([*build, str(root)], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = into.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(into)
    subprocess.run([sys.executable, "-m", "compileall", "-q", into], check=True)
    return into


def _lean(wheel: Path, into: Path) -> str:
    """Python of an environment that has what a wheel depends on, and nothing else."""
    python = str(into / "bin" / "python")
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, into], check=True)
    install = [*uv, "pip", "install", "--compile-bytecode", "--python", python, str(wheel)]
    subprocess.run(install, check=True)
    subprocess.run([*uv, "pip", "uninstall", "--python", python, "shardwrite"], check=True)
    return python


class Measured:
    """Fresh processes of one version of the package, in one environment."""

    def __init__(self, root: Path, python: str, directory: Path, *, has_bytecode: bool) -> None:
        directory.mkdir(parents=True)
        self.root, self.python, self.directory = root, python, directory
        self.environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.environment["PYTHONPATH"] = str(root)
        if not has_bytecode:
            nowhere = directory / "no-bytecode"
            self.environment |= {
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPYCACHEPREFIX": str(nowhere),
            }
        subprocess.run(
            [
                python,
                "-c",
                "import sys, numpy; numpy.save(sys.argv[1], numpy.zeros((8, 8)))",
                str(directory / "x.npy"),
            ],
            check=True,
        )

    def _started(
        self, program: str, arguments: tuple[str, ...], **options: Any
    ) -> subprocess.Popen[str]:
        paths = {"ARRAY": str(self.directory / "x.zarr"), "SOURCE": str(self.directory / "x.npy")}
        script = self.directory / "program.py"
        script.write_text(program)
        command = [
            self.python,
            *options.pop("flags", ()),
            str(script),
            *(paths.get(word, word) for word in arguments),
        ]
        return subprocess.Popen(
            command, env=self.environment, cwd=self.directory, text=True, **options
        )

    def seconds(self, case: Case) -> float:
        """Seconds of processors that a fresh process takes for a case."""
        for path in self.directory.glob("x.zarr*"):
            shutil.rmtree(path)
        if case.before:
            self._wait(self._started(_COMMAND, case.before, stdout=subprocess.DEVNULL))
        process = self._started(case.program, case.arguments, stdout=subprocess.PIPE)
        assert process.stdout is not None
        told = process.stdout.read()
        used = self._wait(process)
        return float(told) if case.tells else used

    @staticmethod
    def _wait(process: subprocess.Popen[str]) -> float:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}")
        return usage.ru_utime + usage.ru_stime

    def modules(self) -> list[tuple[str, int, float]]:
        """Folders and packages that a first write loads beyond ``dask.array``: modules, and milliseconds of their imports."""
        self.seconds(CASES["shardwrite writes"])
        shutil.rmtree(self.directory / "x.zarr")
        flags = ("-X", "importtime")
        process = self._started(_OURS, ("ARRAY",), flags=flags, stderr=subprocess.PIPE)
        assert process.stderr is not None
        lines = re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", process.stderr.read())
        self._wait(process)
        names = [name for _, name in lines]
        count, spent = Counter[str](), Counter[str]()
        for time, name in lines[names.index("dask.array") + 1 :]:
            parts = name.split(".")
            home = "/".join(parts[: 2 if parts[0] == "shardwrite" else 1])
            count[home] += 1
            spent[home] += int(time)
        return [(home, count[home], nanos / 1000) for home, nanos in spent.most_common()]


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--old", help="a commit, or a checkout of another version")
    parser.add_argument(
        "--installed", action="store_true", help="measure wheels, in two environments"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="Python of the environment (default: this one)"
    )
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--without-bytecode", action="store_true")
    parser.add_argument("--modules", action="store_true", help="list what a first write loads, too")
    parser.add_argument("--cases", default="", help="only cases with this word in their names")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=given.dir) as scratch:
        directory, pythons = Path(scratch), {"": given.python}
        roots = {"this": _ROOT}
        if given.old:
            roots["old"] = checked_out(given.old, directory / "checkout")
        if given.installed:
            roots = {
                name: _installed(root, directory / name / "site") for name, root in roots.items()
            }
            (wheel,) = (directory / "this").glob("*.whl")
            pythons = {", full": given.python, ", lean": _lean(wheel, directory / "lean")}
        versions = {
            version + environment: Measured(
                root,
                python,
                directory / "runs" / f"{version}{environment}",
                has_bytecode=not given.without_bytecode,
            )
            for environment, python in pythons.items()
            for version, root in roots.items()
        }
        for _ in range(given.repeats + 1):
            for name, case in CASES.items():
                for version, measured in versions.items():
                    if given.cases in name:
                        found.setdefault((name, version), []).append(measured.seconds(case))
        listed = next(iter(versions.values())).modules() if given.modules else []
    best = {key: min(many[1:]) for key, many in found.items()}  # the first one fills caches
    rows = [
        {
            "case": name,
            "version": version,
            "seconds": seconds,
            "ratio": seconds / best.get((_compared_with(name), version), seconds),
        }
        for (name, version), seconds in best.items()
    ]
    print(
        "| a fresh process | version | CPU seconds | of dask and zarr-python |\n|---|---|---:|---:|"
    )
    for row in rows:
        print(f"| {row['case']} | {row['version']} | {row['seconds']:.3f} | {row['ratio']:.2f} |")
    for home, count, milliseconds in listed:
        print(f"{home:28} {count:4} modules {milliseconds:8.1f} ms")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


def _compared_with(name: str) -> str:
    where = name.partition(": ")[2]
    return f"{_COMPARED}: {where}" if where else _COMPARED


if __name__ == "__main__":
    main()
