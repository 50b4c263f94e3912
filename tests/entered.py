"""Print which files and functions of the package some calls enter: ``python tests/entered.py``, or
``python tests/entered.py COMMIT`` for a commit.

Each call runs in a fresh process, from the import of the package to the end of the call. What it
needs is made before, by another process. Functions are counted once each, with those that run while
modules are imported; bodies of modules and classes, comprehensions and lambdas are none.
`n_listings` says how often a directory was listed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from commits import ROOT, parser_of, tree_of
from shape import home

TRACING = '''
import sys, threading

class Trace:
    """Notes the functions of the package that threads of this process enter."""

    def __init__(self, package):
        self.package, self.entered, self.n_listings = package, set(), 0

    def start(self):
        threading.setprofile(self.note)
        sys.setprofile(self.note)

    def stop(self):
        threading.setprofile(None)
        sys.setprofile(None)
        return sorted(self.entered), self.n_listings

    def note(self, frame, event, called):
        code = frame.f_code
        if not code.co_filename.startswith(self.package):
            return
        is_function = code.co_flags & 1 and not code.co_name.startswith("<")
        if event == "call" and is_function:
            self.entered.add((code.co_filename[len(self.package):], code.co_qualname))
        elif event == "c_call" and called.__name__ in ("listdir", "scandir"):
            self.n_listings += code.co_name != "<module>"

path, package = sys.argv[1:]
TRACE = Trace(package)
'''
SOURCE = """
import numpy as np, dask.array as da
x = da.from_array(np.arange(64.0).reshape(8, 8), chunks=4)
"""
WRITE = "x.to_sharded_zarr(path, shards=(4, 4), chunks=(2, 2))"
HERE = f"""
{TRACING}
{SOURCE}
TRACE.start()
import shardwrite
CALL
import json
print(json.dumps(TRACE.stop()))
"""
ON_A_WORKER = f"""
{TRACING}
import json
{SOURCE}

def started(program, *words):
    sys.argv = ["", *words]
    sys.modules["traced"] = traced = type(sys)("traced")
    exec(program, vars(traced))
    traced.TRACE.start()

def stopped():
    return sys.modules["traced"].TRACE.stop()

if __name__ == "__main__":
    from distributed import Client, LocalCluster
    import shardwrite

    options = dict(threads_per_worker=1, dashboard_address=":0", silence_logs=50)
    with LocalCluster(n_workers=1, processes=True, **options) as cluster, Client(cluster) as client:
        client.run(started, {TRACING!r}, path, package)
        {WRITE}
        print(json.dumps(*client.run(stopped).values()))
"""
CALLS = {
    "a write": ("", HERE.replace("CALL", WRITE)),
    "an update": (
        WRITE,
        HERE.replace("CALL", "shardwrite.write_region(1.0, path, (slice(0, 2), slice(0, 2)))"),
    ),
    "a reshard in place": (WRITE, HERE.replace("CALL", "shardwrite.reshard(path, None, (8, 8))")),
    "a write on a worker, there": ("", ON_A_WORKER),
}


@dataclass(frozen=True)
class Entered:
    """What a call has entered."""

    functions: dict[str, list[str]]  # their names, by file of the package
    n_listings: int

    @property
    def rooms(self) -> set[str]:
        """Rooms of the core, and names of wings."""
        return {home(file)[1] for file in self.functions}


def entered_by(call: str, root: Path = ROOT, python: Sequence[str] = (sys.executable,)) -> Entered:
    """What one of the calls enters, in a process that takes the package from a directory.

    - `python`: a command that stands for Python, and imports the package in a fresh process.
    """
    before, program = CALLS[call]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with tempfile.TemporaryDirectory() as scratch:
        words = [f"{scratch}/x.zarr", f"{(root / 'shardwrite').resolve()}/"]
        prepare = f"import sys\n{SOURCE}\nimport shardwrite\npath = sys.argv[1]\n{before}"
        for text in [prepare] * bool(before) + [program]:
            file = Path(scratch, "program.py")
            file.write_text(text)
            command = [*python, str(file), *words]
            done = subprocess.run(
                command, check=True, env=environment, capture_output=True, text=True
            )
    names, n_listings = json.loads(done.stdout.splitlines()[-1])
    functions: dict[str, list[str]] = {}
    for file, name in names:
        functions.setdefault(file, []).append(name)
    return Entered(functions, n_listings)


def main() -> None:
    """Print tables of files and functions by room, for each call."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--names", action="store_true", help="print files and functions, too")
    chosen = parser.parse_args()
    with tree_of(chosen.commit) as root:
        for call in CALLS:
            entered = entered_by(call, root)
            print_table(call, entered)
            for file, names in sorted(entered.functions.items()) if chosen.names else ():
                print(f"    {file}: {', '.join(names)}")


def print_table(call: str, entered: Entered) -> None:
    """Print the files and functions of each room that a call enters, wings last."""
    n_files, n_functions = Counter[tuple[bool, str]](), Counter[tuple[bool, str]]()
    for file, names in entered.functions.items():
        wing, room = home(file)
        n_files[wing != "core", room] += 1
        n_functions[wing != "core", room] += len(names)
    total = f"{len(entered.functions)} files, {sum(map(len, entered.functions.values()))} functions"
    print(f"\n{call}: {total}, {entered.n_listings} listings")
    for is_wing, room in sorted(n_files):
        counts = f"{n_files[is_wing, room]:4} {n_functions[is_wing, room]:5}"
        print(f"  {'wing ' if is_wing else ''}{room:20} {counts}")


if __name__ == "__main__":
    main()
