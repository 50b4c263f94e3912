"""The program ``shardwrite`` and its list of commands.

A command reads its arguments, makes one call, prints text and ends with an exit code; for exit
codes see :mod:`shardwrite.runs.outcome`. This package is the only place that prints. The module of
a command is imported when the command is called, so that no other command waits for its imports.
"""

from __future__ import annotations

from pkgutil import resolve_name

import click

from shardwrite._version import __version__
from shardwrite.cli.terminal import Program

__all__ = ["main"]


class LateCommand(click.Command):
    """Stand-in for a command whose module has not been imported.

    Parameters
    ----------
    name : str
        The command's name.
    path : str
        Module of the command in this folder, and its name there, with a colon between them.
    help : str
        First sentence of the command's help, which the list of commands shows.
    """

    def __init__(self, name: str, path: str, *, help: str) -> None:  # noqa: A002 (click's name)
        super().__init__(name, help=help)
        self._path = path

    def load(self) -> click.Command:
        """Import the command, and return it."""
        command: click.Command = resolve_name(f"shardwrite.cli.{self._path}")
        return command


class LateProgram(Program):
    """A program that imports its commands when they are called."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See :meth:`click.Group.get_command`."""
        command = super().get_command(ctx, cmd_name)
        return command.load() if isinstance(command, LateCommand) else command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :meth:`click.Group.format_commands`; nothing is imported for it."""
        click.Group(commands=self.commands).format_commands(ctx, formatter)


@click.group(
    name="shardwrite", cls=LateProgram, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__)
def main() -> None:
    """Write large arrays as sharded Zarr v3, in parallel, each shard once and whole."""


for _command in (
    LateCommand(
        "abandon",
        "updates:abandon",
        help="Give up interrupted updates of ARRAY: their shards stay as they are, each old or "
        "new.",
    ),
    LateCommand(
        "census",
        "checks:census",
        help="Count the inner chunks of ARRAY that hold data, from indexes only, and show the "
        "shard grid as a picture.",
    ),
    LateCommand(
        "compact",
        "updates:compact",
        help="Write anew every shard of ARRAY that holds too much that nobody refers to.",
    ),
    LateCommand(
        "demo",
        "demo:demo",
        help="Write a real volume (an MRI scan that comes with nibabel) on a local cluster, check "
        "it and show it.",
    ),
    LateCommand(
        "erase",
        "updates:erase",
        help="Make a region of ARRAY empty; shards that hold nothing then are removed.",
    ),
    LateCommand(
        "exec",
        "execute:execute",
        help="Run a Python SCRIPT that writes arrays, with its ARGS, so that signals drain it and "
        "its exit code tells the outcome.",
    ),
    LateCommand(
        "finalize",
        "parts:finalize",
        help="Look at every shard of DST, sweep what dead processes have left, and publish the "
        "array if it is whole.",
    ),
    LateCommand(
        "info",
        "info:info",
        help="Metadata, shards present, sizes, compression, order and unused bytes of a sharded "
        "ARRAY; who wrote it, or is writing it.",
    ),
    LateCommand(
        "init",
        "parts:init",
        help="Begin writing SRC as DST in parts: the plan and metadata, no data.",
    ),
    LateCommand(
        "plan", "write:plan", help="Show how SRC would be written: shards, files, tasks and memory."
    ),
    LateCommand(
        "repair",
        "checks:repair",
        help="Find torn and missing shards of ARRAY; with --source, quarantine them and write "
        "exactly these again.",
    ),
    LateCommand("slurm", "slurm:slurm", help="Scripts and submissions for SLURM."),
    LateCommand(
        "update", "updates:update", help="Write SRC into a region of ARRAY, or behind its end."
    ),
    LateCommand(
        "verify",
        "checks:verify",
        help="Check every shard of ARRAY: index checksum, bounds, overlaps, order, shards that are "
        "missing.",
    ),
    LateCommand(
        "write",
        "write:write",
        help="Write SRC (Zarr, HDF5, NetCDF, .npy, TIFF, NIfTI or raw) as the sharded array DST.",
    ),
    LateCommand(
        "write-part",
        "parts:write_part",
        help="Write part K of N of SRC into DST, which `init` has begun; K is counted from 0, and "
        "`rank` stands for the rank under srun.",
    ),
):
    main.add_command(_command)
