"""A keyword is said once: one more field, and everything has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FIELD = """
    answer: int = option(42, "What is found in the end.", command_help="What comes out.")
"""
# Runs in a process of its own, which imports a package that has the field.
SCRIPT = r"""
import inspect, os, pydoc, sys

import griffe
import numpy as np
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

copy, docs = sys.argv[1:]
assert shardwrite.__file__.startswith(copy)


def printed(*arguments):
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


for function in (shardwrite.to_sharded_zarr, shardwrite.plan, shardwrite.store):
    parameter = inspect.signature(function).parameters["answer"]
    assert (parameter.default, parameter.annotation) == (42, "int")
    told = pydoc.plain(pydoc.render_doc(function))
    assert "answer: 'int' = 42" in told
    assert "answer : int\n        What is found in the end." in told

assert "--answer N" in printed("write", "--help")
assert "What comes out.  [default: 42]" in printed("write", "--help")
for kind, more in (("allocation", []), ("elastic", ["--jobs", "2"])):
    script = printed("slurm", "script", kind, "x.npy", "y.zarr", "--answer", "7", *more)
    assert "OPTIONS=(--answer 7)" in script

np.save("x.npy", np.ones(8))
printed("plan", "x.npy", "--answer", "7")
printed("write", "x.npy", "y.zarr", "--answer", "7")
try:
    shardwrite.to_sharded_zarr(np.ones(8), "z.zarr", answr=7)
except TypeError as error:
    assert str(error).endswith("unexpected keyword argument 'answr'; give answer")

extensions = griffe.load_extensions(os.path.join(docs, "roles.py"))
package = griffe.load("shardwrite", search_paths=[copy], extensions=extensions)
page = package["operations.write.to_sharded_zarr"]
assert page.parameters["answer"].default == "42"
sections = {one.kind.value: one.value for one in page.docstring.parse("numpy")}
(row,) = [one for one in sections["parameters"] if one.name == "answer"]
assert row.description == "What is found in the end."
"""


def test_a_keyword_is_added_in_one_file(tmp_path):
    pytest.importorskip("griffe")
    copy = tmp_path / "copy"
    leaves = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "shardwrite", copy / "shardwrite", ignore=leaves)
    options = copy / "shardwrite" / "options.py"
    text = options.read_text()
    before = "    compression_ratio: float | None = option("
    assert text.count(before) == 1
    options.write_text(text.replace(before, f"{FIELD}{before}"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, script, copy, ROOT / "docs"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
