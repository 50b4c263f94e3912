"""Output to the terminal: all commands print by the functions here, and so does their help.

File names and the contents of documents come from other people. Their control characters are spelt
out before they are printed, so that none of them moves the cursor or overwrites what is shown.
Credentials are removed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import click

from shardwrite.errors import SpecError, printable, redacted

__all__ = ["Program", "echo", "emit", "exact", "printable", "tell", "telling_warnings"]

_STDERR = 2


def echo(text: str, *, err: bool = False) -> None:
    """Print a text for people, or JSON, without control characters and credentials."""
    try:
        click.echo(printable(redacted(text)), err=err)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"cannot print: {error.strerror}") from None


def exact(text: str) -> str:
    """Return a text that another program reads, such as a path, or refuse control characters."""
    for line in text.split("\n"):
        if printable(line) != line:
            raise SpecError(
                "holds control characters",
                field="line",
                value=line,
                remedy="give paths and options without them",
            )
        if redacted(line) != line:
            remedy = (
                "have the program that needs them read them from a file of yours, "
                "or from its environment"
            )
            raise SpecError("holds credentials", field="line", value=line, remedy=remedy)
    return text


def tell(done: Any, *, as_json: bool) -> None:
    """Print a plan or a result, or several of them, which make a list of JSON."""
    if isinstance(done, list):
        text = json.dumps([one.to_dict() for one in done], indent=2)
        echo(text if as_json else "\n\n".join(map(str, done)))
    else:
        echo(done.to_json() if as_json else str(done))


def emit(text: str, *, nl: bool = True) -> None:
    """Print a text that another program reads, unchanged; paths are what they are on disk."""
    click.echo(os.fsencode(exact(text)), nl=nl)


class Program(click.Group):
    """Group of commands whose errors are printed without control characters and credentials."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """See :meth:`click.Command.make_context`. It comes before any other file is opened."""
        _fill_standard_descriptors()
        _spell_out_characters()
        with _as_printable():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """See :meth:`click.Command.invoke`."""
        with _as_printable():
            return super().invoke(ctx)


def _fill_standard_descriptors() -> None:
    """Open ``/dev/null`` where this process was started without standard input, output or error.

    Else a file of an array would get that number, and what a library of C prints would go into it.
    Processes that this one starts get the descriptors, too.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= _STDERR:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)


def _spell_out_characters() -> None:
    """Spell out characters that the terminal's encoding lacks, which would be an error else."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def telling_warnings(in_words: Callable[[str], str]) -> Iterator[None]:
    """Print warnings of this package as a line of text, as long as the block lasts.

    Other categories, which libraries have for their developers, are shown as Python shows them.
    """
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category is UserWarning:
            echo(f"Warning: {in_words(str(message))}", err=True)
        else:
            others(message, category, *where, **more)

    warnings.showwarning = cast("Any", show)
    try:
        yield
    finally:
        warnings.showwarning = others


@contextlib.contextmanager
def _as_printable() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        setattr(error, "message", printable(redacted(error.message)))  # noqa: B010 (it is final)
        raise


# ---- Help of commands


_FEW = 8  # options of a command that need no groups

_REST = "Options"

# Options that are made of no keyword, by the titles of their sections, in the order of these
_SECTIONS = {
    "Source": "--dataset",
    "Array": "--strategy",
    "Which arrays": "",
    "Run": "--overwrite --restart --accept-source --dry-run --check-twice --in-place --casting "
    "--run-dir",
    "Parts, for job arrays": "--init --part --finalize --resubmit",
    "Threads, processes and memory": "--threads --workers --scheduler --memory-limit",
    "SLURM jobs": "",
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
    sections: Mapping[str, Iterable[str]],
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
