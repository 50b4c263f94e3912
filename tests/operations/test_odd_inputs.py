"""What users give and names say: credentials are shown nowhere, control characters move no cursor,
and nothing is taken for something else.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from helpers import run

import shardwrite
from shardwrite import PlanError, ShardwriteError, SpecError, StoreError, errors
from shardwrite.sources import open_source

GOOD = {"shards": 8, "chunks": 4, "durability": "none"}
pytestmark = pytest.mark.filterwarnings("ignore:The data type:FutureWarning")


def source(n=16):
    return da.from_array(np.arange(n * 16, dtype="i4").reshape(n, 16) + 1, chunks=8)


@pytest.fixture
def existing(tmp_path):
    path = tmp_path / "x"
    source().to_sharded_zarr(path, **GOOD)
    return path


# ---- credentials

KEY, SECRET = "AKIAKEYKEYKEY", "sEcr/et+Secret"
ADDRESSES = {
    "a key and a secret": f"s3://{KEY}:{SECRET}@bucket/x.zarr",
    "a token": f"https://{SECRET}@host/x.zarr",
    "a signature": f"https://host/x.zarr?X-Amz-Credential={KEY}&X-Amz-Signature={SECRET}",
    "a fragment": f"gs://bucket/x.zarr#{SECRET}",
    "one slash, as paths have it": f"s3:/{KEY}:{SECRET}@bucket/x.zarr",
    "spaces and quotes": f"ftp://{KEY}:'{SECRET} {SECRET}@host/x.zarr",
}


def holds_none(*texts):
    for text in texts:
        for secret in (KEY, SECRET, *SECRET.split("/")):
            assert secret not in text
    return True


@pytest.mark.parametrize("row", ADDRESSES)
def test_an_address_is_refused_without_its_credentials(tmp_path, row, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address, x = ADDRESSES[row], source()
    plan = shardwrite.plan(x, shards=8, chunks=4)
    calls = [
        lambda: x.to_sharded_zarr(address, **GOOD),
        lambda: x.to_sharded_zarr(tmp_path / "x", name=address, **GOOD),
        lambda: x.to_sharded_zarr(address, region=(slice(0, 16), slice(0, 16))),
        lambda: shardwrite.store([x], [address, address]),
        lambda: shardwrite.create(address, (8,), "i4", shards=8, chunks=4),
        lambda: shardwrite.plan_region(x, address, slice(0, 4)),
        lambda: shardwrite.prepare(x, address, plan),
        lambda: shardwrite.write_part(x, address, 0, 1),
        lambda: shardwrite.finalize(address),
        lambda: shardwrite.ShardWriter(address),
        *(
            lambda call=call: call(address)
            for call in (
                shardwrite.verify,
                shardwrite.census,
                shardwrite.repair,
                shardwrite.compact,
                shardwrite.abandon,
            )
        ),
        lambda: shardwrite.from_sharded_zarr(address),
        lambda: open_source(address),
    ]
    for call in calls:
        with pytest.raises(ShardwriteError) as caught:
            call()
        error = caught.value
        assert holds_none(
            str(error), repr(error), repr(error.args), repr(error.fields), repr(vars(error))
        )
    assert not list(tmp_path.iterdir()), "no directory has an address for its name"


@pytest.mark.parametrize(
    "given", [b"s3://KEY:SECRET@b/x", {"secret": "SECRET"}, ["SECRET"]], ids=str
)
def test_what_is_no_path_is_not_repeated(given):
    with pytest.raises(SpecError) as caught:
        source().to_sharded_zarr(given, **GOOD)
    assert "SECRET" not in str(caught.value)
    assert caught.value.value == type(given).__name__


@pytest.mark.parametrize("given", ["\ud800", "a/\ud800"])
def test_a_path_that_is_no_name_of_a_file(given):
    for call in (shardwrite.from_precomputed, shardwrite.verify, shardwrite.UInt64Shards):
        with pytest.raises(SpecError, match="not the path of a directory"):
            call(given)


def test_a_path_object_of_an_address_makes_no_directory_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="a path object loses a slash"):
        source().to_sharded_zarr(Path(f"s3://{KEY}:{SECRET}@bucket/x"), **GOOD)
    assert not list(tmp_path.iterdir())


COMMANDS = [
    ("write", "{src}", "{address}"),
    ("write", "{address}", "out"),
    ("plan", "{address}"),
    ("init", "{src}", "{address}"),
    ("write-part", "{src}", "{address}", "0/2"),
    ("finalize", "{address}"),
    ("update", "{src}", "{address}", "--append", "0"),
    ("erase", "{address}", "--region", "0:4"),
    ("erase", "{address}", "--region", "{address}"),
    ("compact", "{address}"),
    ("abandon", "{address}"),
    ("info", "{address}"),
    ("info", "out", "{address}"),
    ("verify", "{address}", "--json"),
    ("verify", "out", "--name", "{address}"),
    ("census", "{address}"),
    ("repair", "{address}"),
    ("slurm", "submit", "{src}", "{address}"),
    ("slurm", "status", "{address}"),
    ("slurm", "cancel", "{address}"),
    ("slurm", "script", "elastic", "{address}", "{address}", "--jobs", "3"),
    ("slurm", "script", "array", "{src}", "{address}", "--parts", "3"),
    ("slurm", "script", "allocation", "--program", "run.py", "{address}"),
    ("{address}",),
    ("exec", "{address}"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_credentials(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.arange(16.0))
    done = run(
        *(word.format(src="in.npy", address=ADDRESSES["a key and a secret"]) for word in command)
    )
    assert done.exit_code not in (0, 70)
    assert isinstance(done.exception, SystemExit)
    assert holds_none(done.output)
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_what_names_the_source_is_kept_without_credentials(tmp_path):
    address, x = ADDRESSES["a key and a secret"], source()
    plan = shardwrite.plan(x, shards=8, chunks=4, source_id=address)
    assert holds_none(plan.to_json(), str(plan))
    path = tmp_path / "x"
    shardwrite.prepare(x, path, plan)
    assert holds_none(seams.plan_file(tmp_path / "x").read_text())
    shardwrite.write_part(x, path, 0, 1, source_id=address)
    shardwrite.finalize(path)
    source(4).to_sharded_zarr(path, region="append", source_id=address)
    assert holds_none(
        *(file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file())
    )
    assert (
        x.to_sharded_zarr(path, shards=8, chunks=4, source_id=address, mode="w-").n_resumed_shards
        == 4
    )


@pytest.mark.parametrize("end", ['"b"', "\\", '\\"', "\\\\"])
def test_what_commands_print_in_json_stays_json(tmp_path, end):
    path = tmp_path / "\x7f\x9b" / "https:" / f"host?key={SECRET.replace('/', '')}{end}"
    source().to_sharded_zarr(path, **GOOD)
    for command in (("info", path), ("verify", path), ("census", path), ("compact", path)):
        done = run(*command, "--json")
        has_none(done.output)
        told = json.loads(done.output).get("path", "?***")
        assert "?***" in told
        assert SECRET.replace("/", "") not in told


@pytest.mark.parametrize(
    "text", ["/data/a@b", "file:///a@b/c", "a@b", "12:30 a@b", "gs://bucket/x", "x.zarr::a@b"]
)
def test_what_is_no_secret_stays(text):
    assert errors.redacted(text) == text


# ---- control characters

WILD = "a\x1b[2J\x07\r\x9b31m\u202eb"


def has_none(text):
    assert not [
        c for c in text if c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")
    ], repr(text)


def test_control_characters_in_names_are_spelt_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{WILD}.zarr"
    np.save(tmp_path / f"{WILD}.npy", np.arange(16.0))
    source().to_sharded_zarr(path, **GOOD)
    (path / "c" / "0" / "0").write_bytes(b"torn")
    update = source(4).map_blocks(lambda block: block[:1] if block.size > 1 else block, dtype="i4")
    with pytest.raises(ShardwriteError):
        update.to_sharded_zarr(path, region=(slice(0, 4), slice(0, 16)))
    for command in (
        ("info", path),
        ("verify", path),
        ("census", path),
        ("repair", path),
        ("write", path, tmp_path / "y"),
        ("write", tmp_path / f"{WILD}.npy", path),
        ("write", tmp_path / f"{WILD}.npy", tmp_path / f"{WILD}{WILD}"),
        ("plan", tmp_path / f"{WILD}.npy"),
        ("plan", tmp_path / f"{WILD}.none"),
        ("compact", path),
        ("abandon", path),
        ("info", path, "--name", WILD),
        ("write-part", path, path, WILD),
        ("slurm", "status", path),
        ("slurm", "script", "array", path, path, "--parts", 3),
        (WILD,),
        ("info", WILD, WILD),
        ("exec", WILD),
    ):
        done = run(*command)
        has_none(done.output)
        assert not done.exception or isinstance(done.exception, SystemExit), done.exception


def test_bytes_that_are_no_text_are_spelt_out(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.zarr")
    source().to_sharded_zarr(path, **GOOD)
    done = run("info", path)
    assert done.exit_code == 0
    assert r"\udcff\udcfe.zarr" in done.output


def test_a_script_is_printed_as_it_is_or_not_at_all(tmp_path):
    assert run("slurm", "script", "array", "a b.npy", "ü.zarr", "--parts", 3).output.count(
        "'a b.npy'"
    )
    done = run("slurm", "script", "array", "a\x1b.npy", "b.zarr", "--parts", 3)
    assert done.exit_code == 2
    assert "control characters" in done.output


def test_commands_print_by_one_way_only():
    for path in (Path(shardwrite.__path__[0]) / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and path.name != "terminal.py":
                name = ast.unparse(node.func)
                assert name not in ("click.echo", "click.secho", "print", "traceback.print_exc"), (
                    f"{path.name}, {node.lineno}"
                )


def test_commands_name_the_encoding_of_text_that_they_write():
    calls = [
        (path.name, node)
        for path in (Path(shardwrite.__path__[0]) / "cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (ast.unparse(node.func) == "open" or ast.unparse(node.func).endswith(".write_text"))
    ]
    assert calls
    for name, node in calls:
        assert "encoding" in [keyword.arg for keyword in node.keywords], f"{name}, {node.lineno}"


# ---- URLs

URLS = {
    "a space": ("file://{}/a%20b", "a b"),
    "a percent sign": ("file://{}/a%2520b", "a%20b"),
    "bytes that are no text": ("file://{}/%FF", os.fsdecode(b"\xff")),
    "umlauts": ("file://{}/%C3%BC", "ü"),
    "a question mark": ("file://{}/a%3Fb", "a?b"),
    "this host": ("file://localhost{}/a", "a"),
    "one slash": ("file:{}/a", "a"),
}


@pytest.mark.parametrize("row", URLS)
def test_a_url_names_the_file_that_it_says(tmp_path, row):
    url, leaf = URLS[row]
    shardwrite.create(url.format(tmp_path), (8,), "i4", shards=8, chunks=4)
    assert [path.name for path in tmp_path.iterdir()] == [leaf]
    assert shardwrite.verify(url.format(tmp_path)).is_good


@pytest.mark.parametrize(
    "url",
    [
        "file://host/a",
        "file:///a?b",
        "file:///a#b",
        "file:///a?",
        "file:///a%zz",
        "file:///%",
        "file:a",
    ],
)
def test_a_url_that_says_more_is_refused(url):
    for call in (shardwrite.verify, shardwrite.ShardWriter, shardwrite.from_sharded_zarr):
        with pytest.raises(SpecError) as caught:
            call(url)
        assert (caught.value.field, caught.value.value) == ("store", url)


# ---- places


def makes(path, name=None):
    """Every way to make an array there."""
    x = source()
    return {
        "write": lambda: x.to_sharded_zarr(path, name=name, **GOOD),
        "replace": lambda: x.to_sharded_zarr(path, name=name, mode="w", **GOOD),
        "create": lambda: shardwrite.create(path, (8,), "i4", shards=8, chunks=4, name=name),
        "prepare": lambda: shardwrite.prepare(
            x, path, shardwrite.plan(x, shards=8, chunks=4), name=name
        ),
        "store": lambda: shardwrite.store([x], [path], names=[name], **GOOD),
    }


def all_below(path):
    return sorted(str(entry) for entry in path.rglob("*"))


@pytest.mark.parametrize("way", makes(""))
@pytest.mark.parametrize(
    "where", [("inner", None), ("c/inner", None), ("a/b", "c/d"), ("link", None)]
)
def test_an_array_inside_an_array_is_refused(existing, way, where):
    store, name = where
    if store == "link":
        (existing.parent / "link").symlink_to(existing)
        store = "../link/inner"
    before = all_below(existing.parent)
    with pytest.raises(SpecError, match="array") as caught:
        makes(existing / store, name)[way]()
    assert caught.value.remedy
    assert all_below(existing.parent) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_of_any_kind_holds_no_other(tmp_path, zarr_format):
    zarr.create_array(tmp_path / "x", shape=3, dtype="i4", zarr_format=zarr_format)
    with pytest.raises(SpecError, match="inside the array"):
        source().to_sharded_zarr(tmp_path / "x" / "y", **GOOD)
    assert run("write", tmp_path / "none.npy", tmp_path / "x" / "y").exit_code
    np.save(tmp_path / "in.npy", np.arange(16.0))
    done = run(
        "slurm",
        "submit",
        tmp_path / "in.npy",
        tmp_path / "x" / "y",
        "--shards",
        8,
        "--chunks",
        4,
        "--parts",
        2,
    )
    assert done.exit_code == 2
    assert "inside the array" in done.output


def test_an_array_that_is_being_made_holds_no_other(tmp_path):
    x = source()
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, shards=8, chunks=4))
    with pytest.raises(SpecError, match="inside the array"):
        source().to_sharded_zarr(tmp_path / "x" / "y", **GOOD)


def test_an_array_that_holds_another_is_not_replaced(existing):
    inner = existing / "sub" / "inner"
    inner.mkdir(parents=True)
    zarr.create_array(inner, shape=3, dtype="i4")
    before = all_below(existing)
    with pytest.raises(SpecError, match="stands inside it"):
        source().to_sharded_zarr(existing, mode="w", **GOOD)
    assert all_below(existing) == before
    source(4).to_sharded_zarr(
        existing, region=(slice(0, 4), slice(0, 16))
    )  # what is there is still written to


def test_groups_of_arrays_are_written_as_before(tmp_path):
    for name in ("a", "b/c", "b/d"):
        source().to_sharded_zarr(tmp_path / "group", name=name, **GOOD)
    source().to_sharded_zarr(tmp_path / "group" / "b" / "e", **GOOD)
    source().to_sharded_zarr(tmp_path / "group", name="a", mode="w", **GOOD)
    assert shardwrite.verify(tmp_path / "group", name="b/c").is_good


@pytest.mark.parametrize("way", makes(""))
def test_a_path_that_ends_like_what_lies_beside_an_array_is_refused(tmp_path, way):
    for path in (
        seams.state_beside(tmp_path / "x"),
        f"file://{tmp_path}/x%2Eshardwrite",
        f"{tmp_path}/x.shardwrite/",
    ):
        with pytest.raises(SpecError, match="does not end in") as caught:
            makes(path)[way]()
        assert caught.value.field == "store"
        with pytest.raises(SpecError, match="does not end in"):
            makes(path, "a")[way]()
    assert not list(tmp_path.iterdir())
    assert run("info", seams.state_beside(tmp_path / "x")).exit_code == 2


# ---- fill values: (dtype, value)

TIME = [("ms", np.datetime64("2020-01-01T00:00:00.5")), ("span", np.timedelta64(1500, "ms"))]
CHANGED = [
    ("i4", 1.9),
    ("i4", np.int64(2**40)),
    ("i4", float("nan")),
    ("i4", 2**31),
    ("u1", 300),
    ("u1", -1),
    ("i4", "abc"),
    ("i4", b"1"),
    ("i8", 2**63),
    ("bool", 2),
    ("bool", 0.5),
    ("bool", "no"),
    ("f4", 1e300),
    ("f2", 70000),
    ("f4", "abc"),
    ("f4", 1 + 2j),
    ("c8", 1e300),
    ("M8[s]", TIME[0][1]),
    ("m8[s]", TIME[1][1]),
    ("M8[s]", 1.9),
    ("M8[ns]", np.datetime64("9999-01-01")),  # numpy takes it for one in 1815, and for equal
    ("M8[ns]", "1500-01-01"),
    ("m8[ns]", np.timedelta64(10**9, "h")),
    ("U3", "abcd"),
    ("U3", 5),
    ("S3", b"abcd"),
    ("V3", b"abcd"),
    ([("a", "u1"), ("b", "f4")], (1.5, 1.0)),
    ([("a", "u1"), ("b", "f4")], (300, 1.0)),
]
KEPT = [
    ("i4", 1.0, 1),
    ("i4", True, 1),
    ("i8", 2**63 - 1, 2**63 - 1),
    ("u8", 2**64 - 1, 2**64 - 1),
    ("i4", np.float64(3), 3),
    ("bool", 1, True),
    ("f4", 0.1, np.float32(0.1)),
    ("f4", float("inf"), np.float32("inf")),
    ("c8", 1 + 2j, 1 + 2j),
    ("M8[s]", np.datetime64("2020-01-01"), np.datetime64("2020-01-01")),
    ("M8[s]", 5, np.datetime64(5, "s")),
    ("M8[D]", np.datetime64("2020-01-01T00", "ns"), np.datetime64("2020-01-01")),
    ("M8[ns]", np.datetime64("2262-04-11"), np.datetime64("2262-04-11")),
    ("U3", "abc", "abc"),
    ("S3", b"abc", b"abc"),
    ([("a", "u1"), ("b", "f4")], (1, 2.5), (1, 2.5)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "value"), CHANGED, ids=str)
def test_a_fill_value_that_would_change_is_refused(tmp_path, dtype, value):
    kind = np.dtype(dtype)
    x = da.from_array(np.zeros(16, kind), chunks=8)
    for call in (
        lambda: shardwrite.create(
            tmp_path / "x", (16,), kind, shards=8, chunks=4, fill_value=value
        ),
        lambda: x.to_sharded_zarr(tmp_path / "x", **GOOD, fill_value=value),
        lambda: shardwrite.plan(x, shards=8, chunks=4, fill_value=value),
        lambda: shardwrite.store([x], [tmp_path / "x"], **GOOD, fill_value=value),
    ):
        with pytest.raises(SpecError) as caught:
            call()
        assert caught.value.field == "fill_value"
        assert "give a scalar of the array's dtype" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_fill_value_that_is_no_text_is_refused(tmp_path):
    """It was a TypeError of numpy."""
    keywords = {"shards": 4, "chunks": 2, "fill_value": "\udc80"}
    with pytest.raises(SpecError, match="surrogates not allowed") as caught:
        shardwrite.create(tmp_path / "x", (8,), np.dtypes.StringDType(), **keywords)
    assert caught.value.field == "fill_value"
    assert not list(tmp_path.iterdir())


def test_a_value_that_is_no_text_is_refused(tmp_path):
    """It was a UnicodeEncodeError of numpy."""
    path = tmp_path / "x"
    shardwrite.create(path, (8,), np.dtypes.StringDType(), shards=4, chunks=2)
    with pytest.raises(SpecError, match=r"x='\\udc80': is no text .*surrogates not allowed"):
        shardwrite.write_region("\udc80", path, slice(0, 3))
    assert not seams.state_beside(path).exists()


def test_a_dtype_with_a_shape_is_refused(tmp_path):
    """It made an array of bytes, into which no such values could be written."""
    with pytest.raises(SpecError, match=r"the axes \(3,\) in the shape") as caught:
        shardwrite.create(tmp_path / "x", (8,), ("i4", (3,)), shards=4, chunks=2)
    assert caught.value.field == "dtype"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [b"ab", bytearray(b"ab")])
def test_bytes_are_no_shape(tmp_path, shape):
    with pytest.raises(SpecError, match="not a shape"):
        shardwrite.create(tmp_path / "x", shape, "u1", shards=8, chunks=4)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("dtype", "value", "kept"), KEPT, ids=str)
def test_a_fill_value_that_the_dtype_holds_is_kept(tmp_path, dtype, value, kept):
    shardwrite.create(tmp_path / "x", (4,), np.dtype(dtype), shards=4, chunks=4, fill_value=value)
    found = shardwrite.open_sharded(tmp_path / "x").metadata.fill_value
    assert (found.item() if found.dtype.names else found) == kept


@pytest.mark.parametrize(
    ("dtype", "text", "kept"),
    [
        ("i8", "9007199254740993", 9007199254740993),
        ("i4", "-5", -5),
        ("f4", "nan", "NaN"),
        ("f8", "0.5", 0.5),
        ("bool", "true", True),
    ],
)
def test_the_command_takes_whole_numbers_whole(tmp_path, dtype, text, kept):
    np.save(tmp_path / "in.npy", np.zeros(16, dtype))
    for command in ("write", "init"):
        arguments = ("--shards", 8, "--chunks", 4, f"--fill-value={text}")
        assert run(command, tmp_path / "in.npy", tmp_path / command, *arguments).exit_code == 0
    assert json.loads((tmp_path / "write" / "zarr.json").read_text())["fill_value"] == kept
    done = run(
        "write",
        tmp_path / "in.npy",
        tmp_path / "y",
        "--shards",
        8,
        "--chunks",
        4,
        "--fill-value=green",
    )
    assert done.exit_code == 2
    assert "--fill-value green" in done.output


def test_errors_keep_what_is_no_secret():
    value = ["C"]
    error = SpecError("no such thing", field="f", value=value, remedy="r")
    assert error.value is value
    assert PlanError("a", needed_nbytes=1, allowed_nbytes=2, remedy="k").needed_nbytes == 1
    assert StoreError("x", key="a@b").key == "a@b"


def test_texts_where_booleans_among_others_are_wanted(tmp_path):
    """They counted as True: another program's changes could be lost, or chunks grew."""
    x = da.ones((4, 4), chunks=2, dtype="u1")
    x.to_sharded_zarr(tmp_path / "x", shards=2, chunks=1)
    for field, call in (
        ("exclusive", lambda: shardwrite.store([x], [tmp_path / "y"], exclusive="no")),
        ("checksum", lambda: shardwrite.reshard(tmp_path / "x", tmp_path / "y", checksum="no")),
    ):
        with pytest.raises(SpecError, match="not a bool; give True or False") as caught:
            call()
        assert caught.value.field == field
    shardwrite.reshard(tmp_path / "x", tmp_path / "y", checksum=None)


def test_arrays_of_numpy_where_they_were_compared(tmp_path):
    """They raised ValueErrors of numpy, or TypeErrors of json; a shape of numpy is one."""
    shardwrite.create(tmp_path / "x", np.array([4, 6]), "u1", shards=2, chunks=1)
    x = np.arange(24, dtype="u1").reshape(4, 6)
    shardwrite.write_region(x, tmp_path / "x", (slice(0, 4), slice(0, 6)))
    assert (shardwrite.from_sharded_zarr(tmp_path / "x") == x).all()
    odd = np.array([4, 4])
    layout = {"dtype": "u1", "shards": 2, "chunks": 1}
    for field, call in (
        ("shape", lambda: shardwrite.create(tmp_path / "y", np.array([[4, 4]]), **layout)),
        ("shape", lambda: shardwrite.create(tmp_path / "y", np.array(4), **layout)),
        ("shape", lambda: shardwrite.create(tmp_path / "y", np.array([4.0]), **layout)),
        (
            "index_location",
            lambda: shardwrite.create(tmp_path / "y", (4, 4), **layout, index_location=odd),
        ),
        ("strategy", lambda: shardwrite.repair(tmp_path / "x", x, strategy=odd)),
        *(
            (
                field,
                lambda field=field: shardwrite.reshard(
                    tmp_path / "x", tmp_path / "y", **{field: odd}
                ),
            )
            for field in ("dimension_names", "manifest", "include", "exclude")
        ),
        ("include", lambda: shardwrite.reshard(tmp_path / "x", tmp_path / "y", include=5)),
    ):
        with pytest.raises(SpecError) as caught:
            call()
        assert caught.value.field == field
    assert not (tmp_path / "y").exists()
    with pytest.raises(
        TypeError, match=r"^create\(\) got an unexpected keyword argument 'publish'"
    ):
        shardwrite.create(tmp_path / "y", (4, 4), **layout, publish="first")
