"""A keyword is said once: one more field, and everything has it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from forks import python

from shardwrite.cli import main
from shardwrite.convert.transfer import UploadArguments
from shardwrite.hdf5.adopt import AdoptArguments
from shardwrite.operations.compact import CompactArguments
from shardwrite.operations.keywords import EraseArguments, RegionArguments
from shardwrite.operations.parts import FinalizeArguments
from shardwrite.operations.repair import RepairArguments
from shardwrite.operations.verify import VerifyArguments
from shardwrite.options import command_help_of, option_in

ROOT = Path(__file__).parent.parent
IMPORTS = r"""
import inspect, os, pydoc, shutil, sys

import numpy as np
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

copy, docs = sys.argv[1:]
assert shardwrite.__file__.startswith(copy)
np.save("x.npy", np.ones(8))


def printed(*arguments):
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


"""
FIELD = """
    answer: int = option(42, "What is found in the end.", command_help="What comes out.")
"""
# Runs in a process of its own, which imports a package that has the field.
SCRIPT = r"""
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

printed("plan", "x.npy", "--answer", "7")
printed("write", "x.npy", "y.zarr", "--answer", "7")
try:
    shardwrite.to_sharded_zarr(np.ones(8), "z.zarr", answr=7)
except TypeError as error:
    assert str(error).endswith("unexpected keyword argument 'answr'; give answer")

import griffe

for name in ("__init__.py", "operations/__init__.py", "operations/write.py"):  # all takes seconds
    os.makedirs(os.path.dirname(f"pages/shardwrite/{name}"), exist_ok=True)
    shutil.copy(f"{copy}/shardwrite/{name}", f"pages/shardwrite/{name}")
extensions = griffe.load_extensions(os.path.join(docs, "roles.py"))
package = griffe.load("shardwrite", search_paths=["pages"], extensions=extensions)
page = package["operations.write.to_sharded_zarr"]
assert page.parameters["answer"].default == "42"
sections = {one.kind.value: one.value for one in page.docstring.parse("numpy")}
(row,) = [one for one in sections["parameters"] if one.name == "answer"]
assert row.description == "What is found in the end."
"""


# One that jobs ask SLURM for.
OF_JOBS = """
    account: str | None = _asked(
        None, "account", "Account of each job.", command_help="Account of jobs. Default: yours."
    )
"""
SCRIPT_OF_JOBS = r"""
import shardwrite.slurm

parameter = inspect.signature(shardwrite.slurm.cluster).parameters["account"]
assert (parameter.default, parameter.annotation) == (None, "str | None")
told = pydoc.plain(pydoc.render_doc(shardwrite.slurm.cluster))
assert "account : str, optional\n        Account of each job." in told

commands = ("write", "shard", "unshard", "reshard", "precomputed")
below = ("submit", "shard", "unshard", "reshard", "precomputed", "script")
for words in (*([name] for name in commands), *(["slurm", name] for name in below)):
    assert "--account TEXT" in printed(*words, "--help"), words
how = ("x.npy", "y.zarr", "--account", "mine")
for kind, more in (("array", ["--parts", "2"]), ("allocation", []), ("elastic", ["--jobs", "2"])):
    script = printed("slurm", "script", kind, *how, *more)
    assert "#SBATCH --account=mine\n" in script
assert "--account mine)" in script  # the driver's workers
assert "#SBATCH --account=mine\n" in printed("write", *how, "--submit", "--parts", "2", "--dry-run")
"""
# One that says how a file is read.
OF_FILES = """
    answer: int = option(42, "What is found in the file.")
"""
SCRIPT_OF_FILES = r"""
parameter = inspect.signature(shardwrite.sources.open_source).parameters["answer"]
assert (parameter.default, parameter.annotation) == (42, "int")
printed("write", "x.npy", "y.zarr", "--answer", "7")
script = printed("slurm", "script", "array", "x.npy", "y.zarr", "--parts", "2", "--answer", "7")
assert "OPTIONS=(--answer 7)" in script
"""


@pytest.mark.parametrize(
    ("file", "before", "field", "script"),
    [
        ("options.py", "    compression_ratio: float | None = option(", FIELD, SCRIPT),
        ("slurm/keywords.py", "    directives: Sequence[str] = option(", OF_JOBS, SCRIPT_OF_JOBS),
        ("sources/keywords.py", "    chunks: Any = option(", OF_FILES, SCRIPT_OF_FILES),
    ],
    ids=["of a write", "of jobs", "of files"],
)
def test_a_keyword_is_added_in_one_file(tmp_path, file, before, field, script):
    pytest.importorskip("griffe")
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "shardwrite", copy / "shardwrite")  # with what has been compiled
    changed = copy / "shardwrite" / file
    text = changed.read_text()
    assert text.count(before) == 1
    changed.write_text(text.replace(before, f"{field}{before}"))
    program = tmp_path / "script.py"
    program.write_text(IMPORTS + script)
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [*python(package=False), program, copy, ROOT / "docs"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


COMMANDS = {
    "adopt": AdoptArguments,
    "compact": CompactArguments,
    "erase": EraseArguments,
    "finalize": FinalizeArguments,
    "repair": RepairArguments,
    "update": RegionArguments,
    "upload": UploadArguments,
    "verify": VerifyArguments,
}
OTHERWISE = {"mode"}  # commands have --overwrite


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_what_its_function_takes(name):
    group = COMMANDS[name]
    keywords = [each for each in dataclasses.fields(group) if each.kw_only]
    wanted = {each.name for each in keywords if option_in(each).flag is not None} - OTHERWISE
    command = main.get_command(click.Context(main), name)
    assert wanted <= {each.name for each in command.params}
    text = command.get_help(click.Context(command, terminal_width=10_000))
    for each in keywords:
        if each.name in wanted:
            assert command_help_of(group, each) in text
