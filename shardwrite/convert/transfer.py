"""Uploads and downloads: arrays and hierarchies are copied as they are, object by object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar

from shardwrite.convert.arrays import call_of
from shardwrite.convert.keywords import ReshardArguments
from shardwrite.convert.transferring import (
    Transfer,
    TransferPlan,
    Transferring,
    open_transfer,
    plan_of,
    transfer,
    transfer_and_consume,
)
from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError
from shardwrite.operations.keywords import ProgressKeywords
from shardwrite.options import (
    BeginKeywords,
    Keywords,
    ModeKeywords,
    StateKeywords,
    ViaKeywords,
    argument,
    arguments,
    option,
    options_from,
)
from shardwrite.place.directory import Directory
from shardwrite.place.target import place_via, refuse_hierarchy, resolve_place
from shardwrite.runs.job import RunOptions, for_new_array


@arguments
class TransferArguments(Keywords):
    """What is copied, and where."""

    src: Any = argument(
        """The array, or a group with all that it holds, of Zarr v3: a directory, a URL such as
        ``s3://bucket/x.zarr``, or a store.""",
        kind="str, path, or store or node of zarr-python or obstore",
    )
    dst: Any = argument(
        "Where the copy goes: a URL such as ``s3://bucket/x.zarr``, or a store.",
        kind="str, or store or node of zarr-python or obstore",
    )


@arguments
class PlanTransferArguments(ViaKeywords, StateKeywords, TransferArguments):
    """Arguments of `plan_transfer`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "run_dir": """Directory for the state of the upload, which is needed to resume it. By
        default, it is a directory beside `src` whose name ends in ``.upload.shardwrite``. It is
        removed at the end."""
    }
    COMMAND_HELP: ClassVar[Mapping[str, str]] = {
        "run_dir": "Directory of the upload's state, which is needed to resume it. Default: beside "
        "SRC."
    }


@arguments
class UploadArguments(ProgressKeywords, BeginKeywords, ModeKeywords, PlanTransferArguments):
    """Arguments of `upload`."""

    section: ClassVar[str] = "Run"

    _: KW_ONLY
    consume: bool = option(
        False,
        """Remove each file of `src` as soon as its copy is durable, and was read back and compared.
        Use this if there is no room for two copies. There is no way back: in the end, `src` is
        gone. `src` must be a single array in a directory.""",
        command_help="Remove each file of SRC, a single array, as soon as its copy is durable and "
        "was compared with it. There is no way back.",
    )


@arguments
class DownloadArguments(ProgressKeywords, BeginKeywords, ModeKeywords, TransferArguments):
    """Arguments of `download`."""

    dst: Any = argument("The directory of the copy.", kind="str or path")


@taking(UploadArguments)
def upload(call: UploadArguments) -> Transfer:
    """Copy an array or a group to an object store as it is, shard by shard.

    The copy has the same documents and the same objects, byte for byte. Nothing is decoded. The
    index of each shard is checked before the shard is copied. At the end, all objects of the copy
    are compared with the journal by their sizes and index checksums, and only then are the arrays
    published. Groups follow with their attributes and consolidated metadata, the root last. The
    ``info`` of a volume of Neuroglancer is written after its scales.

    Returns
    -------
    Transfer
        What was copied.

    Notes
    -----
    After an interruption, make the same call again. Objects in the journal are not sent again. Two
    processes that make the same call at once both succeed, but may send an object twice. An upload
    of another source to the same place is refused while the first one lasts.

    Files of `src` that change meanwhile are copied once more, before anything is published. In a
    bucket, `src` must not change meanwhile. Files that do not belong to an array or a group are not
    copied. The receipt of each array is a new one.

    With ``consume=True``, `src` has no ``zarr.json`` from the first removal on, so that nobody
    reads removed objects as the fill value. After an interruption, the same call finishes. Until
    then, some of the data are in `src` and others in `dst`: remove neither. :func:`abandon` gives
    the upload up only if nothing was removed yet.

    Raises
    ------
    SpecError, JournalError
        Before anything is written, if an argument does not fit, or something else stands there.
    CorruptShardError
        If a shard of the source has a bad index. Nothing is published.
    IncompleteError
        If the process was asked to stop and objects are missing.
    StoreError
        If the storage refuses, or the source changes again and again.
    RunEndedError, WorkersLostError
        See :func:`to_sharded_zarr`.

    Examples
    --------
    >>> import dask.array as da, obstore.store, shardwrite, tempfile
    >>> path, bucket = tempfile.mkdtemp(), obstore.store.MemoryStore()
    >>> _ = da.arange(1000, chunks=100).to_sharded_zarr(path + "/a", shards=100, chunks=10)
    >>> shardwrite.upload(path + "/a", bucket).n_objects
    10
    >>> shardwrite.download(bucket, path + "/b").n_objects
    10
    """
    src, dst, place = call.src, call.dst, resolve_place(call.dst, None)
    refuse_hierarchy(place, "dst")
    through = place_via(place, call.via)
    is_url = isinstance(dst, str) and dst.lower().startswith("file:")
    if isinstance(place, Directory) and isinstance(dst, str | os.PathLike) and not is_url:
        raise SpecError(
            "is the path of a directory",
            field="dst",
            value=os.fspath(dst),
            remedy="give a URL such as s3://bucket/x.zarr; download copies to a directory",
        )
    if call.consume is not False:
        into = dst if call.via is None else through.store
        asked = options_from(call, ReshardArguments, dst=into, shards=None)
        return transfer_and_consume(src, call_of(asked), active_engine())
    run = for_new_array(options_from(call, RunOptions))
    return transfer(_opened(call), run, call.progress, active_engine())


@taking(DownloadArguments)
def download(call: DownloadArguments) -> Transfer:
    """Copy an array or a group to a directory as it is, shard by shard.

    This is the way back of an :func:`upload`, and makes the same promises. The state of the
    download lies beside each array, as that of every run in a directory.

    Returns
    -------
    Transfer
        What was copied.

    Notes
    -----
    Errors are those of :func:`upload`.

    Examples
    --------
    >>> import dask.array as da, obstore.store, shardwrite, tempfile
    >>> path, bucket = tempfile.mkdtemp(), obstore.store.MemoryStore()
    >>> _ = da.arange(1, 101, chunks=50).to_sharded_zarr(bucket, name="a", shards=50, chunks=10)
    >>> shardwrite.download(bucket, path + "/b").n_objects
    2
    """
    src, dst, place = call.src, call.dst, resolve_place(call.dst, None)
    refuse_hierarchy(place, "dst")
    if not isinstance(place, Directory):
        raise SpecError(
            "is no directory",
            field="dst",
            value=dst if isinstance(dst, str) else type(dst).__name__,
            remedy="give the path of a directory; upload copies to a URL",
        )
    run = for_new_array(options_from(call, RunOptions))
    return transfer(open_transfer(src, dst, None), run, call.progress, active_engine())


@taking(PlanTransferArguments)
def plan_transfer(call: PlanTransferArguments) -> TransferPlan:
    """Plan what :func:`upload` or :func:`download` would do. Nothing is written.

    The source is listed, and the sizes of its objects are looked up.

    Returns
    -------
    TransferPlan
        Objects, bytes, requests and memory.

    Raises
    ------
    SpecError
        If an argument does not fit.
    StoreError
        If the storage refuses.

    Examples
    --------
    >>> import dask.array as da, obstore.store, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/a"
    >>> _ = da.arange(1, 101, chunks=50).to_sharded_zarr(path, shards=50, chunks=10)
    >>> plan = shardwrite.plan_transfer(path, obstore.store.MemoryStore())
    >>> plan.n_objects, plan.requests_to_target.n_put
    (2, 9)
    """
    return plan_of(_opened(call), active_engine())


def _opened(call: PlanTransferArguments) -> Transferring:
    opened = open_transfer(call.src, call.dst, call.run_dir)
    return replace(opened, place=place_via(opened.place, call.via))
