"""Stores: objects by key, and how they become visible. They know nothing of Zarr."""

from shardwrite.stores.base import DURABILITIES, ObjectReader, ObjectWriter, Store, Transaction
from shardwrite.stores.looking import is_file, is_there, listed, mode_of, owner_of, read_file, read_json
from shardwrite.stores.posix import PosixStore, make_directories, write_file
from shardwrite.stores.reading import as_store_error, check_key
from shardwrite.stores.temporaries import TEMPORARY_SUFFIX, discard_open_temporaries

__all__ = [
    "DURABILITIES",
    "TEMPORARY_SUFFIX",
    "ObjectReader",
    "ObjectWriter",
    "PosixStore",
    "Store",
    "Transaction",
    "as_store_error",
    "check_key",
    "discard_open_temporaries",
    "is_file",
    "is_there",
    "listed",
    "make_directories",
    "mode_of",
    "owner_of",
    "read_file",
    "read_json",
    "write_file",
]
