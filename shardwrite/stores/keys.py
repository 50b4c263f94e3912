"""Keys of objects, the same in every store."""

from __future__ import annotations

import errno

from shardwrite.errors import StoreError

_NOT_PLAIN = frozenset(("", ".", ".."))


def is_plain_key(key: str) -> bool:
    """Whether a key stays inside the store: it is a relative path of plain names."""
    return bool(key) and "\0" not in key and _NOT_PLAIN.isdisjoint(key.split("/"))


def check_key(key: str) -> str:
    """Verify that a key stays inside the store, and return it."""
    if not is_plain_key(key):
        raise StoreError(
            f"key {key!r} is not a relative path of plain names", key=key, errno=errno.EINVAL
        )
    return key


def check_prefix(prefix: str) -> str:
    """Verify that a prefix is empty, or is a key that is followed by a slash, and return it."""
    if prefix:
        if not prefix.endswith("/"):
            raise StoreError(
                f"prefix {prefix!r} does not end in a slash", key=prefix, errno=errno.EINVAL
            )
        check_key(prefix[:-1])
    return prefix
