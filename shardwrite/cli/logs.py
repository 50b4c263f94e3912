"""The log of a command, on standard error."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click

from shardwrite.cli.terminal import echo
from shardwrite.config.table import LOG_LEVEL

log_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default=LOG_LEVEL.default,
    show_default=True,
    help="Least level of the log, which is printed to standard error.",
)


class _Handler(logging.Handler):
    """Handler that prints records like all else that commands print."""

    def emit(self, record: logging.LogRecord) -> None:
        """See :meth:`logging.Handler.emit`."""
        try:
            echo(self.format(record), err=True)
        except Exception:  # noqa: BLE001 (a log that cannot be printed ends no run)
            self.handleError(record)


class _Formatter(logging.Formatter):
    """Format of records: time, level, logger, message, and run and shard where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """See :meth:`logging.Formatter.format`."""
        facts = [(name, getattr(record, name, "")) for name in ("run", "shard")]
        known = [f"{name}={value}" for name, value in facts if value]
        return " ".join([super().format(record), *known])


@contextlib.contextmanager
def logging_to_terminal(level: str) -> Iterator[None]:
    """Print the log of this package to standard error until the block ends."""
    logger, handler = logging.getLogger("shardwrite"), _Handler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
