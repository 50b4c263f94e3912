"""Options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shardwrite.cli.completion import files, formats, one_of
from shardwrite.cli.values import Attributes, Extents, Json, Names, OneCodec, Sizes
from shardwrite.config.table import ACCEPT_SOURCE


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator that adds the options of several, in the order given."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _accept(context: click.Context, _: Any, value: bool) -> None:
    if value:
        import dask

        context.with_resource(dask.config.set({ACCEPT_SOURCE.path: True}))


accept_source_option = click.option(
    "--accept-source",
    is_flag=True,
    expose_value=False,
    callback=_accept,
    help="Go on with a run although the name or the time of SRC has changed. You say by this that "
    "its data are the same.",
)
source_id_option = click.option(
    "--source-id",
    metavar="NAME",
    help="Name of the data of SRC. Where it is the same, a run goes on. Default: made of its "
    "place, size and time.",
)
source_options = combined(
    source_id_option,
    accept_source_option,
    click.option(
        "--format",
        "source_format",
        shell_complete=formats,
        help="Format of SRC. Default: guessed from name and content.",
    ),
    click.option("--dataset", help="Path of the array inside SRC, as after :: in FILE::PATH."),
    click.option("--shape", type=Extents(), help="Shape of a raw file, such as 512,512,64."),
    click.option("--dtype", help="Type of the elements of a raw file, such as uint16."),
    click.option(
        "--offset", type=int, default=0, help="Number of bytes before the data of a raw file."
    ),
    click.option(
        "--source-chunks",
        type=Sizes(),
        help="Read SRC in chunks of this shape. Default: as the file has them.",
    ),
    click.option(
        "--decode-cf",
        is_flag=True,
        help="Unpack, mask and convert times as the attributes of SRC say (extra: cf). Give it "
        "for each file of an array, or for none.",
    ),
)
manifest_option = click.option(
    "--manifest",
    type=click.Choice(["nonempty_chunks"]),
    help="Keep the list of the inner chunks that hold data in an attribute of this name.",
)
placing_option = click.option(
    "--strategy",
    shell_complete=one_of("fixed-order", "append-only", "C", "F", "morton", "hdf5"),
    default="fixed-order",
    help="How inner chunks are placed in a shard: fixed-order, append-only, C, F or morton; or "
    "hdf5, which makes each shard a file of HDF5, too, or hdf5:NAME with this name of the dataset.",
)
drop_hdf5_option = click.option(
    "--drop-hdf5",
    is_flag=True,
    help="Make plain shards of those that are also HDF5 files. Only --strategy hdf5 keeps them so.",
)
layout_options = combined(
    click.option(
        "--shards",
        type=Sizes(),
        default="auto",
        help="Size of a shard (one file): 256 or 256,256,64 elements, 256MB, auto, or none for an "
        "array without shards.",
    ),
    click.option(
        "--chunks",
        type=Sizes(),
        default="auto",
        help="Size of an inner chunk, likewise: 64, 64,64,16, 512kB or auto.",
    ),
    click.option(
        "--compressors",
        type=Json(),
        default="auto",
        help="A codec's name (a checksum follows), a JSON list of exactly these codecs, none, or "
        "auto (zstd with a checksum).",
    ),
    click.option(
        "--filters",
        type=Json('[{"name": "transpose", "configuration": {"order": [1, 0]}}]'),
        default="auto",
        help="JSON list of codecs that change values before they are compressed.",
    ),
    click.option(
        "--serializer",
        type=OneCodec(),
        default="auto",
        help="Codec that makes bytes of values: a codec's name, a JSON object such as a sharding "
        "(for shards within shards), or auto (little-endian bytes).",
    ),
    click.option(
        "--fill-value",
        help="Value of elements that are not stored, in the dtype of the array: 5, nan, true, 1+2j "
        "or 0x7fc00001. Default: that of SRC.",
    ),
    click.option(
        "--dimension-names",
        type=Names(),
        help="Names of the axes, such as time,y,x. Default: those of SRC.",
    ),
    click.option(
        "--attributes",
        type=Attributes(),
        help="JSON object of attributes, added to those of SRC.",
    ),
    click.option(
        "--index-location",
        type=click.Choice(["end", "start"]),
        default="end",
        help="Where a shard holds its index.",
    ),
    click.option(
        "--array-format",
        "format",
        type=click.Choice(["transformer-2022"]),
        help="Write an array of the storage transformer of 2022. Default: Zarr v3.",
    ),
    manifest_option,
    placing_option,
    click.option(
        "--write-empty-chunks",
        is_flag=True,
        help="Also store inner chunks that hold only the fill value.",
    ),
    click.option(
        "--memory-limit",
        help="Memory of each worker process, such as 4GB. Default: what it may use, or in a job "
        "array, 1 GiB for each thread.",
    ),
)
restart_option = click.option(
    "--restart",
    is_flag=True,
    help="Remove what an interrupted run has written, and start over.",
)
recheck_option = click.option(
    "--recheck",
    is_flag=True,
    help="Decode the shards that an earlier call has written, and write the bad ones again.",
)
durability_option = click.option(
    "--durability",
    type=click.Choice(["full", "batch", "none"]),
    help="What survives a power cut: full and batch sync shards to the disk, none does not. "
    "Default: full.",
)
via_option = click.option(
    "--via",
    metavar="DIRECTORY",
    help="With a bucket: let shards wait in this directory on each machine's own disk until they "
    "are put. It may name variables, such as '$SLURM_TMPDIR'. Default: they wait in memory.",
)
exclusive_option = click.option(
    "--exclusive",
    is_flag=True,
    help="Promise that nobody else writes to the array meanwhile. Only for buckets that cannot "
    "refuse a request if an object has changed.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and write nothing."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
keep_report_option = click.option(
    "--keep-report",
    is_flag=True,
    help="Keep a report of the run, with its timeline, in the array.",
)
name_option = click.option("--name", help="Path of the array inside the store.")
scheduler_option = click.option(
    "--scheduler",
    "address",
    shell_complete=files,
    help="Use a running dask scheduler: its address, or the path of its scheduler file.",
)
requeue_option = click.option(
    "--requeue",
    "n_requeues",
    type=click.IntRange(0),
    metavar="N",
    help="In a SLURM job that USR1 stops: put the job back into the queue, at most N times, if it "
    "has written shards.",
)
engine_options = combined(
    click.option(
        "--threads", type=click.IntRange(1), help="Number of threads. Default: one for each core."
    ),
    click.option(
        "--workers",
        type=click.IntRange(1),
        help="Use this many processes (a local dask cluster) instead of threads.",
    ),
    scheduler_option,
)
