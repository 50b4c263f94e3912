"""pytest in forks of one process that has imported the libraries.

An interpreter, pytest and the libraries take seconds to start, which is longer than most tests of a
seeded bug take. So the server of `multiprocessing` imports them once. It never imports shardwrite:
each fork imports that from a directory of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SECONDS = 900
LIBRARIES = [
    "click",
    "dask.array",
    "distributed",
    "hypothesis.stateful",
    "numcodecs",
    "pytest",
    "rich.progress",
    "tensorstore",
    "zarr",
    "zarrs",
]


def _is_ours(entry: str) -> bool:
    """Whether modules of the repository would be imported from an entry of ``sys.path``."""
    path = Path(entry).resolve()
    return path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)


def _fork(root: Path, out: Path, arguments: list[str]) -> None:
    with out.open("wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.chdir(root)
    os.environ |= {"PYTHONPATH": str(root), "PATIENCE": "2"}  # bugs may wait for ever
    sys.path[:] = [str(root), *(entry for entry in sys.path if not _is_ours(entry))]
    import pytest

    # The server may have imported the package for another test; here it is that of the directory.
    for name in [name for name in sys.modules if name.partition(".")[0] == "shardwrite"]:
        del sys.modules[name]
    import shardwrite

    if not Path(shardwrite.__file__).is_relative_to(root):
        raise AssertionError(f"not the package of {root}: {shardwrite.__file__}")
    sys.exit(int(pytest.main(arguments)))


def run_pytest(root: Path, arguments: list[str]) -> tuple[int, str]:
    """Run pytest in a directory that has its own `shardwrite` and tests.

    Parameters
    ----------
    root : Path
        The directory.
    arguments : list of str
        Of pytest.

    Returns
    -------
    code : int
        The exit code.
    text : str
        What it printed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    out = root / "printed"
    process = context.Process(target=_fork, args=(root, out, arguments))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode, out.read_text(errors="replace")
