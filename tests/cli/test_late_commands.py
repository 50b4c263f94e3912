"""Commands are imported when they are called; what the program says of them before is what they say
themselves."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import click
import dask.array as da
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.cli.main import LateCommand

pytestmark = [pytest.mark.compat, pytest.mark.usefixtures("children_as_users_start_them")]

ROOT = Path(__file__).parent.parent.parent


def loaded_by(*arguments):
    """Modules that the program has imported when it ends."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from shardwrite.cli import main\n"
        "main(prog_name='shardwrite')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split()), done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"]])
def test_the_program_tells_of_itself_without_importing_a_command(arguments):
    modules, _ = loaded_by(*arguments)
    assert not modules & {"numpy", "dask", "zarr", "numcodecs", "rich", "distributed", "asyncio"}
    ours = {name for name in modules if name.startswith("shardwrite.cli.")}
    assert ours == {f"shardwrite.cli.{name}" for name in ("main", "terminal")}


def test_info_imports_only_what_it_needs(tmp_path):
    shardwrite.to_sharded_zarr(
        da.ones((8, 8), chunks=4), tmp_path / "x.zarr", shards=(4, 4), chunks=(2, 2)
    )
    modules, printed = loaded_by("info", tmp_path / "x.zarr")
    assert "[8, 8]" in printed
    assert not modules & {
        "dask.array",
        "distributed",
        "tornado",
        "pandas",
        "xarray",
        "scipy",
        "rich",
        "h5py",
        "tifffile",
        "matplotlib",
    }
    assert not modules & {
        "shardwrite.cli.write",
        "shardwrite.cli.checks",
        "shardwrite.cli.slurm",
        "shardwrite.stream",
    }


def test_the_list_of_commands_says_what_they_say_themselves():
    context = click.Context(main)
    for name, listed in main.commands.items():
        command = main.get_command(context, name)
        assert command is not listed
        assert command.name == name
        for width in range(10, 250):
            assert listed.get_short_help_str(width) == command.get_short_help_str(width), name


def test_every_command_is_listed():
    loaded = [main.get_command(click.Context(main), name) for name in main.commands]
    listed = [*loaded, *loaded[list(main.commands).index("slurm")].commands.values()]
    for path in (ROOT / "shardwrite" / "cli").glob("[a-z]*.py"):
        for value in vars(importlib.import_module(f"shardwrite.cli.{path.stem}")).values():
            assert (
                not isinstance(value, click.Command)
                or isinstance(value, LateCommand)
                or value in (main, *listed)
            )


def test_an_unknown_command_is_an_error_of_usage():
    done = CliRunner().invoke(main, ["inf"])
    assert done.exit_code == 2
    assert "No such command" in done.output
