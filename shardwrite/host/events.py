"""The log: what happens in runs, as records of :mod:`logging` below ``shardwrite``.

Each record has the attributes ``run``, the directory of the run, and ``shard``, the key of a shard;
they are empty where there is none. Credentials are removed. The package installs no handler but
`logging.NullHandler`, so a program sees records only if it configures logging.
"""

from __future__ import annotations

import logging
import os

from shardwrite.errors import printable, redacted

RUNS = logging.getLogger("shardwrite.runs")
"""Runs that begin, are joined, go on, end or fail, and their waves."""

SHARDS = logging.getLogger("shardwrite.shards")
"""Commits that are tried again; at the level DEBUG, each shard."""

TAKEOVERS = logging.getLogger("shardwrite.takeovers")
"""What is done about processes that have died: their claims, changes and runs."""

logging.getLogger("shardwrite").addHandler(logging.NullHandler())


def is_told(logger: logging.Logger, level: int) -> bool:
    """Whether records of a level go anywhere, so that it is worth to make them."""
    return logger.isEnabledFor(level)


def tell(
    logger: logging.Logger,
    level: int,
    message: str,
    *,
    run: str | os.PathLike[str],
    shard: str = "",
) -> None:
    """Make a record.

    - `message`: one sentence. Credentials in URLs are removed.
    """
    if logger.isEnabledFor(level):
        facts = {"run": redacted(os.fspath(run)), "shard": redacted(shard)}
        logger.log(level, "%s", printable(redacted(message)), extra=facts, stacklevel=2)
