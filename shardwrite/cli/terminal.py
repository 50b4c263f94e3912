"""The one way from a text to the terminal.

Names of files and what documents say come from others. They reach the terminal with their control characters spelt out, so that
none of them moves the cursor or rewrites what stands there, and without credentials.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import click

from shardwrite.errors import SpecError, redacted

__all__ = ["Program", "echo", "emit", "exact", "printable"]

# control characters but for tab and newline, what turns the direction of writing, and bytes that are no text
_UNPRINTABLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""A text with its control characters spelt out.

    Examples
    --------
    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode-escape").decode(), text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text for people, or JSON."""
    click.echo(printable(redacted(text)), err=err)


def exact(text: str) -> str:
    """A text that another program reads, which cannot be changed: a script, or a path.

    Raises
    ------
    SpecError
        If it holds control characters or credentials.
    """
    for line in text.split("\n"):
        if printable(line) != line:
            raise SpecError(
                "holds control characters",
                field="line",
                value=line,
                remedy="give paths and options without them",
            )
        if redacted(line) != line:
            remedy = "have the program that needs them read them from a file of yours, or from its environment"
            raise SpecError("holds credentials", field="line", value=line, remedy=remedy)
    return text


def emit(text: str, *, nl: bool = True) -> None:
    """Print what another program reads: exactly, or not at all (see :func:`exact`)."""
    click.echo(exact(text), nl=nl)


class Program(click.Group):
    """A group of commands whose errors are printed like everything else."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """See :meth:`click.Command.make_context`."""
        with _as_printable():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """See :meth:`click.Command.invoke`."""
        with _as_printable():
            return super().invoke(ctx)


@contextlib.contextmanager
def _as_printable() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        setattr(error, "message", printable(redacted(error.message)))  # noqa: B010 (click declares it final)
        raise
