"""Places whose shards wait on the disk of each machine until they are put into a bucket."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardwrite.errors import SpecError
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target
from shardwrite.stores.local_path import local_path

if TYPE_CHECKING:
    from shardwrite.place.objects import InStore


def target_via(target: Target, directory: Any) -> Target:
    """The target as one whose shards wait in a directory; see `place_via`."""
    if directory is None:
        return target
    from shardwrite.place.objects import InStore  # with a directory only

    if not isinstance(target.place, Directory | InStore):
        return target
    return replace(target, place=place_via(target.place, directory))


def place_via(place: Directory | InStore, directory: Any) -> Directory | InStore:
    """The place as one whose shards wait in a directory until they are put into a bucket.

    - `directory`: the directory, on each machine's own disk. With None, the place is returned as it
      is.
    """
    if directory is None:
        return place
    from shardwrite.place.objects import InStore  # with a directory only

    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        raise SpecError(
            "no directory",
            field="via",
            value=directory,
            remedy='give the path of a directory, such as "/local/scratch"',
        )
    where = local_path(os.fsdecode(directory), "via")
    base = place.base.via(where) if isinstance(place, InStore) else None
    if base is None or base.scratch is None or not isinstance(place, InStore):
        raise no_bucket(place.label, where)
    return replace(place, base=base)


def no_bucket(label: str, directory: str) -> SpecError:
    """Error of a directory for shards that wait, where they do not wait for a network."""
    return SpecError(
        f"is for buckets, and shards of {label} do not wait for a network",
        field="via",
        value=directory,
        remedy="leave it out, or give the URL of a bucket, such as s3://bucket/x.zarr",
    )
