"""Volumes of Neuroglancer in a hierarchy that is copied: their ``info``, which follows last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.format.precomputed.boxes import PrecomputedShards
from shardwrite.format.precomputed.info import INFO, Scale, parse_info
from shardwrite.format.precomputed.new import NewScale, merged_info
from shardwrite.journal.volume_info import replace_info
from shardwrite.place.base import Place, names_above
from shardwrite.place.target import Target
from shardwrite.read.hierarchy import Hierarchy
from shardwrite.stores import parse_json

_BESIDE = ("mesh", "skeletons", "segment_properties")


def infos_of(tree: Hierarchy) -> dict[str, bytes]:
    """The ``info`` of each volume in a hierarchy as it stands there, by the path of the volume."""
    scales = {
        name
        for name, source in tree.arrays
        if name and isinstance(source.array.metadata.shard_format, PrecomputedShards)
    }
    found: dict[str, bytes] = {}
    for scale in sorted(scales):
        for name in reversed(["", *names_above(scale)]):
            if name not in found and (data := _node(tree, name).read(INFO)) is not None:
                found[name] = data
            if name in found:
                break
    for name, data in found.items():
        _check_scales(_node(tree, name).label, f"{name}/" if name else "", _parsed(data), scales)
    return found


def _node(tree: Hierarchy, name: str) -> Place:
    return tree.place.member(name) if name else tree.place


def _parsed(data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise SpecError(
            f"not valid: {error}", field=INFO, value=INFO, remedy="mend it, or remove it"
        ) from error


def _check_scales(label: str, above: str, document: Any, scales: set[str]) -> None:
    """Refuse an ``info`` that would stand over scales which are not copied."""
    try:
        keys = [scale.key for scale in parse_info(document).scales]
    except ShardwriteError as error:
        error.add_note(f"this is {label}/{INFO}")
        raise
    missing = [key for key in keys if above + key not in scales]
    if missing:
        raise SpecError(
            f"its {INFO} has the scale {missing[0]!r}, which shardwrite has not written, so that "
            "the copy would lack it",
            field="src",
            value=label,
            remedy="copy the whole directory with another tool, or the path of one scale",
        )


def beside_scales(infos: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    """Path of what else belongs to volumes and is not copied, and why."""
    return tuple(
        (f"{name}/{value}" if name else value, f"the {member} of a volume, which are no scale")
        for name, data in infos.items()
        for member in _BESIDE
        if isinstance(value := _parsed(data).get(member), str)
    )


def check_info(place: Place, data: bytes, mode: str) -> None:
    """Refuse to put an ``info`` where one stands that says something else.

    It is that of the same volume if both have the same scales, one has those of the other and
    more, or they share some.

    - `mode`: whether any other may be replaced.
    """
    there = place.read(INFO)
    if there is None or there == data or mode == "w":
        return
    old, new = (_scales(one) for one in (there, data))
    if old is None or new is None or old[0] != new[0] or not _are_of_one(old[1], new[1]):
        raise _of_another(place.label)


def _are_of_one(old: Sequence[Scale], new: Sequence[Scale]) -> bool:
    """Whether scales can be of one volume: some are the same, and others have other keys."""
    keys = {scale.key for scale in new}
    shared = [scale for scale in old if scale.key in keys]
    return bool(shared) and set(shared) <= set(new)


def _of_another(label: str) -> SpecError:
    return SpecError(
        f"the {INFO} of another volume stands there",
        field="dst",
        value=label,
        remedy='give another place, or mode="w" to replace it',
    )


def _scales(data: bytes) -> tuple[object, tuple[Scale, ...]] | None:
    """What the scales of a volume have in common, and the scales; None if it is no volume."""
    try:
        found = parse_info(_parsed(data))
    except SpecError:
        return None
    return (found.kind, found.dtype, found.n_channels), found.scales


def withdraw_scales(
    targets: Mapping[str, Target], infos: Mapping[str, bytes], durability: str
) -> None:
    """Take the scales out of each ``info`` that the new one describes otherwise, or lacks.

    Readers would read the new objects by the old description. Without any scale, the volume is an
    error to them.
    """

    def without(there: bytes | None, data: bytes) -> bytes | None:
        if there is None or there == data or _scales(there) is None:
            return None
        old, new = _parsed(there), _parsed(data)
        left = {**old, "scales": [one for one in old["scales"] if one in new["scales"]]}
        return None if left == old else json.dumps(left).encode()

    for name, data in infos.items():
        replace_info(targets[name], partial(without, data=data), durability)


def put_infos(targets: Mapping[str, Target], infos: Mapping[str, bytes], durability: str) -> None:
    """Put the ``info`` of each volume, by its path, unless the same stands there.

    Scales that another call has entered meanwhile stay in it.
    """
    for name, data in infos.items():
        label = targets[name].label
        replace_info(targets[name], partial(_joined, data=data, label=label), durability)


def _joined(there: bytes | None, data: bytes, label: str) -> bytes:
    """The new ``info``, with the scales of the one that stands there and that the new one lacks."""
    old, new = (None if one is None else _scales(one) for one in (there, data))
    if there is None or old is None or new is None:
        return data
    keys = {scale.key for scale in new[1]}
    others = [entry for entry in _parsed(there)["scales"] if entry["key"] not in keys]
    if not others:
        return data
    if old[0] != new[0]:
        raise _of_another(label)
    joined = _parsed(data)
    for entry in others:
        volume = parse_info({**joined, "scales": [entry]})
        joined = merged_info(joined, NewScale(volume, entry))
    return there if joined == _parsed(there) else json.dumps(joined, indent=2).encode() + b"\n"
