"""The record of a run: what is in ``plan.json``, and what a reader makes of it."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
from helpers import all_in

import shardwrite
from shardwrite import AppendOnly, JournalError, ShardWriter
from shardwrite.journal.plan_record import EarlierVersionError, RunRecord
from shardwrite.journal.process import Process
from shardwrite.journal.receipt import Receipt, UpdateEntry
from shardwrite.place.base import RECEIPT_NAME
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.records import LaterFormatError, RecordError
from shardwrite.runs.job import intent_of

KEYWORDS = {"shards": 16, "chunks": 8}
UPGRADE = Path(__file__).parent.parent / "upgrade"
STATES = UPGRADE / "states.tar.xz"


@pytest.fixture
def x():
    return da.arange(64, chunks=8)


@pytest.fixture
def begun(tmp_path, x):
    """An array whose run has begun, and the path of its plan."""
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **KEYWORDS))
    return tmp_path / "x", seams.plan_file(tmp_path / "x")


def test_the_file_on_disk_is_what_the_record_gives(begun):
    path, plan = begun
    record = seams.record_of(path)
    assert record.to_json() == plan.read_bytes()
    assert RunRecord.from_json(plan.read_bytes(), is_update=False) == record


def test_the_names_in_the_file_are_those_of_older_versions(begun, x):
    _, plan = begun
    made = shardwrite.plan(x, **KEYWORDS)
    found = json.loads(plan.read_bytes())
    assert list(found)[:2] == ["format", "identity"]
    *others, crc = list(found)
    assert crc == "crc32c"
    assert others == [
        *made.to_dict(),
        "strategy",  # older versions have its label only, in the identity
        "shard_format",  # and none of this, nor a `source`
        "partition",
        "digest",
        "mode",
        "run",
        "replaces",
        "durability",
        "begun_by",
        "document_crc32c",
        "array",
    ]
    assert list(found["identity"]) == [
        "metadata",
        "strategy",
        "units",
        "write_empty_chunks",
        "source",
    ]
    assert list(found["begun_by"]) == [
        "host",
        "pid",
        "boot",
        "machine",
        "pids",
        "started",
        "ttl",
        "job",
        "user",
    ]


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.long)])
def test_receipts_of_the_first_version_are_kept_but_for_the_breaks_of_lines(every):
    """Its plans have no checksums, and are left to it."""
    n_plans = n_receipts = 0
    for name, data in files_of(STATES, every):
        if name.endswith(RECEIPT_NAME):
            assert_receipt_kept(data)
            n_receipts += 1
        else:
            with pytest.raises(EarlierVersionError):
                RunRecord.from_json(data, is_update="/updates/" in name)
            n_plans += 1
    assert min(n_plans, n_receipts) > 10


def test_records_and_receipts_of_the_tree_before_the_rebuild_are_kept_to_the_byte():
    n_plans = n_receipts = 0
    kinds = set()
    for name, data in files_of(UPGRADE / "states-3e6cb07.tar.xz", 5):
        if name.endswith(RECEIPT_NAME):
            assert_receipt_kept(data)
            n_receipts += 1
        else:
            record = RunRecord.from_json(data, is_update="/updates/" in name)
            assert json.dumps(json.loads(record.to_json()), indent=2).encode() == data
            kinds.add((record.mode, record.identity.stream, record.identity.append_axis))
            n_plans += 1
    assert min(n_plans, n_receipts) > 10
    assert len(kinds) > 2, kinds


def assert_receipt_kept(data: bytes) -> None:
    written = json.loads(Receipt.decode(data).encode())
    del written["crc32c"]  # which those trees did not write
    assert json.dumps(written, indent=1).encode() == data


def files_of(states: Path, every: int) -> Iterator[tuple[str, bytes]]:
    """Each plan and receipt of an archive whose number is divisible by `every`."""
    with tarfile.open(fileobj=io.BytesIO(states.read_bytes()), mode="r:xz") as archive:
        for number, member in enumerate(archive):
            if not number % every and member.name.endswith(("/plan.json", f"/{RECEIPT_NAME}")):
                yield member.name, archive.extractfile(member).read()


def test_the_digest_covers_the_identity_that_a_plan_shows(tmp_path, x):
    x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    made = shardwrite.plan_region(x[:9], tmp_path / "x", slice(3, 12), strategy="append-only")
    assert made.to_dict()["identity"] == made.identity.to_dict()
    assert made.identity.region == ((3, 12),)
    assert made.identity.window == ((0,), (16,))
    assert "shape" not in made.identity.metadata
    assert made.identity.to_dict()["metadata"]["window"] == [[0], [16]]
    parsed = Identity.from_dict(json.loads(json.dumps(made.identity.to_dict())))
    assert parsed == made.identity


def test_an_intent_of_an_update_says_that_it_is_one(tmp_path, x):
    x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    made = shardwrite.plan_region(x[:9], tmp_path / "x", slice(20, 29))
    intent = intent_of(made, "r+")
    assert intent.digest == made.digest + "+"
    assert intent.shards_from == ShardWindow((1,), (1,))
    assert intent.identity == replace(made.identity, mode="r+")
    assert not intent.makes_array
    assert intent.layout == made.layout


def test_a_stream_names_neither_source_nor_metadata(tmp_path):
    shardwrite.create(tmp_path / "x", (64,), "u4", **KEYWORDS)
    with ShardWriter(tmp_path / "x", strategy=AppendOnly()) as writer:
        writer[0:8] = np.ones(8, dtype="u4")
        writer.flush()
        plan = seams.plan_file(tmp_path / "x")
        assert list(json.loads(plan.read_bytes())["identity"]) == [
            "mode",
            "stream",
            "region",
            "strategy",
        ]
        record = RunRecord.from_json(plan.read_bytes(), is_update=True)
        assert record.to_json() == plan.read_bytes()
        assert record.identity.stream
        assert record.shards_from == ShardWindow((0,), (4096,))
        assert record.identity.region == ((0, 4096 * 16),)


def test_fields_that_this_version_does_not_know_are_kept(begun):
    path, plan = begun
    identity = json.loads(plan.read_bytes())["identity"]
    seams.change_plan(plan, later={"a": [1]}, identity={**identity, "more": "b"})
    record = seams.record_of(path)
    assert record.figures["later"] == {"a": [1]}
    assert record.identity.others == {"more": "b"}
    assert json.loads(record.to_json()) == json.loads(plan.read_bytes())


def test_a_run_that_copies_encoded_chunks_says_so(tmp_path, begun, x):
    """A run that does not says nothing, as in older versions."""
    path, plan = begun
    assert not seams.record_of(path).copies
    assert "copies" not in json.loads(plan.read_bytes())
    x.to_sharded_zarr(tmp_path / "a", **KEYWORDS)
    shardwrite.prepare_conversion(tmp_path / "a", tmp_path / "b", 4)
    copying = seams.record_of(tmp_path / "b")
    assert copying.copies
    data = seams.plan_file(tmp_path / "b").read_bytes()
    assert json.loads(data)["copies"] is True
    assert copying.to_json() == data
    seams.change_plan(plan, copies="some")
    with pytest.raises(JournalError, match="'copies' must be true or false"):
        shardwrite.write_part(x, path, 0, 1)


def test_a_run_of_a_later_format_is_refused_and_nothing_is_changed(begun, x):
    path, plan = begun
    seams.change_plan(plan, format=2, mode="a mode of later")
    (seams.state_beside(path) / "draft-left").mkdir()
    before = all_in(path.parent)
    for call in (
        lambda: x.to_sharded_zarr(path, **KEYWORDS),
        lambda: x.to_sharded_zarr(path, mode="w", restart=True, **KEYWORDS),
        lambda: shardwrite.write_part(x, path, 0, 1),
        lambda: shardwrite.finalize(path),
        lambda: shardwrite.verify(path),
    ):
        with pytest.raises(JournalError, match=r"later version of shardwrite .*Install that") as e:
            call()
        assert str(plan) in str(e.value)
        assert all_in(path.parent) == before


def test_an_update_of_a_later_format_is_in_the_way_and_stays(tmp_path, x):
    path = tmp_path / "x"
    x.to_sharded_zarr(path, **KEYWORDS)
    plan = seams.state_beside(path) / "updates" / "abc" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(json.dumps({"format": 7, "run": "abc"}))
    (plan.parent / "run-abc").mkdir()
    before = all_in(tmp_path)
    for call in (
        lambda: x[:8].to_sharded_zarr(path, region=slice(0, 8)),
        lambda: x[:8].to_sharded_zarr(path, region="append"),
        lambda: shardwrite.abandon(path),
        lambda: x.to_sharded_zarr(path, mode="w", restart=True, **KEYWORDS),
    ):
        with pytest.raises(JournalError, match="later version"):
            call()
        assert all_in(tmp_path) == before


@pytest.mark.parametrize("name", ["plan.json", "plan-moved.json"])
def test_what_an_ended_run_of_a_later_format_has_left_stays(tmp_path, x, name):
    left = seams.state_beside(tmp_path / "x") / "ended-abc"
    left.mkdir(parents=True)
    (left / name).write_text(json.dumps({"format": 2, "run": "abc"}))
    with pytest.raises(JournalError, match="later version"):
        x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    assert (left / name).exists()
    shutil.rmtree(left.parent)
    x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)


def test_a_receipt_of_a_later_format_is_refused_and_nothing_is_changed(tmp_path, x):
    path = tmp_path / "x"
    x.to_sharded_zarr(path, source_id="x", **KEYWORDS)
    receipt = seams.receipt_of(path)
    receipt.write_text(json.dumps({**json.loads(receipt.read_text()), "format": 2}))
    before = all_in(tmp_path)
    for call in (
        lambda: x.to_sharded_zarr(path, source_id="x", **KEYWORDS),
        lambda: x.to_sharded_zarr(path, mode="w", source_id="x", **KEYWORDS),
        lambda: x[:8].to_sharded_zarr(path, region=slice(0, 8)),
        lambda: x[:8].to_sharded_zarr(path, region=slice(0, 8), source_id="more"),
        lambda: x[:8].to_sharded_zarr(path, region="append", source_id="more"),
        lambda: shardwrite.erase(path, slice(0, 8)),
        lambda: shardwrite.finalize(path),
        lambda: shardwrite.repair(path, x),
        lambda: shardwrite.verify(path),
    ):
        with pytest.raises(JournalError, match=r"later version of shardwrite .*Install that") as e:
            call()
        assert str(receipt) in str(e.value)
        assert "remove" not in str(e.value)
        assert all_in(tmp_path) == before


def test_a_run_of_an_earlier_version_is_left_to_it(tmp_path, begun, x):
    """Its record has no checksum. Nothing is changed, by whatever call."""
    path, plan = begun
    found = json.loads(plan.read_bytes())
    del found["crc32c"]
    plan.write_text(json.dumps(found))
    before = all_in(tmp_path)
    for call in (
        lambda: x.to_sharded_zarr(path, **KEYWORDS),
        lambda: x.to_sharded_zarr(path, mode="w", restart=True, **KEYWORDS),
        lambda: shardwrite.abandon(path),
        lambda: shardwrite.finalize(path),
        lambda: shardwrite.repair(path, x),
    ):
        with pytest.raises(JournalError, match=r"an earlier version of shardwrite .*Install that"):
            call()
        assert all_in(tmp_path) == before


def test_a_record_of_a_later_format_is_told():
    with pytest.raises(LaterFormatError, match="format 2"):
        RunRecord.from_json(json.dumps({"format": 2}).encode(), is_update=False)


@pytest.mark.parametrize(
    ("harm", "match"),
    [
        ({"format": "1"}, "'format' must be a number from 1 on"),
        ({"format": True}, "'format' must be a number"),
        ({"format": 0}, "'format' must be a number"),
        ({"run": "../x"}, "'run' must be a name of letters and digits"),
        ({"digest": 3}, "'digest' must be a text"),
        ({"identity": []}, "'identity' must be an object"),
        ({"mode": "a"}, "'mode' must be one of 'w-', 'w', 'r\\+'"),
        ({"durability": "some"}, "'durability' must be one of 'full', 'batch', 'none'"),
        ({"replaces": None}, "'replaces' must be true or false"),
        ({"mode": "r+"}, "in two ways"),
        ({"identity": {"mode": "r+"}}, "in two ways"),
        ({"shards_from": [[0]]}, "'shards_from' must be a list of 2"),
        ({"shards_from": [[0], [-1]]}, r"'shards_from\[1\]\[0\]' must be a whole number from 0 on"),
        ({"shards_from": [[0], [1, 1]]}, "'shards_from' must be shards with a place"),
        ({"identity": {"region": [[3, 2]]}}, "'identity.region' must be a region"),
        ({"identity": {"region": [[0, 2**63]]}}, r"'identity.region\[0\]\[1\]' must be a whole"),
        ({"identity": {"metadata": []}}, "'identity.metadata' must be an object"),
        (
            {"identity": {"metadata": {"window": 1}, "region": [[0, 1]]}},
            "'identity.window' must be",
        ),
        ({"identity": {"units": [1]}}, r"'identity.units\[0\]' must be a list"),
        ({"identity": {"source": 5}}, "'identity.source' must be a text"),
        ({"identity": {"append_axis": True}}, "'identity.append_axis' must be a whole number"),
        ({"identity": {"stream": 1}}, "'identity.stream' must be true or false"),
        ({"document_crc32c": "x"}, "'document_crc32c' must be a whole number"),
        ({"array": 1}, "'array' must be a text"),
        ({"strategy": "fixed-order"}, "'strategy' must be an object"),
        (
            {"strategy": {"name": "a", "configuration": {}, "more": 1}},
            "'strategy.more' must be absent",
        ),
        ({"strategy": {"name": "a"}}, "'strategy.configuration' must be there"),
    ],
    ids=str,
)
def test_facts_that_no_run_has(begun, harm, match):
    _, plan = begun
    seams.change_plan(plan, **harm)
    with pytest.raises(ValueError, match=match):
        RunRecord.from_json(plan.read_bytes(), is_update=False)


@pytest.mark.parametrize(
    ("missing", "match"),
    [("shards_from", "which shards"), ("region", "which region"), ("its region", "which region")],
)
def test_an_update_says_what_it_writes(tmp_path, x, missing, match):
    x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    made = shardwrite.plan_region(x[:9], tmp_path / "x", slice(20, 29))
    intent = intent_of(made, "r+")
    record = RunRecord(
        **{each.name: getattr(intent, each.name) for each in fields(intent)},
        run="one",
        replaces=False,
        durability="full",
        begun_by=Process(host="there"),
        document_crc32c=1,
        array="x",
    )
    found = record.to_dict()
    assert RunRecord.from_json(json.dumps(found).encode(), is_update=True) == record
    if missing == "its region":
        found["identity"] = {**found["identity"], "region": None}
    elif missing == "region":
        found["identity"] = {k: v for k, v in found["identity"].items() if k != "region"}
    else:
        del found["shards_from"]
    with pytest.raises(ValueError, match=match):
        RunRecord.from_json(json.dumps(seams.seal(found)).encode(), is_update=True)


def test_an_error_tells_the_record_and_what_was_expected(begun):
    _, plan = begun
    seams.change_plan(plan, identity={"units": [[0, -1]]})
    with pytest.raises(RecordError) as error:
        RunRecord.from_json(plan.read_bytes(), is_update=False)
    told = error.value
    assert (told.record, told.field) == ("RunRecord", "identity.units[0][1]")
    assert told.expected == "a whole number from 0 on"


def test_an_update_in_a_receipt_keeps_what_a_later_version_adds():
    entry = {
        "digest": "a",
        "run": "b",
        "identity": {"strategy": "s", "region": [[0, 1]], "mode": "r+"},
        "finished": "now",
        "result": {"n_shards": 1},
        "later": [1],
    }
    assert UpdateEntry.from_dict(entry).to_dict() == entry
    short = {"digest": "a", "identity": {"region": []}}
    assert UpdateEntry.from_dict(short).to_dict() == short


@pytest.mark.parametrize(
    "harm",
    [{"digest": 1}, {"identity": {}}, {"run": 3}, {"finished": []}, {"result": "r"}],
    ids=str,
)
def test_an_update_in_a_receipt_that_is_none(harm):
    with pytest.raises(ValueError, match="must be"):
        UpdateEntry.from_dict({"digest": "a", "identity": {"region": []}, **harm})


def test_a_process_is_what_can_be_read_of_it():
    whole = {"host": "a", "pid": 3, "boot": "", "ttl": 1.5, "token": "t"}
    assert Process.from_dict(whole).to_dict() == whole
    torn = {"host": 3, "pid": True, "boot": None, "ttl": -1, "started": 5, "else": 1}
    assert Process.from_dict(torn) == Process()
    assert Process.from_dict({"ttl": 10**400}).ttl is None
    assert Process().name == "host unknown, pid unknown"
    assert not Process().is_same(Process())
