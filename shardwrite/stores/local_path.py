"""Paths of this machine, from what users write for them."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote_to_bytes

from shardwrite.errors import SpecError

_FILE = re.compile(r"file:", re.IGNORECASE)
_NO_BYTE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def local_path(text: str, field: str = "store") -> str:
    """Path that a user has written as a ``file:`` URL or with ``~`` for the home directory.

    A shell replaces ``~`` only at the beginning of a word, and Python never does. Taken as it is,
    it would name a directory, ``~``, below the working directory.

    - `text`: what the user has written. All other text is returned as it is.

    Examples
    --------
    >>> local_path("file:///data/a%20b.zarr"), local_path("s3://bucket/x"), local_path("./~x")
    ('/data/a b.zarr', 's3://bucket/x', './~x')
    """
    if _FILE.match(text):
        return _path_of_url(text, field)
    try:
        return os.path.expanduser(text)
    except ValueError:  # no user can have such a name, with a zero byte or half a character
        return text


def _path_of_url(url: str, field: str) -> str:
    """Absolute path in a ``file:`` URL, with percent-encoding decoded."""
    rest = url.partition(":")[2]
    host, slash, path = (
        rest.removeprefix("//").partition("/")
        if rest.startswith("//")
        else ("", rest[:1], rest[1:])
    )
    if host.lower() not in ("", "localhost") or slash != "/" or "?" in path or "#" in path:
        remedy = "give file:///an/absolute/path, where %3F and %23 stand for ? and #, or a path"
        raise SpecError("no URL of a local directory", field=field, value=url, remedy=remedy)
    if _NO_BYTE.search(path):
        raise SpecError(
            "a percent sign without two digits after it",
            field=field,
            value=url,
            remedy="write %25 for %, or give a path",
        )
    return "/" + os.fsdecode(unquote_to_bytes(path))
