"""A fuzzer of every file that is read: mutants of documents, shards, receipts, plans, journals,
leases, claims and records of changes in place.

A mutant is one file of a scene (an array, and what lies beside it) changed as its number says, and
one operation on that scene. It ends well if the operation succeeds or raises a typed error, within
seconds and a bounded amount of memory, and if everything that was not mutated is still there and
has its values. Run as ``python tests/faults/fuzz.py --mutants 100000 --json out.json``; a mutant of
a campaign is run again with ``--seed S --only NUMBER``. A few processes run thousands of mutants
each; one that hangs or dies is replaced, and that counts as a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import queue
import random
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import crc32c
import dask
import dask.array as da
import numpy as np
import zarr
from click.testing import CliRunner
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardwriteError
from shardwrite.cli import main as command
from shardwrite.format.metadata import parse_metadata

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent.parent / "forks"))
import oracle
import seams
from helpers import chain_of
from in_time import PATIENCE, Late, in_time

SECONDS = 5
MEMORY_NBYTES = 512 * 2**20
SHAPE, SHARDS, CHUNKS = (32, 32), 16, 8
KEYWORDS = {
    "shards": SHARDS,
    "chunks": CHUNKS,
    "source_id": "one",
    "memory_limit": "20kB",
    "max_source_reruns": 100,
    "durability": "none",
}
REGION = (slice(0, 16), slice(0, 32))
OLD, NEW = oracle.values(SHAPE), oracle.values(SHAPE, 1)
SOURCE = da.from_array(OLD, chunks=(16, 16))
CHANGE = da.from_array(NEW[:16], chunks=(16, 16))
TEXTS = np.array([f"text {i}" * (i % 5) for i in range(64)], dtype=object).reshape(8, 8)
STREAMED = np.concatenate([TEXTS[:3], TEXTS[:1], TEXTS[4:]])  # what the stream makes of them
VAST_SHARDS, VAST_ELEMENTS = 4096, 2**22


# ---- scenes


def interrupt(_):
    """A source block that is never read, or a report that ends a run."""
    raise InterruptedError("told to")


def make_whole(path):
    """A finished array in a group with consolidated metadata, and its receipt, which knows of an
    update."""
    SOURCE.to_sharded_zarr(path, name="x", **KEYWORDS)
    da.from_array(OLD[:16], chunks=16).to_sharded_zarr(
        path, name="x", region=REGION, source_id="same", durability="none"
    )
    with warnings.catch_warnings(action="ignore"):
        zarr.consolidate_metadata(str(path))
    return "x"


def make_begun(path):
    """A run that ended after its second shard, and the lease of a process that is gone."""
    reports = []

    def stop(report):
        reports.append(report)
        if len(reports) == 2:
            interrupt(report)

    with contextlib.suppress(InterruptedError):
        SOURCE.to_sharded_zarr(path, progress=stop, **KEYWORDS)
    run = seams.run_directory(path)
    _leave_lease(run)


def _leave_lease(run):
    (run / "lease-abcdefabcdef.json").write_bytes(_dead())


def make_updated(path):
    """An array, and an update in place that a kill has ended: its claim, and the record that undoes
    the change."""
    SOURCE.to_sharded_zarr(path, **KEYWORDS)
    run = _interrupted_update(path, FixedOrder(in_place=True))
    key, claim = "c/0/0", run / "claim-c.0.0"
    data = (path / key).read_bytes()
    claim.mkdir()
    (claim / "owner-0").write_bytes(_dead())
    (claim / "undo-none").write_bytes(seams.undo_record(key, len(data), [(0, data[:40])]))


def make_appended(path):
    """The same of an append, which has written half of its bytes; and the claim of an end."""
    SOURCE.to_sharded_zarr(path, **KEYWORDS)
    run = _interrupted_update(path, AppendOnly(in_place=True))
    key, claim = "c/0/1", run / "claim-c.0.1"
    data = (path / key).read_bytes()
    claim.mkdir()
    (claim / "owner-0").write_bytes(_dead())
    (claim / "undo-none").write_bytes(seams.undo_record(key, len(data)))
    (path / key).write_bytes(data + data[:40])
    claim = seams.state_beside(path) / "claim-end"
    claim.mkdir()
    (claim / "owner-0").write_bytes(_dead())


def _dead():
    """The identity of a process on this host that is gone."""
    return json.dumps(seams.this_process(**seams.DEAD, token="none")).encode()


def _interrupted_update(path, strategy):
    with contextlib.suppress(InterruptedError):
        CHANGE.to_sharded_zarr(
            path,
            region=REGION,
            source_id="two",
            strategy=strategy,
            progress=interrupt,
            durability="none",
            memory_limit="20kB",
        )
    run = seams.run_directory(path)
    _leave_lease(run)
    return run


def make_texts(path):
    """An array of texts."""
    x = da.from_array(TEXTS, chunks=4)
    x.to_sharded_zarr(
        path, shards=4, chunks=2, serializer="vlen-utf8", durability="none", source_id="texts"
    )


def make_nested(path):
    """An array of shards in shards, with a codec around them, which zarr-python wrote."""
    inner = ShardingCodec(chunk_shape=(4, 4), codecs=[BytesCodec(), GzipCodec(level=1)])
    sharding = ShardingCodec(chunk_shape=(CHUNKS, CHUNKS), codecs=[inner])
    with warnings.catch_warnings(action="ignore"):
        zarr.create_array(
            path, data=OLD, chunks=(SHARDS, SHARDS), serializer=sharding, compressors=None
        )


def make_blosc(path):
    """Another codec, an index at the start, names of dimensions."""
    names = [
        {
            "name": "blosc",
            "configuration": {
                "cname": "lz4",
                "clevel": 5,
                "shuffle": "shuffle",
                "typesize": 4,
                "blocksize": 0,
            },
        }
    ]
    SOURCE.to_sharded_zarr(
        path, compressors=names, index_location="start", dimension_names=["y", "x"], **KEYWORDS
    )


SCENES = {
    "whole": make_whole,
    "begun": make_begun,
    "updated": make_updated,
    "appended": make_appended,
    "texts": make_texts,
    "blosc": make_blosc,
    "nested": make_nested,
}


@dataclass
class Scene:
    """A directory with an array and all that belongs to it.

    Attributes
    ----------
    files : dict of str to bytes
        Everything that is in it.
    array : str
        Where the array lies in it.
    text : str
        The array's document.
    shards : dict of str to bytes
        Its shards, by their paths in the scene.
    """

    files: dict
    array: str
    text: str
    shards: dict = field(default_factory=dict)


def make_scenes(directory):
    """All scenes, made anew in a directory, and read."""
    scenes = {}
    for name, make in SCENES.items():
        root = directory / name
        root.mkdir(parents=True)
        with dask.config.set(scheduler="sync"):
            inside = make(root / "x.zarr")
        array = f"x.zarr/{inside}" if inside else "x.zarr"
        files = {
            str(file.relative_to(root)): file.read_bytes()
            for file in sorted(root.rglob("*"))
            if file.is_file()
        }
        text = oracle.metadata_of(root / array).text
        shards = {file: data for file, data in files.items() if file.startswith(f"{array}/c/")}
        scenes[name] = Scene(files, array, text, shards)
    return scenes


# ---- mutations

NASTY = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**53,
    2**63,
    2**64,
    2**70,
    10**400,
    1e400,
    -1e400,
    float("nan"),
    0.5,
    "",
    "x",
    "../x",
    "a\0b",
)
NESTS = (
    [],
    {},
    [[]],
    [{}],
    [[0, 1]],
    [[2**70, 1]],
    [None] * 3,
    {"name": "x"},
    {"a": {"b": []}},
    "x" * 5000,
)


def places(document, at=()):
    """Every place in a document."""
    yield at
    inside = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for name, value in inside:
        yield from places(value, (*at, name))


def changed(document, at, change):
    """A document with one place changed; `change` gives the value, or None to take it away."""
    if not at:
        return change(document)[0]
    copy = dict(document) if isinstance(document, dict) else list(document)
    if len(at) > 1:
        copy[at[0]] = changed(document[at[0]], at[1:], change)
        return copy
    made = change(document[at[0]])
    if made is None:
        del copy[at[0]]
    else:
        copy[at[0]] = made[0]
    return copy


def mutate_document(document, rng):
    """Another document: a value replaced, taken away, or put somewhere else."""
    every = list(places(document))
    at = rng.choice(every)
    kind = rng.choice(["nasty", "nasty", "nest", "delete", "nudge", "move"])

    def change(value):
        if kind == "delete" and at:
            return None
        if kind == "nudge" and isinstance(value, int) and not isinstance(value, bool):
            return (value + rng.choice([-1, 1, value, -2 * value, 7]),)
        if kind == "move":
            other = document
            for name in rng.choice(every):
                other = other[name]
            return (other,)
        return (rng.choice(NESTS if kind == "nest" else NASTY),)

    return changed(document, at, change)


def mutate_bytes(data, rng):
    """Bytes that some fault may have made of these."""
    made = bytearray(data)
    at = rng.randrange(len(data) + 1)
    n = rng.randrange(1, 200)
    kind = rng.choice(
        ["flip", "flip", "cut", "zero", "insert", "extend", "swap", "truncate", "empty", "lines"]
    )
    if kind == "flip":
        for _ in range(rng.randrange(1, 4)):
            if made:
                made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del made[at : at + n]
    elif kind == "zero":
        made[at : at + n] = bytes(len(made[at : at + n]))
    elif kind == "insert":
        made[at:at] = rng.randbytes(n)
    elif kind == "extend":
        made += rng.choice([bytes(n), rng.randbytes(n), bytes(data[-n:])])
    elif kind == "swap":
        made = made[at:] + made[:at]
    elif kind == "truncate":
        del made[at:]
    elif kind == "empty":
        made.clear()
    else:
        lines = bytes(made).split(b"\n")
        rng.shuffle(lines)
        made = bytearray(b"\n".join(lines + lines[:2]))
    return bytes(made)


def mutate_shard(data, rng, scene):
    """Another index, with a checksum that fits; or a chunk that is a bomb."""
    codec = parse_metadata(scene.text).index_codec
    n = codec.encoded_nbytes
    at = 0 if codec.location == "start" else len(data) - n
    encoded = data[at : at + n]
    table = list(struct.unpack(f"<{(n - 4) // 8}Q", encoded[:-4]))
    word = rng.randrange(len(table))
    near = [
        0,
        1,
        2**39,
        2**40,
        2**62,
        2**63,
        2**64 - 1,
        2**64 - 2,
        len(data),
        table[word ^ 2],
        table[word] + 1,
        rng.randrange(999),
    ]
    table[word] = rng.choice(near) % 2**64
    made = struct.pack(f"<{len(table)}Q", *table)
    made += crc32c.crc32c(made).to_bytes(4, "little")
    body = data[:at] + made + data[at + n :]
    if rng.random() < 0.3:
        chunk = rng.choice(BOMBS)
        body = bytearray(body)
        body[rng.randrange(len(body)) :][: len(chunk)] = chunk
        first = 0 if at else n
        body[first : first + len(chunk)] = chunk
        body = bytes(body)
    return body


BOMBS = (
    b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + b"\x01\x00\x00",
    b"\x28\xb5\x2f\xfd\x00\x58" + b"\x02\x00\x10\x00" * 30 + b"\x03\x00\x10\x00",
    b"\x1f\x8b\x08\x00" + bytes(30),
    struct.pack("<BBBBIII", 2, 1, 1, 4, 2**31 - 17, 2**20, 200) + bytes(30),
)


def mutate_lines(data, rng):
    """A journal with one line changed, its checksum made right again."""
    lines = data.split(b"\n")
    at = rng.randrange(max(1, len(lines) - 1))
    with contextlib.suppress(ValueError):
        found = mutate_document(json.loads(lines[at][9:]), rng)
        text = json.dumps(found).encode()
        lines[at] = b"%08x %s" % (crc32c.crc32c(text), text)
    return b"\n".join(lines)


def mutate_record(data, rng):
    """A record of a change in place whose head is changed, its checksum made right again."""
    head, _, rest = data.partition(b"\n")
    try:
        text = json.dumps(mutate_document(json.loads(head[9:]), rng)).encode()
    except ValueError:
        return mutate_bytes(data, rng)
    return b"%08x %s\n" % (crc32c.crc32c(text), text) + rest


def mutate_plan(data, rng):
    """A plan with one value changed: as an older version's, without a checksum; or with one that is
    made right again."""
    found = mutate_document(json.loads(data), rng)
    if isinstance(found, dict):
        found.pop("crc32c", None)
        if rng.random() < 0.5:
            found = seams.seal(found)
    return json.dumps(found).encode()


def mutate(file, data, rng, scene):
    """What becomes of a file: the name of the mutation, and other bytes, or nothing where something
    else is put in its place."""
    if rng.random() < 0.03:
        return rng.choice(["pipe", "directory", "zeros", "sparse", "socket", "gone", "loop"]), None
    if rng.random() < 0.4:
        return "bytes", mutate_bytes(data, rng)
    name = file.rpartition("/")[2]
    if "/c/" in file:
        return "index", mutate_shard(data, rng, scene)
    if name.startswith("journal-"):
        return "lines", mutate_lines(data, rng)
    if name.startswith("undo-"):
        return "record", mutate_record(data, rng)
    if name == "plan.json":
        return "plan", mutate_plan(data, rng)
    try:
        return "document", json.dumps(mutate_document(json.loads(data), rng)).encode()
    except ValueError:
        return "bytes", mutate_bytes(data, rng)


KINDS_OF_NODES = ("pipe", "directory", "zeros", "loop", "socket", "sparse")


def put(path, kind):
    """Make something of a kind at a path where nothing stands: no file, or one of a tebibyte."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
            made.bind(path.name)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        raise ValueError(kind)


def place(path, kind, data):
    """Put a mutant where its file was."""
    path.unlink()
    if kind in KINDS_OF_NODES:
        put(path, kind)
    elif kind != "gone":
        path.write_bytes(data)


# ---- operations


def opened(at):
    """Store and name of a scene's array."""
    root, _, name = at.partition("/x.zarr")
    return f"{root}/x.zarr", name.removeprefix("/") or None


def source_of(scene_name):
    """What the scene's array was made of, and how."""
    if scene_name == "texts":
        options = {
            "shards": 4,
            "chunks": 2,
            "serializer": "vlen-utf8",
            "source_id": "texts",
            "durability": "none",
        }
        return da.from_array(TEXTS, chunks=4), options
    return SOURCE, KEYWORDS


def info(at, _):
    store, name = opened(at)
    ended = CliRunner().invoke(command, ["info", store, *(["--name", name] if name else [])])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception


def verify(at, _):
    store, name = opened(at)
    shardwrite.verify(store, name=name)


def verify_deep(at, _):
    store, name = opened(at)
    shardwrite.verify(store, name=name, deep=True)


def census(at, _):
    store, name = opened(at)
    shardwrite.census(store, name=name)


def read(at, _):
    store, name = opened(at)
    x = shardwrite.from_sharded_zarr(store, name=name)
    x[tuple(slice(0, 40) for _ in x.shape)].compute()


def repair_dry(at, _):
    store, name = opened(at)
    shardwrite.repair(store, name=name)


def salvage(at, _):
    store, name = opened(at)
    shardwrite.repair(store, name=name, salvage=True, scan=True)


def resume(at, scene_name):
    store, name = opened(at)
    source, options = source_of(scene_name)
    source.to_sharded_zarr(store, name=name, **options)


def part(at, scene_name):
    store, name = opened(at)
    source, options = source_of(scene_name)
    shardwrite.write_part(source, store, 1, 2, name=name, source_id=options["source_id"])


def update(at, scene_name):
    store, name = opened(at)
    if scene_name == "texts":
        x, region = da.from_array(TEXTS[:4], chunks=4), (slice(0, 4), slice(0, 8))
    else:
        x, region = CHANGE, REGION
    strategy = {"updated": FixedOrder(in_place=True), "appended": AppendOnly(in_place=True)}.get(
        scene_name, "fixed-order"
    )
    x.to_sharded_zarr(
        store, name=name, region=region, strategy=strategy, source_id="two", durability="none"
    )


def append(at, scene_name):
    store, name = opened(at)
    source, _ = source_of(scene_name)
    source[:3].to_sharded_zarr(
        store, name=name, region="append", source_id="three", durability="none"
    )


def abandon(at, _):
    store, name = opened(at)
    shardwrite.abandon(store, name=name)


def stream(at, scene_name):
    store, name = opened(at)
    values = TEXTS[0] if scene_name == "texts" else NEW[3]
    with shardwrite.ShardWriter(store, name=name, durability="none", n_threads=1) as writer:
        writer[3] = values


READS = {
    "info": info,
    "verify": verify,
    "verify deep": verify_deep,
    "census": census,
    "read": read,
    "repair": repair_dry,
}
WRITES = {
    "resume": resume,
    "part": part,
    "update": update,
    "append": append,
    "salvage": salvage,
    "abandon": abandon,
    "stream": stream,
}
OPERATIONS = {**READS, **WRITES}


# ---- one mutant


@dataclass
class Case:
    """A mutant, and what came of it.

    Attributes
    ----------
    number : int
        Which.
    scene, file, kind, operation : str
        What was mutated, how, and what was done.
    outcome : str
        Class of the error that was raised, or ``success``; ``vast`` for the document of an array
        that is left out for its size.
    seconds : float
        Of the processor, for the operation.
    trouble : str
        Why it did not end well; empty where it did.
    """

    number: int
    scene: str = ""
    file: str = ""
    kind: str = ""
    operation: str = ""
    outcome: str = ""
    seconds: float = 0.0
    trouble: str = ""


def draw(seed, number, scenes):
    """A mutant by its number, and the file's bytes; one that is left out has an outcome already."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choice(list(scenes))
    scene = scenes[name]
    file = rng.choice(list(scene.files))
    if rng.random() < 0.5:  # what is beside the shards is as often mutated as they are
        file = rng.choice([f for f in scene.files if f not in scene.shards])
    kind, data = mutate(file, scene.files[file], rng, scene)
    operation = rng.choice(list(READS)) if rng.random() < 0.6 else rng.choice(list(WRITES))
    case = Case(number, name, file, kind, operation)
    if data is not None:
        case.outcome = "same" if data == scene.files[file] else "vast" if is_vast(data) else ""
    return case, data


class Worker:
    """Runs mutants in this process.

    Parameters
    ----------
    directory : path
        Room for scenes.
    seed : int
        Of the campaign.
    """

    def __init__(self, directory, seed):
        self.directory, self.seed = Path(directory), seed
        self.scenes = make_scenes(self.directory / "templates")
        self.fresh = {}
        for (
            name
        ) in self.scenes:  # everything is imported and has run once before memory is measured
            for operation in OPERATIONS.values():
                with contextlib.suppress(ShardwriteError), dask.config.set(scheduler="sync"):
                    operation(str(self._laid(name) / self.scenes[name].array), name)
                self.fresh.pop(name, None)

    def limit_memory(self):
        """Have the system refuse more than `MEMORY_NBYTES` above what there is now."""
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_NBYTES, resource.RLIM_INFINITY))

    def _laid(self, name):
        """A scene as it was made; laid out anew where something has changed it."""
        root = self.directory / "live" / name
        if name not in self.fresh:
            if root.exists():
                shutil.rmtree(root)
            for file, data in self.scenes[name].files.items():
                path = root / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            self.fresh[name] = self._look(root)
        return root

    @staticmethod
    def _look(root):
        """Inode, size and time of everything in a scene."""
        found = {}
        for directory, _, names in os.walk(root):
            for name in names:
                path = os.path.join(directory, name)
                stat = os.lstat(path)
                found[path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return found

    def run(self, number):
        """Run one mutant."""
        case, data = draw(self.seed, number, self.scenes)
        if case.outcome:
            return case
        name, file = case.scene, case.file
        scene = self.scenes[name]
        root = self._laid(name)
        place(root / file, case.kind, data)
        self._operate(case, str(root / scene.array))
        case.trouble = case.trouble or self._judge(case, root, scene)
        self._lay_back(case, root, file, name)
        return case

    def _operate(self, case, at):
        start = time.process_time()
        try:
            with in_time(SECONDS), dask.config.set(scheduler="sync"):
                OPERATIONS[case.operation](at, case.scene)
            case.outcome = "success"
        except ShardwriteError as error:
            case.outcome = type(error).__name__
            if any(isinstance(e, MemoryError) for e in chain_of(error)):
                case.trouble = f"memory: {error}"
        except (Exception, Late) as error:
            case.outcome = type(error).__name__
            case.trouble = "".join(traceback.format_exception(error)[-6:])
        finally:
            case.seconds = time.process_time() - start

    def _judge(self, case, root, scene):
        """What is lost of all that was not mutated."""
        now, before = self._look(root), self.fresh[case.scene]
        mutated = str(root / case.file)
        gone = [path for path in before if path not in now and path != mutated]
        altered = [
            path for path in before if path in now and now[path] != before[path] and path != mutated
        ]
        shards = {str(root / shard) for shard in scene.shards}
        if case.kind == "record":  # it says what its shard is to hold
            shards.discard(str(root / scene.array / ("c/0/1" if "c.0.1" in case.file else "c/0/0")))
        if case.operation in READS and (gone or altered):
            return f"a look changed {[*gone, *altered]}"
        if case.operation == "salvage" and (
            cut := sorted({str(root / shard) for shard in scene.shards}.intersection(altered))
        ):
            return f"shards were cut that were whole: {cut}"
        if lost := sorted(shards.intersection(gone)):
            return f"shards are lost: {lost}"
        is_document = case.file.endswith("/zarr.json")
        if is_document and case.file.startswith(scene.array):
            return ""  # what is written follows the document, whatever that says now
        expected = (TEXTS, STREAMED) if case.scene == "texts" else (OLD, NEW)
        array = seams.array_at(root / scene.array, parse_metadata(scene.text))
        for path in sorted(shards.intersection(altered)):
            box = box_of(array, os.path.relpath(path, root / scene.array))
            try:
                found = array.read_box(box)
            except ShardwriteError as error:
                return f"{path} cannot be read any more: {error}"
            if not ((found == expected[0][box.slices]) | (found == expected[1][box.slices])).all():
                return f"{path} has other values"
        return ""

    def _lay_back(self, case, root, file, name):
        """Undo the mutation, or have the scene laid out anew."""
        path = root / file
        if (
            case.operation in WRITES
            or case.trouble
            or self._look(root).keys() != self.fresh[name].keys() - self._missing(path)
        ):
            self.fresh.pop(name)
            return
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(self.scenes[name].files[file])
        stat = os.lstat(path)
        self.fresh[name][str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)

    @staticmethod
    def _missing(path):
        return (
            {str(path)}
            if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink())
            else set()
        )


def box_of(array, key):
    """The elements of a shard."""
    grid = array.metadata.grid
    index = tuple(map(int, key.split("/")[1:]))
    return grid.shard_box(index).intersect(grid.whole)


def is_vast(data):
    """Whether a mutant is the document of a whole array that takes long to go through because it is
    large."""
    try:
        grid = parse_metadata(data.decode()).grid
    except (ShardwriteError, UnicodeDecodeError):
        return False
    return grid.n_shards > VAST_SHARDS or math.prod(grid.shards) > VAST_ELEMENTS


# ---- campaigns


def work(directory, seed):
    """The loop of a worker: numbers in, cases out."""
    dask.config.set(
        {"shardwrite.lease.claim-wait": 1.0}
    )  # for a holder that may live, on another host
    worker = Worker(directory, seed)
    worker.limit_memory()
    print("ready", flush=True)
    for line in sys.stdin:
        for number in json.loads(line):
            print(json.dumps(asdict(worker.run(number))), flush=True)
        print("done", flush=True)


class Process:
    """A worker in a process of its own."""

    def __init__(self, directory, seed):
        self.directory = Path(tempfile.mkdtemp(dir=directory))
        command_line = [
            sys.executable,
            __file__,
            "--worker",
            str(self.directory),
            "--seed",
            str(seed),
        ]
        self.process = subprocess.Popen(
            command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        if self.lines.get(timeout=300) != "ready\n":
            raise RuntimeError("a worker did not start")

    def _listen(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def cases(self, numbers):
        """Run mutants; ends early where the process hangs or dies, with a case that says so."""
        self.process.stdin.write(json.dumps(numbers) + "\n")
        self.process.stdin.flush()
        for number in numbers:
            try:
                line = self.lines.get(timeout=(PATIENCE + 2) * SECONDS)
            except queue.Empty:
                line = ""
            if not line:
                ended = self.process.poll()
                trouble = "hangs" if ended is None else f"the process ended with {ended}"
                yield Case(number, outcome="lost", trouble=trouble)
                return
            yield Case(**json.loads(line))
        self.lines.get(timeout=PATIENCE * SECONDS)

    def end(self):
        """Kill it."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def campaign(n_mutants, seed, *, n_processes=2, directory=None, block=100):
    """Run mutants 0 to `n_mutants`; all cases."""
    cases, numbers, turn = [], iter(range(0, n_mutants, block)), threading.Lock()

    def drive():
        process = Process(directory, seed)
        try:
            while True:
                with turn:
                    first = next(numbers, None)
                if first is None:
                    return
                left = list(range(first, min(n_mutants, first + block)))
                while left:
                    done = list(process.cases(left))
                    cases.extend(done)
                    left = left[len(done) :]
                    if done[-1].outcome == "lost":
                        process.end()
                        process = Process(directory, seed)
        finally:
            process.end()

    threads = [threading.Thread(target=drive) for _ in range(n_processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(cases, key=lambda case: case.number)


def summary(cases, seconds):
    """What a campaign found, as JSON can hold it."""
    ran = [case for case in cases if case.outcome not in ("same", "vast")]
    return {
        "mutants": len(ran),
        "left out": dict(
            Counter(case.outcome for case in cases if case.outcome in ("same", "vast"))
        ),
        "seconds": round(seconds, 1),
        "mutants per second": round(len(ran) / seconds, 1),
        "slowest seconds": round(max((case.seconds for case in ran), default=0.0), 3),
        "outcomes": dict(Counter(case.outcome for case in ran).most_common()),
        "operations": dict(Counter(case.operation for case in ran).most_common()),
        "kinds": dict(Counter(case.kind for case in ran).most_common()),
        "files": dict(Counter(_family(case.file) for case in ran).most_common()),
        "troubles": [asdict(case) for case in ran if case.trouble],
    }


def _family(file):
    name = file.rpartition("/")[2]
    for family in ("journal", "lease", "owner", "token", "undo"):
        if name.startswith(f"{family}-"):
            return family
    return "shard" if "/c/" in file else name


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--only", type=int, help="run one mutant in this process, and show what it raises"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--dir", type=Path, help="where scenes are laid out; a memory file system is fastest"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.seed)
        return
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        if given.only is not None:
            print(json.dumps(asdict(Worker(directory, given.seed).run(given.only)), indent=2))
            return
        start = time.perf_counter()
        cases = campaign(
            given.mutants, given.seed, n_processes=given.processes, directory=directory
        )
        found = summary(cases, time.perf_counter() - start)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))
    sys.exit(bool(found["troubles"]))


if __name__ == "__main__":
    main()
