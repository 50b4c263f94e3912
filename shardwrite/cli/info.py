"""The command that describes an array."""

from __future__ import annotations

import json

import click

from shardwrite.cli.common import command, looking_at
from shardwrite.cli.completion import directories
from shardwrite.cli.options import name_option
from shardwrite.cli.terminal import echo
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.journal.lease import live_holders
from shardwrite.journal.receipt import read_receipt
from shardwrite.operations.verify import Opened, open_begun, verify_opened


@command()
@click.argument("array", shell_complete=directories)
@name_option
def info(array: str, name: str | None, as_json: bool) -> None:
    """Show what ARRAY is: its metadata, sizes and state.

    This also says who wrote the array, or who is writing it now.
    """
    opened = open_begun(array, name)
    with looking_at(opened, quiet=as_json) as on_shards:
        report = verify_opened(opened, on_shards=on_shards)
    metadata = opened.array.metadata
    facts = {
        "shape": list(metadata.grid.shape),
        "dtype": str(metadata.dtype),
        "shards": list(metadata.grid.shards),
        "chunks": list(metadata.grid.chunks),
        "codecs": [codec["name"] for codec in metadata.inner_codecs],
        "fill_value": metadata.document["fill_value"],
        "index_location": metadata.index_codec.location,
        "index_checksum": metadata.index_codec.has_checksum,
        **_history(opened),
    }
    if isinstance(metadata.placed, ScatteredChunks):  # the shape counts its chunks, one by one
        facts["volume"] = list(metadata.placed.origin_shape)
    if report.n_pending:
        facts["progress"] = report.told_progress
    if as_json:
        echo(json.dumps({**facts, **report.to_dict()}, indent=2))
        return
    for field, value in facts.items():
        echo(f"  {field:<15} {value}")
    echo(str(report))


def _history(opened: Opened) -> dict[str, object]:
    """Facts about the run that has not ended and its writers, or else about the finished run.

    Interrupted updates are listed if no run of the whole array is unfinished.
    """
    beside = opened.beside
    run = beside.run
    facts: dict[str, object] = {
        "unfinished": run is not None if beside.untrusted is None else "unknown, see the warning"
    }
    if run is not None:
        facts["writers"] = [h.told for h in live_holders(run.shared, looking=True)]
        return facts
    dead = [other for other in beside.updates if not live_holders(other.shared, looking=True)]
    regions = [other.record.identity.region for other in dead]
    interrupted = [region and [list(pair) for pair in region] for region in regions]
    if interrupted:
        facts["interrupted_updates"] = interrupted
    receipt = read_receipt(opened.target)
    if receipt is not None:
        facts |= {
            "finished": receipt.finished,
            "by": f"shardwrite {receipt.version}, durability {receipt.durability}",
            "plan": receipt.digest[:16],
            "source": receipt.identity.source,
            "strategy": receipt.identity.strategy,
            "seconds": receipt.result.get("seconds"),
            "updates": sum(not update.given_up for update in receipt.updates),
        }
    return facts
