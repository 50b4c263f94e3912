"""Volumes whose chunks are labels in blocks, or images: written, interrupted, damaged, refused."""

from __future__ import annotations

import importlib.util
import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from forks import python

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.volumes import codecs

sys.path.insert(0, str(Path(__file__).parent))
import half_a_volume

LABELS = (np.arange(40 * 50 * 60, dtype="uint64") // 77 % 1000 + 1).reshape(40, 50, 60)
IMAGE = (np.add.outer(np.add.outer(np.arange(40), np.arange(50)), np.arange(60)) % 250 + 1).astype(
    "uint8"
)
NEW = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 16, "shard_nbytes": 70_000}
SCRIPT = half_a_volume.program(
    'np.arange(40 * 50 * 60, dtype="uint64").reshape(40, 50, 60) // 77 % 1000 + 1',
    16,
    shard_nbytes=70_000,
    encoding="compressed_segmentation",
)


def source(values=LABELS, chunks=20):
    return da.from_array(values, chunks=chunks)


def scale_of(root):
    return json.loads((root / "info").read_text())["scales"][0]


def write(values, root, **keywords):
    return shardwrite.to_precomputed(source(values), root, **{**NEW, **keywords})


@pytest.mark.compat
@pytest.mark.parametrize(
    ("encoding", "values", "fields"),
    [
        ("compressed_segmentation", LABELS, {"compressed_segmentation_block_size": [8, 8, 8]}),
        ("png", IMAGE, {}),
        ("png", IMAGE.astype("uint16") * 257, {}),
        ("jpeg", IMAGE, {"jpeg_quality": 75}),
    ],
)
def test_written_and_read(tmp_path, encoding, values, fields):
    if encoding == "jpeg":
        pytest.importorskip("simplejpeg")
    elif encoding == "png":
        pytest.importorskip("PIL", reason="pillow")
    kind = "segmentation" if encoding == "compressed_segmentation" else "image"
    written = write(values, tmp_path / "v", encoding=encoding, type=kind)
    scale = scale_of(tmp_path / "v")
    data_encoding = scale["sharding"].pop("data_encoding")
    assert data_encoding == ("gzip" if kind == "segmentation" else "raw")
    names = ("encoding", "compressed_segmentation_block_size", "jpeg_quality")
    assert {n: scale[n] for n in names if n in scale} == {"encoding": encoding, **fields}
    found = shardwrite.from_precomputed(tmp_path / "v", axes="zyx").compute()
    if encoding == "jpeg":
        assert 0 < np.abs(found.astype(int) - values).mean() < 5
    else:
        np.testing.assert_array_equal(found, values)
        assert shardwrite.verify(written.path, deep=True, against=values).is_good
    assert shardwrite.verify(written.path, deep=True).is_good
    files = {p.name: p.read_bytes() for p in (tmp_path / "v" / "4_4_40").glob("*.shard")}
    again = write(values, tmp_path / "v", encoding=encoding, type=kind)
    assert again.n_resumed_shards == written.n_shards
    write(values, tmp_path / "w", encoding=encoding, type=kind)
    assert {p.name: p.read_bytes() for p in (tmp_path / "w" / "4_4_40").glob("*.shard")} == files


def test_golden_bytes(tmp_path):
    """A shard of one chunk of labels, whose header is the only one."""
    values = np.array([[[9, 5, 5]]], "uint32")
    sharding = {"preshift_bits": 0, "minishard_bits": 0, "shard_bits": 0, "data_encoding": "raw"}
    sharding["minishard_index_encoding"] = "raw"
    write(
        values,
        tmp_path / "v",
        encoding="compressed_segmentation",
        compressed_segmentation_block_size=(4, 1, 1),
        sharding=sharding,
    )
    chunk = struct.pack("<6I", 1, 3 | 1 << 24, 2, 0b0001, 5, 9)
    expected = struct.pack("<2Q", 24, 48) + chunk + struct.pack("<3Q", 0, 0, 24)
    assert (tmp_path / "v" / "4_4_40" / "0.shard").read_bytes() == expected


@pytest.mark.parametrize("hash_name", ["identity", "murmurhash3_x86_128"])
def test_the_words_of_the_format(tmp_path, hash_name):
    """Raw chunks in shards that gzip them were refused. All members may be given as in an info."""
    info = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": 1,
        "hash": hash_name,
        "minishard_bits": 2,
        "shard_bits": 4,
        "minishard_index_encoding": "gzip",
        "data_encoding": "gzip",
    }
    keywords = {"encoding": "raw", "sharding": info}
    plan = shardwrite.plan_precomputed(source(), **{**NEW, **keywords})
    assert plan.n_shards
    write(LABELS, tmp_path / "v", **keywords)
    scale = scale_of(tmp_path / "v")
    assert (scale["encoding"], scale["sharding"]) == ("raw", info)
    write(LABELS, tmp_path / "short", encoding="gzip", sharding=info)
    assert scale_of(tmp_path / "short") == scale
    source().to_zarr(tmp_path / "x.zarr")
    arguments = [tmp_path / "x.zarr", tmp_path / "w", "--axes", "zyx", "--resolution", "4,4,40"]
    arguments += ["--chunks", "16", "--encoding", "raw", "--sharding", json.dumps(info)]
    done = CliRunner().invoke(main, ["precomputed", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    assert scale_of(tmp_path / "w") == scale
    slurm = ["slurm", "precomputed", *map(str, arguments), "--parts", "2", "--dry-run"]
    slurm[3] = str(tmp_path / "in-parts")
    done = CliRunner().invoke(main, slurm)
    assert done.exit_code == 0, done.output
    for name in ("v", "w"):
        found = shardwrite.from_precomputed(tmp_path / name, axes="zyx")
        np.testing.assert_array_equal(found, LABELS)
        assert shardwrite.verify(tmp_path / name / "4_4_40", deep=True).is_good


@pytest.mark.compat
@pytest.mark.parametrize("block", [(8, 8, 17), (64, 64, 64), (5, 40, 1)])
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_blocks_that_are_larger_than_a_chunk(tmp_path, block, dtype):
    """Other programs read and write them. Chunks at the edges are smaller than the others, too."""
    ts = pytest.importorskip("tensorstore")
    labels = LABELS[:21, :34, :30].astype(dtype)
    labels[:, :8] *= 3
    keywords = {
        "encoding": "compressed_segmentation",
        "compressed_segmentation_block_size": block,
        "type": "segmentation",
    }
    write(labels, tmp_path / "v", **keywords)
    opened = {"driver": "neuroglancer_precomputed", "kvstore": f"file://{tmp_path}/v/"}
    found = ts.open(opened).result().read().result()
    np.testing.assert_array_equal(found[..., 0].T, labels)
    scale = {"size": [30, 34, 21], "chunk_size": [16] * 3, "resolution": [4, 4, 40], "key": "s"}
    scale |= {key: value for key, value in keywords.items() if key != "type"}
    created = {
        "driver": "neuroglancer_precomputed",
        "kvstore": f"file://{tmp_path}/theirs/",
        "multiscale_metadata": {"type": "segmentation", "data_type": dtype, "num_channels": 1},
        "scale_metadata": scale,
    }
    ts.open(created, create=True).result().write(labels.T[..., None]).result()
    for name in ("v", "theirs"):
        back = shardwrite.from_precomputed(tmp_path / name, axes="zyx")
        np.testing.assert_array_equal(back, labels)
    assert shardwrite.verify(tmp_path / "v" / "4_4_40", deep=True).is_good


def test_blocks_and_quality(tmp_path):
    pytest.importorskip("simplejpeg")
    write(
        LABELS.astype("uint32"),
        tmp_path / "v",
        encoding="compressed_segmentation",
        compressed_segmentation_block_size=np.array([16, 4, 2]),
    )
    assert scale_of(tmp_path / "v")["compressed_segmentation_block_size"] == [16, 4, 2]
    np.testing.assert_array_equal(shardwrite.from_precomputed(tmp_path / "v", axes="zyx"), LABELS)
    sizes = []
    for quality in (20, 95):
        path = tmp_path / str(quality)
        write(IMAGE, path, encoding="jpeg", jpeg_quality=quality)
        sizes.append(sum(p.stat().st_size for p in path.rglob("*.shard")))
        with pytest.raises(SpecError) as caught:
            write(IMAGE, path, encoding="jpeg", jpeg_quality=50)
        assert caught.value.fields["field"] == "key", "it is another scale"
    assert sizes[0] < sizes[1]


@pytest.mark.long
def test_channels(tmp_path):
    pytest.importorskip("simplejpeg")
    rgb = np.stack([IMAGE, IMAGE // 2, 255 - IMAGE])
    for encoding in ("png", "jpeg"):
        root = tmp_path / encoding
        written = write(rgb, root, axes="czyx", encoding=encoding)
        found = shardwrite.from_precomputed(root, axes="czyx").compute()
        stored = np.asarray(shardwrite.open_sharded(written.path)[...])
        np.testing.assert_array_equal(stored, found)
        assert np.abs(found.astype(int) - rgb).mean() < (1e-9 if encoding == "png" else 5)


def test_no_value_of_a_jpeg_is_compared(tmp_path):
    pytest.importorskip("simplejpeg")
    written = write(IMAGE, tmp_path / "v", encoding="jpeg")
    assert "values change" in str(shardwrite.plan_precomputed(IMAGE, **NEW, encoding="jpeg"))
    np.save(tmp_path / "a.npy", IMAGE)
    shardwrite.to_sharded_zarr(IMAGE, tmp_path / "x.zarr", shards=32, chunks=16)
    for against in (IMAGE, str(tmp_path / "x.zarr")):
        with pytest.raises(SpecError, match="with a loss") as caught:
            shardwrite.verify(written.path, against=against)
        assert caught.value.fields["field"] == "against"


def test_a_killed_run_goes_on(tmp_path):
    root = tmp_path / "v"
    child = subprocess.Popen(
        [*python(), "-c", SCRIPT, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    committed = {p: p.stat().st_ino for p in root.rglob("*.shard")}
    assert committed, "nothing was interrupted"
    assert not (root / "info").exists()
    written = shardwrite.to_precomputed(
        source(chunks=16),
        root,
        **NEW,
        encoding="compressed_segmentation",
        source_id="values",
        durability="none",
    )
    assert len(committed) <= written.n_resumed_shards < written.n_shards
    assert {p: p.stat().st_ino for p in committed} == committed, "no shard was written twice"
    assert shardwrite.verify(written.path, deep=True, against=LABELS).is_good
    np.testing.assert_array_equal(shardwrite.from_precomputed(root, axes="zyx"), LABELS)


def bomb(width):
    """A PNG image that claims a width, and has the checksum of its header."""
    import zlib

    header = b"IHDR" + struct.pack(">IIBBBBB", width, width, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + header
        + struct.pack(">I", zlib.crc32(header))
        + bytes(500)
    )


@pytest.mark.parametrize("encoding", ["compressed_segmentation", "png", "jpeg"])
@pytest.mark.parametrize("fault", ["zeros", "ones", "bomb"])
def test_hostile_chunks(tmp_path, encoding, fault):
    pytest.importorskip("simplejpeg")
    root = tmp_path / "v"
    values = LABELS if encoding == "compressed_segmentation" else IMAGE
    sharding = {"preshift_bits": 1, "minishard_bits": 0, "shard_bits": 20, "data_encoding": "raw"}
    sharding["minishard_index_encoding"] = "raw"
    written = write(values, root, encoding=encoding, sharding=sharding)
    path = sorted(root.rglob("*.shard"))[0]
    data = bytearray(path.read_bytes())
    start = struct.unpack_from("<2Q", data)[0]
    content = {"zeros": bytes(120), "ones": b"\xff" * 120, "bomb": bomb(2**31 - 1)[:120]}[fault]
    at = 16 + (4 if encoding == "compressed_segmentation" and fault == "ones" else 0)
    data[at : at + len(content)] = content
    assert len(content) < start
    path.write_bytes(data)
    report = shardwrite.verify(written.path, deep=True)
    assert [problem.key for problem in report.problems] == [path.name]
    for read in (
        lambda: shardwrite.from_precomputed(root, axes="zyx").compute(),
        lambda: shardwrite.open_sharded(written.path)[...],
    ):
        with pytest.raises(CorruptShardError):
            read()
    shardwrite.repair(written.path, values)
    assert shardwrite.verify(written.path, deep=True).is_good


@pytest.mark.long
def test_the_codecs_stay_in_volumes(tmp_path):
    """A sharded array of the same data has codecs that readers of Zarr know."""
    root = tmp_path / "v"
    write(LABELS, root, encoding="compressed_segmentation")
    for n, keywords in enumerate(({}, {"compressors": "gzip"})):
        shardwrite.reshard(
            root / "4_4_40", tmp_path / f"{n}.zarr", shards=32, chunks=16, **keywords
        )
        np.testing.assert_array_equal(zarr.open(tmp_path / f"{n}.zarr")[...], LABELS)
    with pytest.raises(SpecError) as caught:
        shardwrite.to_sharded_zarr(
            IMAGE, tmp_path / "x.zarr", shards=32, chunks=16, serializer="neuroglancer_png"
        )
    assert caught.value.fields["field"] == "serializer"


@pytest.mark.parametrize(
    ("values", "keywords", "field"),
    [
        (IMAGE.astype("float32"), {"encoding": "jpeg"}, "encoding"),
        (IMAGE.astype("uint16"), {"encoding": "jpeg"}, "encoding"),
        (IMAGE, {"encoding": "jpeg", "type": "segmentation"}, "encoding"),
        (np.stack([IMAGE] * 2), {"encoding": "jpeg", "axes": "czyx"}, "encoding"),
        (np.stack([IMAGE] * 5), {"encoding": "png", "axes": "czyx"}, "encoding"),
        (LABELS, {"encoding": "png"}, "encoding"),
        (IMAGE.astype("float32"), {"encoding": "png"}, "encoding"),
        (IMAGE, {"encoding": "compressed_segmentation"}, "encoding"),
        (LABELS.astype("int32"), {"encoding": "compressed_segmentation"}, "encoding"),
        (IMAGE, {"encoding": "compresso"}, "encoding"),
        (IMAGE, {"encoding": ["png"]}, "encoding"),
        (IMAGE, {"encoding": "jpeg", "chunks": (512, 512, 512)}, "chunks"),
        (LABELS, {"encoding": "compressed_segmentation", "chunks": (512, 512, 512)}, "chunks"),
        (IMAGE, {"encoding": "jpeg", "jpeg_quality": 0}, "jpeg_quality"),
        (IMAGE, {"encoding": "jpeg", "jpeg_quality": 7.5}, "jpeg_quality"),
        (IMAGE, {"encoding": "jpeg", "jpeg_quality": True}, "jpeg_quality"),
        (IMAGE, {"jpeg_quality": 75}, "jpeg_quality"),
        *(
            (
                LABELS,
                {"encoding": encoding, "compressed_segmentation_block_size": block},
                "compressed_segmentation_block_size",
            )
            for encoding, block in (
                ("gzip", (8, 8, 8)),
                ("compressed_segmentation", (8, 8)),
                ("compressed_segmentation", 8),
                ("compressed_segmentation", "888"),
                ("compressed_segmentation", (8, 8, 0)),
                ("compressed_segmentation", (64, 64, 65)),
                ("compressed_segmentation", (True, 8, 8)),
            )
        ),
    ],
)
def test_bad_input(tmp_path, values, keywords, field):
    def never(block):
        raise AssertionError("something was computed")

    x = source(values).map_blocks(never, dtype=values.dtype, meta=values[:0])
    with pytest.raises(SpecError) as caught:
        shardwrite.to_precomputed(x, tmp_path / "v", **{**NEW, **keywords})
    assert caught.value.fields["field"] == field
    assert caught.value.fields["remedy"]
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_without_libraries(tmp_path, monkeypatch):
    """PNG images need no library. JPEG images are refused, and the extra is named."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "PIL" and found(name))
    monkeypatch.setitem(codecs.importlib.sys.modules, "simplejpeg", None)
    write(IMAGE, tmp_path / "v", encoding="png")
    np.testing.assert_array_equal(shardwrite.from_precomputed(tmp_path / "v", axes="zyx"), IMAGE)
    with pytest.raises(SpecError, match=r"shardwrite\[precomputed\]"):
        write(IMAGE, tmp_path / "w", encoding="jpeg")


@pytest.mark.parametrize(
    ("scale", "field"),
    [
        ({"encoding": "compressed_segmentation"}, "encoding"),
        ({"encoding": "jpeg", "jpeg_quality": 101}, "jpeg_quality"),
        ({"encoding": "compresso"}, "encoding"),
    ],
)
def test_an_info_that_does_not_fit(tmp_path, scale, field):
    write(IMAGE, tmp_path / "v")
    info = json.loads((tmp_path / "v" / "info").read_text())
    info["scales"][0] |= scale
    (tmp_path / "v" / "info").write_text(json.dumps(info))
    with pytest.raises(SpecError) as caught:
        shardwrite.from_precomputed(tmp_path / "v")
    assert caught.value.fields["field"] == field


def test_the_command(tmp_path):
    np.save(tmp_path / "a.npy", LABELS)

    def run(*arguments):
        words = [str(one) for one in arguments]
        return CliRunner().invoke(main, ["precomputed", *words])

    options = ("--axes", "zyx", "--resolution", "4,4,40", "--type", "segmentation")
    block = (
        "--encoding",
        "compressed_segmentation",
        "--compressed-segmentation-block-size",
        "8,8,4",
    )
    done = run(tmp_path / "a.npy", tmp_path / "v", *options, *block, "--verify")
    assert done.exit_code == 0, done.output
    assert scale_of(tmp_path / "v")["compressed_segmentation_block_size"] == [8, 8, 4]
    bad = run(tmp_path / "a.npy", tmp_path / "w", *options, "--encoding", "jpeg")
    assert bad.exit_code == 2
    assert "--encoding" in bad.output
    worse = run(tmp_path / "a.npy", tmp_path / "w", *options, "--jpeg-quality", "9")
    assert worse.exit_code == 2
    assert "--jpeg-quality" in worse.output
