"""The program ``shardwrite`` and its list of commands.

A command reads its arguments, makes one call, prints text and ends with an exit code; for exit
codes see :mod:`shardwrite.runs.outcome`. This package is the only place that prints. The module of
a command is imported when the command is called, so that no other command waits for its imports.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from shardwrite.cli.terminal import Program, write_commands
from shardwrite.seams import installed, register, resolve

_SUMMARY_WIDTH = 80  # enough for each first sentence of a command's help
_COMMANDS = {
    "Write": {
        "design": ("design:design", "Propose shards, inner chunks and codecs for a new array."),
        "plan": ("write:plan", "Show how SRC would be written, without writing anything."),
        "write": ("write:write", "Write the file SRC as the sharded array DST."),
        "precomputed": (
            "write:precomputed",
            "Write SRC as a scale of the Neuroglancer volume DST, in shards.",
        ),
        "init": ("parts:init", "Begin writing SRC as DST in parts."),
        "write-part": ("parts:write_part", "Write part K of N of SRC into DST."),
        "finalize": ("parts:finalize", "Publish DST after all parts have been written."),
    },
    "Convert": {
        "shard": ("convert:shard", "Put the encoded chunks of SRC into shards."),
        "unshard": ("convert:unshard", "Make one file of each encoded chunk of SRC."),
        "reshard": (
            "convert:reshard",
            "Write SRC again with other shards, inner chunks or codecs.",
        ),
        "adopt": (
            "adopt:adopt",
            "Make ARRAY of HDF5 or NetCDF-4 files, with a shard for each file.",
        ),
    },
    "Move": {
        "upload": (
            "transfer:upload",
            "Copy the array or group SRC to URL as it is, shard by shard.",
        ),
        "download": (
            "transfer:download",
            "Copy the array or group at URL to the directory DST, as it is.",
        ),
    },
    "Change": {
        "update": ("updates:update", "Write SRC into a region of ARRAY, or append it."),
        "erase": ("updates:erase", "Make a region of ARRAY empty."),
        "compact": ("updates:compact", "Rewrite the shards of ARRAY that waste space."),
        "abandon": ("updates:abandon", "Give up interrupted updates of ARRAY."),
    },
    "Look and mend": {
        "info": ("info:info", "Show what ARRAY is: its metadata, sizes and state."),
        "report": (
            "report:report",
            "Show how the run on ARRAY goes or went, and what could be changed.",
        ),
        "census": ("checks:census", "Show which parts of ARRAY hold data."),
        "verify": ("checks:verify", "Check every shard of ARRAY, or the list of a group."),
        "repair": (
            "checks:repair",
            "Find the bad shards of ARRAY, and write them again from a source.",
        ),
        "recover": (
            "checks:recover",
            "Publish ARRAY from its shards, if the state of its run is lost.",
        ),
    },
    "Run": {
        "exec": (
            "execute:execute",
            "Run a Python SCRIPT that writes arrays, with signals and exit codes.",
        ),
        "slurm": ("slurm:slurm", "Write arrays on a SLURM cluster."),
        "demo": (
            "demo:demo",
            "Write an MRI scan, kill that half way, go on, check and show the array.",
        ),
        "config": (
            "settings:config",
            "Show all settings, their values, and where these come from.",
        ),
        "completion": (
            "completion:completion",
            "Print a script that lets a shell complete commands and paths.",
        ),
    },
}
"""Commands by their sections: the module and name of each, and the first sentence of its help."""


class LateCommand(click.Command):
    """Stand-in for a command whose module has not been imported."""

    def __init__(self, name: str, path: str, *, help: str) -> None:  # noqa: A002 (click's name)
        super().__init__(name, help=help)
        register("command", name, f"shardwrite.cli.{path}")


class LateProgram(Program):
    """A program that imports its commands when they are called."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See :meth:`click.Group.get_command`. An installed package may add the command."""
        known = super().get_command(ctx, cmd_name)
        if known is None and cmd_name not in installed("command"):
            return None
        if known is not None and not isinstance(known, LateCommand):
            return known
        command: click.Command = resolve("command", cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """See :meth:`click.Group.shell_complete`; nothing is imported for it."""
        names = [
            CompletionItem(name, help=command.get_short_help_str(_SUMMARY_WIDTH))
            for name, command in self.commands.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click)
        """See :meth:`click.Group.format_commands`; nothing is imported for it."""
        write_commands(formatter, self.commands.items(), _COMMANDS)


@click.group(
    name="shardwrite",
    cls=LateProgram,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="shardwrite")
def main() -> None:
    """Write large arrays as sharded Zarr v3 arrays, in parallel.

    Start with `shardwrite plan SRC` to see sizes, files and memory, and continue with `shardwrite
    write SRC DST`. If a command was interrupted, run it again: it continues where it stopped.
    """


for _section in _COMMANDS.values():
    for _name, (_place, _told) in _section.items():
        main.add_command(LateCommand(_name, _place, help=_told))
