"""Messages of the library, in the words of a command."""

from __future__ import annotations

import click
import pytest

from shardwrite.cli import main
from shardwrite.cli.wording import in_options
from shardwrite.errors import JournalError, PlanError, SpecError


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
