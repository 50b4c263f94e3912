"""Stores: objects by key, and how they become visible. They know nothing of Zarr."""

from shardwrite.stores.base import DURABILITIES, ObjectReader, ObjectWriter, Store, Transaction
from shardwrite.stores.looking import is_file, is_there, listed, mode_of, owner_of, read_file, read_json
from shardwrite.stores.posix import PosixStore, make_directories, write_file
from shardwrite.stores.reading import as_store_error, check_key
from shardwrite.stores.removal import SET_ASIDE, Proof, data_in, remove_data, remove_state, set_aside
from shardwrite.stores.temporaries import TEMPORARY_SUFFIX, discard_open_temporaries

__all__ = [
    "DURABILITIES",
    "SET_ASIDE",
    "TEMPORARY_SUFFIX",
    "ObjectReader",
    "ObjectWriter",
    "PosixStore",
    "Proof",
    "Store",
    "Transaction",
    "as_store_error",
    "check_key",
    "data_in",
    "discard_open_temporaries",
    "is_file",
    "is_there",
    "listed",
    "make_directories",
    "mode_of",
    "owner_of",
    "read_file",
    "read_json",
    "remove_data",
    "remove_state",
    "set_aside",
    "write_file",
]
