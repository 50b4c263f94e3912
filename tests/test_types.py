"""What type checkers and `help` tell users of the public names."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwrite

ROOT = Path(__file__).parent.parent
PYRIGHT = ROOT / "tests" / "conformance" / "node_modules" / "pyright" / "index.js"
NAMES = [name for name in shardwrite.__all__ if not name.startswith("__")]

# A user's script. Nothing runs it.
SCRIPT = """
from typing import Any, assert_type

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.delayed import Delayed

import shardwrite
from shardwrite import FixedOrder, WriteResult
from shardwrite.read.array import ShardedArray

x = da.zeros((64, 64), chunks=16)
assert_type(shardwrite.to_sharded_zarr(x, "a.zarr", shards=32, chunks=16, strategy="C"), WriteResult)
assert_type(shardwrite.to_sharded_zarr(x, "a.zarr", "name", mode="w", compute=True), WriteResult)
assert_type(shardwrite.to_sharded_zarr(x, "a.zarr", compute=False), Delayed)
assert_type(shardwrite.to_sharded_zarr(x, "a.zarr", return_stored=True), da.Array)
assert_type(shardwrite.to_sharded_zarr(x, "a.zarr", region=(slice(0, 8),)), WriteResult)
assert_type(shardwrite.store([x, x], ["a.zarr", "b.zarr"], shards=32, chunks=16), list[WriteResult])
assert_type(shardwrite.store([x], ["a.zarr"], compute=False), Delayed)
assert_type(shardwrite.store([x], ["a.zarr"], return_stored=True), list[da.Array])
assert_type(shardwrite.write_region(x, "a.zarr", "append", axis=1), WriteResult)
assert_type(shardwrite.write_region(x, "a.zarr", ..., compute=False), Delayed)
assert_type(shardwrite.write_region(x, "a.zarr", ..., return_stored=True), da.Array)


def later(compute: bool) -> WriteResult | Delayed | da.Array:
    return shardwrite.to_sharded_zarr(x, "a.zarr", compute=compute)


plan = shardwrite.plan(x, shards=32, chunks=16, memory_limit="4GB")
assert_type(plan, shardwrite.Plan)
assert_type(plan.n_shards, int)
assert_type(plan.memory.total_nbytes, int)
assert_type(shardwrite.plan_region(x, "a.zarr", slice(0, 8)), shardwrite.Plan)
shardwrite.prepare(x, "parts.zarr", plan)
assert_type(shardwrite.write_part(x, "parts.zarr", 0, 2), WriteResult)
assert_type(shardwrite.finalize("parts.zarr", n_parts=2), WriteResult)
shardwrite.create("b.zarr", (64, 64), "u2", shards=32, chunks=16)
assert_type(shardwrite.erase("a.zarr", slice(0, 8)), WriteResult)
assert_type(shardwrite.abandon("a.zarr"), list[tuple[tuple[int, int], ...]])
assert_type(shardwrite.compact("a.zarr", above=0.5), shardwrite.Compaction)
assert_type(shardwrite.design(x, purpose="ml", reads=["1,-1"]), shardwrite.Design)
assert_type(shardwrite.design((64, 64), dtype="u2").best.shards, tuple[int, ...])
assert_type(shardwrite.from_sharded_zarr("a.zarr"), da.Array)
array = shardwrite.open_sharded("a.zarr")
assert_type(array, ShardedArray)
assert_type(array.shape, tuple[int, ...])
assert_type(array[0], npt.NDArray[Any])
assert_type(shardwrite.verify("a.zarr", deep=True), shardwrite.Report)
assert_type(shardwrite.verify("a.zarr").is_good, bool)
assert_type(shardwrite.repair("a.zarr"), shardwrite.Repair)
assert_type(shardwrite.census("a.zarr"), shardwrite.Census)
assert_type(shardwrite.plan_reshard("a.zarr", 4), shardwrite.ConversionPlan)
assert_type(shardwrite.shard("a.zarr", "b.zarr", 4), shardwrite.Conversion)
assert_type(shardwrite.unshard("a.zarr"), shardwrite.Conversion)
assert_type(shardwrite.reshard("a.zarr", shards=4, chunks=(8, 8)), shardwrite.Conversion)
with shardwrite.ShardWriter("s.zarr", axis=0, durability="none") as writer:
    writer.append(np.zeros((64, 64), dtype="u2"))
with shardwrite.patch_dask() as patch:
    assert_type(patch, shardwrite.DaskPatch)
assert_type(shardwrite.patch_xarray(), shardwrite.XarrayPatch)
try:
    shardwrite.to_sharded_zarr(x, "a.zarr", strategy=FixedOrder(in_place=True))
except shardwrite.PlanError as error:
    assert_type(error.fields, dict[str, Any])
"""
MISTAKES = """
import dask.array as da

import shardwrite

x = da.zeros((64, 64), chunks=16)
shardwrite.to_sharded_zarr(x, "a.zarr", shard=32)
shardwrite.to_sharded_zarr(x, "a.zarr", publish=True)
shardwrite.write_region(x, "a.zarr")
shardwrite.verify("a.zarr").good
shardwrite.plan(x, shards=3.5)
"""
N_MISTAKES = 5


def environ() -> dict[str, str]:
    found = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": found}


def mypy(directory: Path, *scripts: str) -> set[tuple[str, int]]:
    """Scripts and lines of errors."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-pretty", *scripts]
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'scripts'}"
    done = subprocess.run(
        [*command, cache], cwd=directory, env=environ(), capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    print(done.stdout)
    found = re.findall(r"^(\S+\.py):(\d+): error", done.stdout, re.MULTILINE)
    return {(name, int(line)) for name, line in found}


def pyright(*arguments: str | Path, cwd: Path) -> dict:
    if not PYRIGHT.is_file() or shutil.which("node") is None:
        pytest.skip("pyright is not installed: run npm install in tests/conformance")
    command = ["node", PYRIGHT, "--pythonpath", sys.executable, "--outputjson", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ(), capture_output=True, text=True)
    print(done.stdout[:10_000], done.stderr)
    return json.loads(done.stdout)


def errors_of(found: dict) -> set[tuple[str, int]]:
    """The same that pyright tells."""
    errors = [e for e in found["generalDiagnostics"] if e["severity"] == "error"]
    return {(Path(e["file"]).name, e["range"]["start"]["line"] + 1) for e in errors}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_script_has_precise_types(checker, tmp_path):
    if checker == "mypy":
        pytest.importorskip("mypy")
    scripts = {"script.py": SCRIPT, "mistakes.py": MISTAKES}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text.lstrip())
    if checker == "mypy":
        found = mypy(tmp_path, *scripts)
    else:
        found = errors_of(pyright(*scripts, cwd=tmp_path))
    assert [name for name, _ in found] == ["mistakes.py"] * N_MISTAKES, found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_public_symbol_has_a_known_type(tmp_path):
    found = pyright("--verifytypes", "shardwrite", "--ignoreexternal", cwd=tmp_path)
    public = {
        f"{one.__module__}.{one.__qualname__}" for one in (getattr(shardwrite, n) for n in NAMES)
    }
    symbols = {s["name"]: s for s in found["typeCompleteness"]["symbols"]}
    ours = [
        symbol
        for name, symbol in symbols.items()
        if any(name == path or name.startswith(f"{path}.") for path in public)
    ]
    assert public <= symbols.keys()
    assert len(ours) > 300
    kept = shardwrite.CachedStore
    unknown = {s["name"] for s in ours if s["isTypeAmbiguous"] or not s["isTypeKnown"]}
    # pyright looks at no other package here, so it does not know a base class that is zarr-python's.
    assert unknown <= {"shardwrite.CachedStore", f"{kept.__module__}.CachedStore"}
    bases = {base.__module__.partition(".")[0] for base in kept.__bases__}
    assert bases == {"zarr"}


def sections(text: str) -> dict[str, str]:
    """The sections of a docstring in numpydoc, by heading."""
    _, *parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def documented(section: str) -> Iterator[tuple[str, str]]:
    """Names of a section, each with its description."""
    entries = re.split(r"^(?=\S)", section, flags=re.MULTILINE)
    for entry in filter(str.strip, entries):
        head, _, body = entry.partition("\n")
        for name in head.partition(" : ")[0].split(", "):
            yield name.lstrip("*"), body.strip()


def what_is_amiss(name: str, public: object) -> list[str]:
    text = inspect.getdoc(public) or ""
    first = text.split("\n\n")[0]
    if first.startswith("See :"):
        return []  # a method of an interface, which describes it
    found = []
    if not re.fullmatch(r"[A-Z`][^\n]*\.", first) or len(first) > 100:
        found.append(f"{name}: its first line is no sentence: {first!r}")
    parts = sections(text)
    if public in vars(shardwrite.errors).values():
        return found  # their fields are listed at the base class
    told = dict(documented(parts.get("Parameters", "") + "\n" + parts.get("Attributes", "")))
    if callable(public):
        for parameter in inspect.signature(public).parameters.values():
            if parameter.name != "self" and parameter.name not in told:
                found.append(f"{name}: the parameter {parameter.name} is not described")
    found += [f"{name}: {word} has no description" for word, body in told.items() if not body]
    if inspect.isfunction(public):
        returns = inspect.signature(public).return_annotation
        if returns not in ("None", None) and not parts.get("Returns", "").strip():
            found.append(f"{name}: what is returned is not described")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_help_reads_well(name):
    public = getattr(shardwrite, name)
    found = what_is_amiss(name, public)
    if isinstance(public, type):
        for own, method in vars(public).items():
            if own.startswith("_"):
                continue
            if inspect.isfunction(method):
                found += [f for f in what_is_amiss(f"{name}.{own}", method) if "returned" not in f]
            elif isinstance(method, property) and not (method.__doc__ or "").endswith("."):
                found.append(f"{name}.{own}: it is not described")
    assert found == []


def test_bad_help_is_found():
    def bad(x: int, y: int) -> int:
        """Adds

        Parameters
        ----------
        x : int
        """
        return x + y

    assert what_is_amiss("bad", bad) == [
        "bad: its first line is no sentence: 'Adds'",
        "bad: the parameter y is not described",
        "bad: x has no description",
        "bad: what is returned is not described",
    ]
