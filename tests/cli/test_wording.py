"""Messages of the library, in the words of a command."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import click
import dask.array as da
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent.parent))
from package_texts import texts_in

import shardwrite
from shardwrite.cli import main
from shardwrite.cli.common import in_options, text_in_options
from shardwrite.errors import JournalError, PlanError, SpecError

PACKAGE = Path(shardwrite.__file__).parent


def said(error, command="write"):
    return in_options(error, main.get_command(click.Context(main), command))


@pytest.mark.parametrize(
    ("field", "value", "about"),
    [
        ("shards", (8, 8), "--shards 8,8: "),
        ("source_chunks", "5 x 5", "--source-chunks '5 x 5': "),
        ("compressors", [{"name": "zsdt", "configuration": {}}], "--compressors zsdt: "),
        ("compressors", {"name": "a", "configuration": {"b": 1}}, '--compressors {"name": "a", '),
        ("store", "/data/x", "DST /data/x: "),
        ("x.shape", (3, 4), "shape (3, 4) of SRC: "),
        ("shape", None, "--shape: "),
        ("receipt", "r.json", "receipt='r.json': "),
    ],
)
def test_what_a_message_is_about(field, value, about):
    assert said(SpecError("why", field=field, value=value, remedy="what")).startswith(about)


@pytest.mark.parametrize(
    ("remedy", "options"),
    [
        ('give mode="w" to replace it', "give --overwrite to replace it"),
        ("with chunks=(4, 4) give 12", "with --chunks 4,4 give 12"),
        ("start over with restart=True (--restart), which", "start over with --restart, which"),
        ("raise memory_limit", "raise --memory-limit"),
        ("leave it out, or give shards=", "leave it out, or give --shards"),
        ("use one of ['C', 'F']", "use one of C, F"),
        ("no option is meant by other=True", "no option is meant by other=True"),
        ("give name=, one of: a/b", "give --name, one of: a/b"),
        ("give chunks=(4, ...)", "give --chunks (4, ...)"),
        ("with dtype=... of the file", "with --dtype ... of the file"),
        ("say it with f(chunks=..., dtype=g(shape=1)) instead",) * 2,
        ('call shardwrite.f("x", shards=4) once',) * 2,
    ],
)
def test_remedies_name_options(remedy, options):
    error = SpecError("why", field="shards", value=1, remedy=remedy)
    assert said(error) == f"--shards 1: why; {options}"


@pytest.mark.parametrize(
    ("command", "option", "remedy"),
    [
        ("write", "DASK_SHARDWRITE__RUN_DIR", "DASK_SHARDWRITE__RUN_DIR=/scratch/me/runs"),
        ("upload", "--run-dir", "--run-dir /scratch/me/runs"),
    ],
)
def test_the_directory_of_run_state_is_named_as_a_command_takes_it(command, option, remedy):
    how = (
        'give a directory that all processes of the run see, such as run_dir="/scratch/me/runs", or '
        "set shardwrite.run-dir in the configuration of dask"
    )
    error = SpecError("why", field="run_dir", value=None, remedy=how)
    wanted = "give a directory that all processes of the run see, such as"
    assert said(error, command) == f"{option}: why; {wanted} {remedy}"
    error = JournalError("Finish it by the same call without run_dir", path="x")
    assert said(error, command) == f"Finish it by the same call without {option}"


def test_paths_stay_as_they_are():
    path = "/data/chunks=4/shape=2/memory_limit/x"
    assert said(JournalError(f"look at {path}", path=path)) == f"look at {path}"


def test_options_that_a_command_does_not_have_are_not_named():
    error = PlanError("too much", needed_nbytes=1, allowed_nbytes=0, remedy="raise memory_limit")
    assert said(error) == "too much; raise --memory-limit"
    assert said(error, "info") == "too much; raise memory_limit"


def test_notes_are_kept():
    error = SpecError("why", field="shards", value=1, remedy="what")
    error.add_note("this is the array 'a'; exclude='a' leaves it out")
    assert said(error, "shard").endswith("\nthis is the array 'a'; --exclude a leaves it out")


@functools.cache
def texts():
    """Texts of the package with more than one word, except docstrings and the help of options."""
    return [
        (f"{path.name}:{line}", text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts_in(path)
    ]


def commands(group=main):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


HALF = re.compile(r"Ellipsis|\w\((?:[^()]|\([^()]*\))*--[a-z]|--[a-z-]+[A-Z({]")
"""What is left of Python if only a part of it is translated."""


@pytest.mark.long
def test_no_text_is_translated_by_half():
    every, found = list(commands()), [pair for pair in texts() if "=" in pair[1]]
    assert len(every) > 30
    assert len(found) > 100
    wrong = {
        f"{place}: {told}"
        for place, text in found
        if not HALF.search(text)
        for told in {text_in_options(text, command) for command in every}
        if HALF.search(told)
    }
    assert not wrong


@pytest.mark.long
@pytest.mark.parametrize("command", ["update", "erase", "repair"])
def test_shards_of_hdf5_in_the_words_of_a_command(command):
    text = next(text for _, text in texts() if "give drop_hdf5=True to write_region" in text)
    told = text_in_options(text, main.get_command(click.Context(main), command))
    assert "give --strategy hdf5, which keeps such files" in told
    assert "For plain shards, give --drop-hdf5" in told
    assert "drop_hdf5" not in told
    assert "write_region" not in told


def test_verify_names_its_option(tmp_path):
    layout = {"shards": 4, "chunks": 2, "format": "transformer-2022"}
    da.zeros(4).to_sharded_zarr(tmp_path / "x", name="a/b", **layout)
    told = CliRunner().invoke(main, ["verify", str(tmp_path / "x")])
    assert told.exit_code
    assert "give --name, one of: a/b" in " ".join(told.output.split())
    assert not CliRunner().invoke(main, ["verify", str(tmp_path / "x"), "--name", "a/b"]).exit_code
