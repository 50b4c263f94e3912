"""Stores: objects by key, and how they become visible. They know nothing of Zarr."""

from shardwrite.stores.base import DURABILITIES, ObjectReader, ObjectWriter, Store, Transaction
from shardwrite.stores.posix import TEMPORARY_SUFFIX, PosixStore, check_key, write_file

__all__ = [
    "DURABILITIES",
    "TEMPORARY_SUFFIX",
    "ObjectReader",
    "ObjectWriter",
    "PosixStore",
    "Store",
    "Transaction",
    "check_key",
    "write_file",
]
