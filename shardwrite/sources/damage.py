"""Errors about damaged files, which each library has in its own words, as one error."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from shardwrite.errors import ShardwriteError, SourceError
from shardwrite.grid import Box

_OF_DAMAGE = (EOFError, OSError, RuntimeError, ValueError, struct.error, zlib.error)
"""What libraries raise about a damaged file. None of these is only for damage."""


@contextmanager
def naming_damage(path: str, box: Box) -> Iterator[None]:
    """Turn what a library raises about a damaged file into an error that names the file.

    Errors of the operating system, which have a number, stay as they are.
    """
    try:
        yield
    except ShardwriteError:
        raise
    except _OF_DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise SourceError(
            f"{path} cannot be read, and may be damaged: {error}", region=box.bounds
        ) from error
