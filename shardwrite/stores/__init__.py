"""Stores: read, write and remove objects by key, independently of Zarr."""

from shardwrite.stores.base import (
    DURABILITIES,
    Bounded,
    Carrying,
    Dated,
    Described,
    Linkable,
    ObjectEditor,
    ObjectReader,
    ObjectWriter,
    Overlapping,
    Protectable,
    Readable,
    Staged,
    Store,
    Transaction,
    Unguarded,
    Writable,
)
from shardwrite.stores.bucket import BucketStore
from shardwrite.stores.bucket_files import FileInBucket, file_in_bucket
from shardwrite.stores.bucket_kinds import is_bucket
from shardwrite.stores.bucket_parts import put_limit
from shardwrite.stores.bucket_scratch import COPIED_FROM_BUCKET_NBYTES, Room, room_in
from shardwrite.stores.bucket_uploads import part_nbytes_for
from shardwrite.stores.bucket_url import is_bucket_url, open_bucket
from shardwrite.stores.capabilities import Capability, require
from shardwrite.stores.descriptors import pread_all, pwrite_all, write_all, write_new
from shardwrite.stores.directories import (
    CONVERSION_SUFFIX,
    WORK_PREFIX,
    fsync_directory,
    make_directories,
    make_directory,
    walk,
)
from shardwrite.stores.exchange import check_movable, exchange
from shardwrite.stores.files import (
    COPIED_NBYTES,
    can_copy_between,
    copy_bytes,
    copy_file,
    discard_file,
    sync_entry,
    write_file,
)
from shardwrite.stores.inside import Contents, InsideStore, Member, Ranges, Told
from shardwrite.stores.keys import check_key, is_plain_key
from shardwrite.stores.local_path import local_path
from shardwrite.stores.looking import (
    is_file,
    is_there,
    listed,
    mode_of,
    mount_of,
    owner_of,
    parse_document,
    parse_json,
    read_blocks,
    read_file,
    read_json,
    read_limit,
    read_there,
)
from shardwrite.stores.memory import MemoryStore
from shardwrite.stores.opening import (
    Opened,
    is_icechunk,
    is_session,
    is_store_url,
    open_store,
    refusal_to_write,
    to_write,
)
from shardwrite.stores.posix import PosixStore
from shardwrite.stores.reading import as_store_error, open_plain
from shardwrite.stores.removal import (
    SET_ASIDE,
    Proof,
    data_in,
    remove_data,
    remove_state,
    set_aside,
)
from shardwrite.stores.rights import copy_rights, rights_of
from shardwrite.stores.temporaries import TEMPORARY_SUFFIX, discard_open_temporaries
from shardwrite.stores.tokens import token_of
from shardwrite.stores.whole import WholeStore

__all__ = [
    "CONVERSION_SUFFIX",
    "COPIED_FROM_BUCKET_NBYTES",
    "COPIED_NBYTES",
    "DURABILITIES",
    "SET_ASIDE",
    "TEMPORARY_SUFFIX",
    "WORK_PREFIX",
    "Bounded",
    "BucketStore",
    "Capability",
    "Carrying",
    "Contents",
    "Dated",
    "Described",
    "FileInBucket",
    "InsideStore",
    "Linkable",
    "Member",
    "MemoryStore",
    "ObjectEditor",
    "ObjectReader",
    "ObjectWriter",
    "Opened",
    "Overlapping",
    "PosixStore",
    "Proof",
    "Protectable",
    "Ranges",
    "Readable",
    "Room",
    "Staged",
    "Store",
    "Told",
    "Transaction",
    "Unguarded",
    "WholeStore",
    "Writable",
    "as_store_error",
    "can_copy_between",
    "check_key",
    "check_movable",
    "copy_bytes",
    "copy_file",
    "copy_rights",
    "data_in",
    "discard_file",
    "discard_open_temporaries",
    "exchange",
    "file_in_bucket",
    "fsync_directory",
    "is_bucket",
    "is_bucket_url",
    "is_file",
    "is_icechunk",
    "is_plain_key",
    "is_session",
    "is_store_url",
    "is_there",
    "listed",
    "local_path",
    "make_directories",
    "make_directory",
    "mode_of",
    "mount_of",
    "open_bucket",
    "open_plain",
    "open_store",
    "owner_of",
    "parse_document",
    "parse_json",
    "part_nbytes_for",
    "pread_all",
    "put_limit",
    "pwrite_all",
    "read_blocks",
    "read_file",
    "read_json",
    "read_limit",
    "read_there",
    "refusal_to_write",
    "remove_data",
    "remove_state",
    "require",
    "rights_of",
    "room_in",
    "set_aside",
    "sync_entry",
    "to_write",
    "token_of",
    "walk",
    "write_all",
    "write_file",
    "write_new",
]
