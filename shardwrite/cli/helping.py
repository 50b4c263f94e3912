"""Help of commands: options and commands in groups, whole sentences, and every default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

_FEW = 8  # options of a command that need no groups
_REST = "Options"
_SECTIONS = {
    "Source": "--format --dataset --shape --dtype --offset --source-chunks --decode-cf --source-id",
    "Array": (
        "--name --shards --chunks --compressors --filters --serializer --fill-value "
        "--dimension-names --attributes --index-location --array-format --manifest --strategy "
        "--write-empty-chunks --checksum --stripe-count --axes --resolution --voxel-offset --type "
        "--encoding --compressed-segmentation-block-size --jpeg-quality "
        "--sharding --shard-nbytes --index-nbytes --key"
    ),
    "Which arrays": "--include --exclude --min-chunks",
    "Run": (
        "--overwrite --restart --accept-source --recheck --publish --durability --dry-run "
        "--drop-empty --check --check-twice --in-place --drop-hdf5 --casting --requeue "
        "--keep-report --run-dir"
    ),
    "Parts, for job arrays": "--init --part --finalize --parts --resubmit",
    "Threads, processes and memory": "--threads --workers --scheduler --memory-limit",
    "SLURM jobs": (
        "--cluster --jobs --minimum-jobs --nodes --workers-per-node --program "
        "--driver-time --cores --memory --time --lead --requeues --at-once --throughput "
        "--directory --job-name --sbatch --setup --interface --scheduler-interface "
        "--log-directory --encrypted --patience --config-name"
    ),
    "Output": "--log-level --json --html --png --verify --version --help",
}
_SECTION_OF = {option: title for title, names in _SECTIONS.items() for option in names.split()}


class Grouped(click.Command):
    """A command whose help states every default, and shows many options in groups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.params:
            if not isinstance(option, click.Option):
                continue
            if option.show_default is None:
                option.show_default = True
            if option.metavar is None and type(option.type) in (click.IntRange, type(click.INT)):
                option.metavar = "N"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :meth:`click.Command.format_options`."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        rows_of = [(_section(option), option.get_help_record(ctx)) for option in options]
        records = [(section, row) for section, row in rows_of if row is not None]
        is_short = len(records) <= _FEW
        for title in (_REST, *_SECTIONS):
            rows = [row for section, row in records if (_REST if is_short else section) == title]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _section(option: click.Parameter) -> str:
    of_keyword: str = getattr(option, "section", "")
    return of_keyword or next(
        (_SECTION_OF[name] for name in option.opts if name in _SECTION_OF), _REST
    )


def write_commands(
    formatter: click.HelpFormatter,
    commands: Iterable[tuple[str, click.Command]],
    sections: Mapping[str, Sequence[str]],
) -> None:
    """Write a list of commands with the whole first sentence of each.

    - `commands`: commands by their names. Hidden ones are left out.
    - `sections`: names of the commands of each section. Others come in a last section.
    """
    left = {name: command for name, command in commands if not command.hidden}
    for title, names in sections.items():
        rows = [(name, _sentence(left.pop(name))) for name in names if name in left]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
    if left:
        with formatter.section("Other commands" if sections else "Commands"):
            formatter.write_dl([(name, _sentence(command)) for name, command in left.items()])


def _sentence(command: click.Command) -> str:
    return command.get_short_help_str(limit=1000)
