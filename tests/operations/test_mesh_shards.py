"""Shards of meshes of several resolutions, whose fragments lie before each manifest: they are read,
carried by every change, and killed changes lose none of them."""

from __future__ import annotations

import gzip
import json
import re
import signal
import struct
import subprocess

import numpy as np
import obstore
import pytest
from forks import python
from helpers import contents

import shardwrite
from shardwrite.errors import CorruptShardError, SpecError


def sharding_of(hash_name="murmurhash3_x86_128", index="gzip", data="raw"):
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": hash_name,
        "preshift_bits": 0,
        "minishard_bits": 2,
        "shard_bits": 2,
        "minishard_index_encoding": index,
        "data_encoding": data,
    }


def mesh(n):
    """Fragments and manifest of a mesh; the manifest says how long the fragments are."""
    fragments = np.random.default_rng(n % 2**32).bytes(n * 37 % 900)
    return fragments, struct.pack("<QQ", n, len(fragments)) * (1 + n % 3)


IDS = [*range(1, 60, 2), 2**40 + 5, 2**64 - 1]
MESHES = {n: mesh(n) for n in IDS}


def synthesized(meshes, sharding, place, *, hole=b"", mixed=False):
    """Bytes of a shard by the document of the format, and not by the writer.

    `hole` lies behind the last manifest. With `mixed`, the index of each minishard follows its
    chunks, and the chunks lie in descending order.
    """
    zipped = {name: sharding[f"{name}_encoding"] == "gzip" for name in ("minishard_index", "data")}
    data, entries, indexes = bytearray(), [(0, 0)] * 4, {}
    for minishard in range(4):
        ids = sorted(n for n in meshes if place(n)[1] == minishard)
        places = {}
        for n in reversed(ids) if mixed else ids:
            fragments, manifest = meshes[n]
            data += fragments
            stored = gzip.compress(manifest, mtime=0) if zipped["data"] else manifest
            places[n] = (len(data), len(stored))
            data += stored
        last_id = last_end = 0
        columns = [[], [], []]
        for n in ids:
            start, nbytes = places[n]
            for column, value in zip(columns, (n - last_id, start - last_end, nbytes), strict=True):
                column.append(value % 2**64)
            last_id, last_end = n, start + nbytes
        if ids:
            raw = struct.pack(f"<{3 * len(ids)}Q", *(value for each in columns for value in each))
            indexes[minishard] = gzip.compress(raw, mtime=0) if zipped["minishard_index"] else raw
        if mixed and ids:
            entries[minishard] = (len(data), len(data) + len(indexes[minishard]))
            data += indexes[minishard]
    data += hole
    for minishard, index in indexes.items() if not mixed else ():
        entries[minishard] = (len(data), len(data) + len(index))
        data += index
    return struct.pack("<8Q", *(edge for entry in entries for edge in entry)) + bytes(data)


def published(path, sharding, meshes=MESHES, **how):
    """A directory as other programs write it."""
    parameters = shardwrite.ShardingParameters.from_dict(sharding)

    def place(n):
        (shard,), (minishard,) = parameters.locate([n])
        return int(shard), int(minishard)

    path.mkdir()
    for shard in {place(n)[0] for n in meshes}:
        of_shard = {n: each for n, each in meshes.items() if place(n)[0] == shard}
        data = synthesized(of_shard, sharding, place, **how)
        (path / parameters.key_of(shard)).write_bytes(data)
    return shardwrite.UInt64Shards(path, sharding)


def read(shards):
    """All meshes, by what lies before each manifest in the file, as Neuroglancer finds it."""
    fragments = shards.read_fragments(shards)
    return {n: (fragments[n], manifest) for n, manifest in shards.items()}


@pytest.mark.parametrize(
    ("hash_name", "index", "data", "mixed"),
    [
        ("murmurhash3_x86_128", "gzip", "raw", False),
        ("murmurhash3_x86_128", "raw", "gzip", False),
        ("identity", "raw", "raw", True),
        ("identity", "gzip", "gzip", True),
    ],
)
def test_changes_carry_the_fragments(tmp_path, hash_name, index, data, mixed):
    """An update wrote 1,399 bytes in place of 284,788, and verify called that good."""
    sharding = sharding_of(hash_name, index, data)
    shards = published(tmp_path / "mesh", sharding, mixed=mixed)
    assert read(shards) == MESHES
    report = shards.verify(deep=True)
    assert report.is_good
    assert report.unused_nbytes == sum(len(fragments) for fragments, _ in MESHES.values())
    assert "are named by no index" in str(report), "and yet they belong to an id"
    assert not report.warnings
    new = {1: mesh(1001), 2: mesh(2), 3: (b"", b"alone")}
    shards.write(
        {n: b"".join(parts) for n, parts in new.items()},
        data_offset={n: len(manifest) for n, (_, manifest) in new.items()},
        existing="update",
    )
    shards.remove([5, 2**64 - 1])
    wanted = {n: each for n, each in {**MESHES, **new}.items() if n not in (5, 2**64 - 1)}
    assert read(shards) == wanted
    report = shards.verify(deep=True)
    assert report.is_good
    assert report.unused_nbytes == sum(len(fragments) for fragments, _ in wanted.values())
    once = shardwrite.UInt64Shards(tmp_path / "once", sharding)
    once.write(
        {n: b"".join(parts) for n, parts in wanted.items()},
        data_offset={n: len(manifest) for n, (_, manifest) in wanted.items()},
        existing="update",
    )
    assert read(once) == wanted
    changed = {shards.sharding.key_of(shard) for shard in shards.shards_of([1, 2, 3, 5, 2**64 - 1])}
    for name in changed if "gzip" not in (data, index) else ():  # as the writers of gzip differ
        assert contents(tmp_path / "mesh")[name] == contents(tmp_path / "once")[name]


def draco_mesh(n):
    """Fragments and manifest, as the document of the format has them, of a mesh of two levels."""
    encode = pytest.importorskip("DracoPy").encode
    rng = np.random.default_rng(n)
    fragments = [
        encode(rng.integers(0, 1024, (20, 3), "u4"), rng.integers(0, 20, (n, 3), "u4"))
        for _ in range(2)
    ]
    head = struct.pack("<6fI2f6f2I", *[1024] * 3, 0, 0, 0, 2, 1, 2, *[0] * 6, 1, 1)
    levels = [struct.pack("<4I", 0, 0, 0, len(fragment)) for fragment in fragments]
    return b"".join(fragments), head + b"".join(levels)


@pytest.mark.compat
@pytest.mark.parametrize("synthesized_by", ["cloud-volume", "shardwrite"])
def test_cloud_volume_reads_meshes_after_changes(tmp_path, synthesized_by):
    cloudvolume = pytest.importorskip("cloudvolume")
    sharding = sharding_of()
    scale = {"key": "s", "size": [8] * 3, "resolution": [1] * 3, "voxel_offset": [0] * 3}
    scale |= {"chunk_sizes": [[8] * 3], "encoding": "raw"}
    info = {"type": "segmentation", "data_type": "uint64", "num_channels": 1, "mesh": "mesh"}
    of_meshes = {"@type": "neuroglancer_multilod_draco", "vertex_quantization_bits": 10}
    of_meshes |= {"transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0], "lod_scale_multiplier": 1}
    root = tmp_path / "mesh"
    root.mkdir()
    (tmp_path / "info").write_text(json.dumps({**info, "scales": [scale]}))
    (root / "info").write_text(json.dumps({**of_meshes, "sharding": sharding}))
    meshes = {n: draco_mesh(n) for n in range(1, 25)}
    values = {n: fragments + manifest for n, (fragments, manifest) in meshes.items()}
    data_offset = {n: len(manifest) for n, (_, manifest) in meshes.items()}
    shards = shardwrite.UInt64Shards(root)
    if synthesized_by == "shardwrite":
        shards.write(values, data_offset=data_offset)
    else:
        module = pytest.importorskip("cloudvolume.datasource.precomputed.sharding")
        made = module.ShardingSpecification.from_dict(sharding).synthesize_shards(
            dict(values), data_offset=data_offset
        )
        for name, data in made.items():
            (root / name).write_bytes(data)

    def by_cloud_volume(n):
        volume = cloudvolume.CloudVolume(f"file://{tmp_path}", progress=False)
        found = [volume.mesh.get(n, lod=level)[n] for level in (0, 1)]
        return [(each.vertices.tolist(), each.faces.tolist()) for each in found]

    before = {n: by_cloud_volume(n) for n in meshes}
    shards.remove([3])
    shards.write(
        {4: values[5], 30: values[6]},
        data_offset={4: data_offset[5], 30: data_offset[6]},
        existing="update",
    )
    assert read(shards) == {
        **{n: each for n, each in meshes.items() if n != 3},
        4: meshes[5],
        30: meshes[6],
    }
    assert {n: by_cloud_volume(n) for n in meshes if n not in (3, 4)} == {
        n: each for n, each in before.items() if n not in (3, 4)
    }
    assert (by_cloud_volume(4), by_cloud_volume(30)) == (before[5], before[6])


def test_bytes_before_a_chunk_that_is_replaced_are_not_lost_unasked(tmp_path):
    shards = published(tmp_path / "mesh", sharding_of())
    before = contents(tmp_path / "mesh")
    with pytest.raises(SpecError, match=r"values=7: 259 bytes that lie before it.*data_offset=\{7"):
        shards.write({7: b"manifest"}, existing="update")
    assert contents(tmp_path / "mesh") == before
    shards.write({7: b"manifest"}, data_offset={7: 8}, existing="update")
    assert read(shards) == {**MESHES, 7: (b"", b"manifest")}


def test_bytes_that_belong_to_nothing_are_told_and_not_lost(tmp_path):
    shards = published(tmp_path / "mesh", sharding_of(index="raw"), hole=b"unknown")
    before = contents(tmp_path / "mesh")
    report = shards.verify()
    (warning,) = report.warnings
    assert f"{7 * len(before)} bytes in {len(before)} shards, first '0.shard', belong to" in warning
    assert re.search(f"warning +{re.escape(warning)}", str(report))
    assert report.unused_nbytes > 7 * len(before)
    with pytest.raises(CorruptShardError, match="belong to no chunk and to no index"):
        shards.write({2: b"new"}, existing="update")
    with pytest.raises(CorruptShardError, match="belong to no chunk and to no index"):
        shards.remove([1])
    assert contents(tmp_path / "mesh") == before
    assert read(shards) == MESHES


@pytest.mark.parametrize("data", ["raw", "gzip"])
def test_an_index_of_a_minishard_that_is_lost_is_told(tmp_path, data):
    """Its chunks looked like bytes of no id, verify said nothing, and an update dropped them."""
    sharding = sharding_of("identity", "raw", data)
    shards = shardwrite.UInt64Shards(tmp_path / "x", sharding)
    shards.write(dict.fromkeys(range(64), b"value"))
    file = tmp_path / "x" / "0.shard"
    whole = file.read_bytes()
    for minishard in range(4):
        file.write_bytes(whole[: 16 * minishard] + bytes(16) + whole[16 * minishard + 16 :])
        assert "in 1 shard, first '0.shard', belong to no chunk" in shards.verify().warnings[0]
        with pytest.raises(CorruptShardError, match="as if a part of the index was lost"):
            shards.write({0: b"new"}, existing="update")


def test_overlaps_are_refused_and_equal_ranges_are_kept(tmp_path):
    def shard_of(*columns):
        data = b"fragmentsmanifest"
        index = struct.pack(f"<{3 * len(columns[0])}Q", *(x for each in columns for x in each))
        entry = struct.pack("<8Q", len(data), len(data) + len(index), *[0] * 6)
        return entry + data + index

    sharding = {**sharding_of("identity", "raw"), "shard_bits": 0}
    (tmp_path / "0.shard").write_bytes(shard_of([4, 4], [9, 2**64 - 8], [8, 8]))
    shards = shardwrite.UInt64Shards(tmp_path, sharding)
    both = {4: (b"fragments", b"manifest"), 8: (b"fragments", b"manifest")}
    assert read(shards) == both
    assert shards.verify(deep=True).unused_nbytes == 9
    shards.write({1: b"new"}, existing="update")
    assert read(shards) == {**both, 1: (b"", b"new")}
    assert shards.verify(deep=True).unused_nbytes == 18
    (tmp_path / "0.shard").write_bytes(shard_of([4, 4], [9, 2**64 - 8], [8, 7]))
    assert "overlaps" in shards.verify().problems[0][1]
    with pytest.raises(CorruptShardError, match="overlaps"):
        shards.write({1: b"new"}, existing="update")
    # A chunk of no bytes has no place: what lies around it belongs to the next one.
    (tmp_path / "0.shard").write_bytes(shard_of([4, 4], [5, 4], [0, 8]))
    assert read(shards) == {4: (b"", b""), 8: (b"fragments", b"manifest")}
    shards.write({1: b"new"}, existing="update")
    assert read(shards) == {4: (b"", b""), 8: (b"fragments", b"manifest"), 1: (b"", b"new")}


def test_meshes_are_copied_from_other_shards(tmp_path):
    theirs = published(tmp_path / "theirs", sharding_of("identity", "raw", "gzip"), mixed=True)
    ours = shardwrite.UInt64Shards(obstore.store.MemoryStore(), sharding_of())
    ours.write({2: b"first"})
    ours.write(theirs, existing="update")
    assert read(ours) == {**MESHES, 2: (b"", b"first")}
    ours.write(theirs, existing="replace")
    assert read(ours) == MESHES


def test_an_obsolete_pair_with_fragments(tmp_path):
    shards = published(tmp_path / "mesh", sharding_of())
    for file in (tmp_path / "mesh").iterdir():
        data = file.read_bytes()
        file.with_suffix(".index").write_bytes(data[:64])
        file.with_suffix(".data").write_bytes(data[64:])
        file.unlink()
    assert read(shards) == MESHES
    shards.write({2: b"new"}, existing="update")
    shards.remove([1])
    wanted = {n: parts for n, parts in MESHES.items() if n != 1}
    assert read(shards) == {**wanted, 2: (b"", b"new")}
    assert shards.verify(deep=True).is_good


@pytest.mark.parametrize(
    ("value", "data_offset", "message"),
    [
        (b"12345", {2: 6}, "data_offset=6: the value of chunk 2 has 5 bytes"),
        (b"12345", {2: 0}, "data_offset=0: the value of chunk 2 has 5 bytes"),
        (b"12345", {2: -1}, "data_offset=-1"),
        (b"12345", {2: 1.5}, "data_offset=1.5"),
        (b"12345", 3, "data_offset='int': not a mapping"),
        (b"12345", {2: 1, 6: 1}, "data_offset=6: an id that values do not have; leave it out"),
        (b"12345", {2**64 - 1: 1}, "data_offset=18446744073709551615: an id that values"),
        (b"12345", {"2": 1}, "data_offset='2'"),
    ],
)
def test_offsets_that_are_refused(tmp_path, value, data_offset, message):
    shards = shardwrite.UInt64Shards(tmp_path / "x", sharding_of())
    with pytest.raises(SpecError, match=message):
        shards.write({2: value}, data_offset=data_offset)
    assert not list(tmp_path.rglob("*.*"))
    shards.write({2: b"", 4: b"123"}, data_offset={2: 0, 4: 3})
    assert read(shards) == {2: (b"", b""), 4: (b"", b"123")}


@pytest.mark.parametrize("durability", ["full", "batch"])
def test_a_killed_change_loses_no_fragments(tmp_path, durability):
    shards = published(tmp_path / "mesh", sharding_of(data="gzip"))
    new = {n: mesh(n + 5000) for n in (1, 4, 9, 20, 33, 2**40 + 5)}
    program = f"""
import os, signal, sys, shardwrite
class Dying(dict):
    n = 0
    def __getitem__(self, one):
        Dying.n += 1
        if Dying.n == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(one)
shards = shardwrite.UInt64Shards(sys.argv[1], {sharding_of(data="gzip")!r})
new = {new!r}
values = Dying({{n: f + m for n, (f, m) in new.items()}})
shards.write(values, data_offset={{n: len(m) for n, (f, m) in new.items()}}, threads=1,
             durability={durability!r}, existing="update")
"""
    for last in (3, 99):
        run = [*python(), "-c", program, str(tmp_path / "mesh"), str(last)]
        done = subprocess.run(run, check=False)
        assert done.returncode == (0 if last == 99 else -signal.SIGKILL)
        found = read(shards)
        assert all(found[n] in (each, new.get(n)) for n, each in MESHES.items())
        assert shards.verify(deep=True).is_good
    assert read(shards) == {**MESHES, **new}
