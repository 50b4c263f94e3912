"""What arrays may hold after a history of operations, judged from outside.

This module knows numpy and zarr-python, and nothing of shardwrite. An element is a function of the
array's name, of its coordinate and of a version, and the version can be read from it. So a value
that is stale, torn, misplaced or of another array shows.

A history is a list of changes, each with the times when it began and ended, and whether it was
acknowledged. Two changes that overlap in time may have come in either order. An acknowledged change
hides every change that ended before it began. A change that was not acknowledged may have happened
or not, each of its units by itself.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import zarr

MAX_VERSION = 2**12 - 1
_BITS = np.uint32(20)
Box = tuple[slice, ...]
IDS = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "hash": "identity",
    "preshift_bits": 3,
    "minishard_bits": 1,
    "shard_bits": 2,
}
"""Where chunks by id lie: shard n has the ids from 16 n on."""


def _mixed(name: str, starts, shape, versions) -> np.ndarray:
    x = np.asarray(versions, np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        zlib.crc32(name.encode())
    )
    for axis, (start, n) in enumerate(zip(starts, shape, strict=True)):
        along = np.arange(start, start + n, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
        x = x ^ along.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return np.broadcast_to((x >> np.uint64(44)).astype(np.uint32), shape)


def values(name: str, box, version: int) -> np.ndarray:
    """The elements of an array in a box, a list of ``[start, stop]``, in a version; version 0 is
    the fill value."""
    starts, shape = [b[0] for b in box], [b[1] - b[0] for b in box]
    if version == 0:
        return np.zeros(shape, np.uint32)
    return (np.uint32(version) << _BITS) | _mixed(name, starts, shape, version)


def versions_of(seen: np.ndarray, name: str, starts=None) -> np.ndarray:
    """The version of every element, -1 where it is none of this array at this place."""
    versions = (seen >> _BITS).astype(np.int32)
    right = values_of_versions(versions, name, starts or [0] * seen.ndim)
    return np.where(seen == right, versions, -1)


def values_of_versions(versions: np.ndarray, name: str, starts=None) -> np.ndarray:
    """The elements of an array whose elements are of these versions."""
    mixed = _mixed(name, starts or [0] * versions.ndim, versions.shape, versions)
    return np.where(versions == 0, np.uint32(0), (versions.astype(np.uint32) << _BITS) | mixed)


@dataclass
class Change:
    """What an operation does to one array: an entry of the history."""

    array: str
    kind: str  # "put", "grow" (the same, and axis 0 reaches to its end), "new", "gone" or "same"
    box: list[list[int]] = field(default_factory=list)
    version: int = 0
    unit: list[int] = field(default_factory=list)  # what changes at once; empty: an element
    like: str = ""  # of "new": the array of whose elements this one is a copy
    copied: str = ""  # and a file with the version of each
    tears: list[int] = field(default_factory=list)  # what may be unreadable until it was recovered
    begin: int = 0
    end: int = 2**63
    acked: bool = False


@dataclass
class State:
    """An array whose history is settled; None stands for no array."""

    versions: np.ndarray | None
    name: str  # of which its elements are a function


def look(store, path: str) -> tuple[np.ndarray | None, np.ndarray | None, str]:
    """An array as zarr-python reads it, where it cannot be read, and why; None for no array."""
    try:
        array = zarr.open_array(store, path=path, mode="r")
    except (FileNotFoundError, KeyError, zarr.errors.NodeTypeValidationError):
        return None, None, ""
    except Exception as error:
        return None, None, f"its document: {type(error).__name__}: {error}"[:200]
    blind = np.zeros(array.shape, bool)
    try:
        return np.asarray(array[...]), blind, ""
    except Exception:
        text, seen = "", np.zeros(array.shape, np.uint32)
        unit = array.shards or array.chunks
        for index in np.ndindex(*(-(-n // u) for n, u in zip(array.shape, unit, strict=True))):
            at = tuple(slice(i * u, (i + 1) * u) for i, u in zip(index, unit, strict=True))
            try:
                seen[at] = array[at]
            except Exception as error:
                blind[at], text = True, f"{_shown(at)}: {type(error).__name__}: {error}"[:200]
        return seen, blind, text


def look_at_ids(directory: Path, n_ids: int) -> np.ndarray:
    """Chunks 0 to `n_ids` of shards in Neuroglancer's format, with ids as they are and no codecs,
    as the elements of an array; a chunk is its element, repeated as often as that says."""
    seen = np.zeros(n_ids, np.uint32)
    for path in directory.glob("*.shard"):
        data, n = path.read_bytes(), IDS["minishard_bits"]
        words = np.frombuffer(data, "<u8", 2 << n).reshape(-1, 2)
        for begin, end in words + (16 << n):
            entries = np.frombuffer(data[int(begin) : int(end)], "<u8").reshape(3, -1)
            ids, at = np.cumsum(entries[0]), (16 << n)
            for chunk, gap, nbytes in zip(ids, entries[1], entries[2], strict=True):
                content = data[at + int(gap) : at + int(gap) + int(nbytes)]
                element = np.frombuffer(content[:4], "<u4")[0]
                is_right = content == chunk_of(element) and int(path.stem, 16) == chunk >> 4
                seen[int(chunk)] = element if is_right else 2**32 - 1
                at += int(gap) + int(nbytes)
    return seen


def chunk_of(element) -> bytes:
    """The bytes of a chunk by id."""
    return np.uint32(element).tobytes() * (1 + int(element) % 9)


def unlisted(root: Path) -> list[str]:
    """How the consolidated metadata of a group, if it has such, differ from the documents below."""
    consolidated = json.loads((root / "zarr.json").read_text()).get("consolidated_metadata")
    if not consolidated:
        return []
    documents = {p.parent.name: json.loads(p.read_text()) for p in root.glob("*/zarr.json")}
    listed = consolidated["metadata"]
    return [
        f"{name} in the list: {listed.get(name, {}).get('shape')}, not {document.get('shape')}"
        for name, document in {**{key: {} for key in listed}, **documents}.items()
        if any(listed.get(name, {}).get(k) != document.get(k) for k in ("shape", "chunk_grid"))
    ]


def torn_by(history: list[Change], shape) -> np.ndarray:
    """Where changes that were not acknowledged may have left what cannot be read."""
    mask = np.zeros(shape, bool)
    for change in history:
        if change.tears and not change.acked:
            units = zip(change.box, change.tears, strict=True)
            box = [(a // u * u, -(-b // u) * u) for (a, b), u in units]
            mask[_slices(box)] = True
    return mask


def judge(state: State, seen: np.ndarray | None, history: list[Change], blind=None) -> list[str]:
    """What is wrong with an array. `blind` is a mask of elements that cannot be told."""
    births = [c for c in history if c.kind in ("new", "gone")]
    candidates: list[tuple[State, Change | None]] = [
        (state, None),
        *((_born(c), c) for c in births),
    ]
    possible = [
        (state, born) for state, born in candidates if not any(_hides(c, born) for c in births)
    ]
    verdicts = [_judge(state, born, seen, history, blind) for state, born in possible]
    return min(verdicts, key=len)


def judge_reading(
    state: State, seen, blind, history: list[Change], begin: int, end: int
) -> list[str]:
    """What is wrong with what was read meanwhile. Each element may be of any moment of the reading.

    Where the array was replaced, converted or compacted meanwhile, a reader may see anything. Where
    a shard was changed, a reader may find an inner chunk empty.
    """
    begun = [c for c in history if c.begin <= end]
    meanwhile = [c for c in begun if c.end >= begin]
    if any(c.kind in ("new", "gone", "same") for c in meanwhile):
        return []
    units = [c.tears or c.unit or [1] * seen.ndim for c in meanwhile]
    empty = torn_by(
        [replace(c, tears=u, acked=False) for c, u in zip(meanwhile, units, strict=True)],
        seen.shape,
    )
    as_read = [replace(c, acked=c.acked and c.end <= begin, unit=[]) for c in begun]
    return judge(state, seen, as_read, blind | (empty & (seen == 0)))


def is_checked(document: dict) -> bool:
    """Whether inner chunks have checksums, or are files of their own, which appear whole."""
    first = document["codecs"][0]
    inner = first.get("configuration", {}).get("codecs", [])
    return first["name"] != "sharding_indexed" or "crc32c" in [c["name"] for c in inner]


def _born(change: Change) -> State:
    if change.kind == "gone":
        return State(None, change.array)
    if change.copied:
        return State(np.load(change.copied), change.like)
    return State(np.full([stop for _, stop in change.box], change.version), change.array)


def _hides(later: Change, earlier: Change | None) -> bool:
    return later.acked and (earlier is None or later.begin > earlier.end)


def _judge(state, born, seen, history, blind) -> list[str]:
    since = [c for c in history if c.kind in ("put", "grow") and not _is_before(c, born)]
    if state.versions is None or seen is None:
        both = state.versions is None and seen is None
        return (
            []
            if both
            else ["lost: there is no array" if seen is None else "wrong: there is an array"]
        )
    if state.versions.ndim != seen.ndim:
        return [f"wrong: the shape is {seen.shape}"]
    rows = [state.versions.shape[0], *(c.box[0][1] for c in since if c.kind == "grow")]
    grown = [c for c in since if c.kind == "grow" and _hides(c, born)]
    least = max([rows[0], *(c.box[0][1] for c in grown)])
    if seen.shape[1:] != state.versions.shape[1:] or not least <= len(seen) <= max(rows):
        return [f"lost: the shape is {seen.shape}, not {state.versions.shape}, {rows[1:]} rows"]
    versions = versions_of(seen, state.name)
    old = np.zeros_like(versions)
    old[: len(state.versions)] = state.versions
    right = np.zeros(seen.shape, bool) if blind is None else blind.copy()
    right |= (versions == old) & ~_hidden(since, born, seen.shape)
    for change in since:
        at = _slices(change.box)
        hidden = _hidden(since, change, seen.shape)[at]
        right[at] |= (versions[at] == change.version) & ~hidden
    wrong = ~right
    if wrong.any():
        return [
            f"{'wrong' if (versions[wrong] < 0).any() else 'lost'}: {_told(versions, old, wrong)}"
        ]
    erased = [c for c in since if c.version == 0]
    told = [c for c in since if c.unit and (c.version or (len(erased) == 1 and old.all()))]
    return [text for c in told for text in _torn(c, versions, since, blind)]


def _is_before(change: Change, born: Change | None) -> bool:
    return born is not None and change.end < born.begin


def _hidden(changes, earlier: Change | None, shape) -> np.ndarray:
    """Where an acknowledged change hides what was there earlier."""
    mask = np.zeros(shape, bool)
    for later in changes:
        if later is not earlier and _hides(later, earlier):
            mask[_slices(later.box)] = True
    return mask


def _torn(change: Change, versions, since, blind) -> list[str]:
    """Units that are partly of a change, where no later one explains the rest."""
    texts = []
    first = min(c.begin for c in since if c.version == change.version)
    later = [c for c in since if c.end >= first and c.version != change.version]
    explained = np.zeros(versions.shape, bool) if blind is None else blind.copy()
    for c in later:
        explained[_slices(c.box)] |= versions[_slices(c.box)] == c.version
    box = [(a, min(b, n)) for (a, b), n in zip(change.box, versions.shape, strict=True)]
    counts = [range(a // u, -(-b // u)) for (a, b), u in zip(box, change.unit, strict=True)]
    for index in np.ndindex(*map(len, counts)):
        at = tuple(
            slice(max(a, c[i] * u), min(b, (c[i] + 1) * u))
            for c, i, u, (a, b) in zip(counts, index, change.unit, box, strict=True)
        )
        new = versions[at] == change.version
        if new.any() and not (new | explained[at]).all():
            texts.append(f"torn: {_shown(at)} is partly of version {change.version}")
    return texts


def _slices(box) -> Box:
    return tuple(slice(a, b) for a, b in box)


def _shown(at: Box) -> str:
    return "[" + ", ".join(f"{s.start}:{s.stop}" for s in at) + "]"


def _told(versions, old, wrong) -> str:
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements, first at {where}: "
        f"version {int(versions[where])}, before it was {int(old[where])}"
    )


def load(paths, until: int) -> list[Change]:
    """The history that clients have written, a file each. What has no end ended at `until`."""
    changes: dict[str, list[Change]] = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            entry = json.loads(line)
            if entry["event"] == "begin":
                changes[entry["id"]] = [Change(**c, begin=entry["time"]) for c in entry["changes"]]
                for change in changes[entry["id"]]:
                    change.end = until
            elif entry["event"] in ("done", "failed"):
                for change in changes[entry["id"]]:
                    change.end, change.acked = entry["time"], entry["event"] == "done"
    return [change for several in changes.values() for change in several]
