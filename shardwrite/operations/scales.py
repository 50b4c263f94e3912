"""Scales of volumes that are written in parts, and the ``info`` that they enter in the end."""

from __future__ import annotations

from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT
from shardwrite.format.precomputed.new import NewScale, merged_info
from shardwrite.format.precomputed.stored import stored_scale
from shardwrite.journal import change_info, read_volume
from shardwrite.operations.scattered import counted_as, refuse_spool
from shardwrite.place.scale import around, has_spool, places_around
from shardwrite.place.target import Target, resolve_target
from shardwrite.runs.gathered import remove_spool
from shardwrite.runs.result import WriteResult


def check_scale(target: Target, metadata: ArrayMetadata, run_dir: object = None) -> None:
    """Refuse to begin a scale that its volume cannot take. Other arrays are not looked at."""
    found = _scale_at(target, metadata, run_dir)
    if found is not None:
        merged_info(read_volume(found[0].place), found[1])


def enter_scale(target: Target, run_dir: object = None) -> None:
    """Enter an array that was published into the ``info`` of its volume, if it is a scale.

    Its spool is then removed, if it has one.
    """
    data = target.place.read(DOCUMENT)
    found = None if data is None else _scale_at(target, parse_metadata(data.decode()), run_dir)
    if found is not None:
        volume, scale = found
        change_info(volume, lambda old: merged_info(old, scale), volume.durability())
        places = places_around(target, run_dir) if scale.is_scattered else None
        if places is not None and has_spool(places.spool):
            remove_spool(places.spool)


def counted_scale(target: Target, result: WriteResult) -> WriteResult:
    """The result of a whole array, with numbers of the volume if its hash scatters the chunks."""
    data = target.place.read(DOCUMENT)
    key = (around(target.place) or ("", "", ""))[2]
    scale = None if data is None else stored_scale(parse_metadata(data.decode()), key)
    return result if scale is None or not scale.is_scattered else counted_as(result, scale)


def _scale_at(
    target: Target, metadata: ArrayMetadata, run_dir: object
) -> tuple[Target, NewScale] | None:
    """The volume of an array, and the scale that it is; None if it is none."""
    refuse_spool(metadata)
    volume, above, key = around(target.place) or (None, "", "")
    scale = stored_scale(metadata, key)
    if scale is None:
        return None
    if not key:
        raise SpecError(
            "a scale lies in a volume",
            field="store",
            value=target.label,
            remedy="give a URL that ends in the key of the scale, or that key as name=",
        )
    return resolve_target(volume, above or None, run_dir), scale
