"""Output to the terminal. All commands print by the functions here.

File names and the contents of documents come from other people. Their control characters are spelt
out before they are printed, so that none of them moves the cursor or overwrites what is shown.
Credentials are removed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import click

from shardwrite.errors import SpecError, printable, redacted

__all__ = ["Program", "echo", "emit", "exact", "printable", "telling_warnings"]


def echo(text: str, *, err: bool = False) -> None:
    """Print a text for people, or JSON, without control characters and credentials."""
    click.echo(printable(redacted(text)), err=err)


def exact(text: str) -> str:
    """Check a text that another program reads, such as a script or a path, and return it unchanged."""
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


def emit(text: str, *, nl: bool = True) -> None:
    """Print a text that another program reads, unchanged."""
    click.echo(exact(text), nl=nl)


class Program(click.Group):
    """Group of commands whose errors are printed without control characters and credentials."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """See :meth:`click.Command.make_context`."""
        with _as_printable():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """See :meth:`click.Command.invoke`."""
        with _as_printable():
            return super().invoke(ctx)


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
