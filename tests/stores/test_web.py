"""Arrays on web servers: with ranges and versions, without versions, and without either."""

from __future__ import annotations

import http.server
import pickle
import re
import threading
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import zarr
from obstore.store import HTTPStore

import shardwrite
from shardwrite import CorruptShardError, SpecError, StoreError

VALUES = np.random.default_rng(0).integers(0, 2**32, (256, 256), dtype="u4")
SIZES = {"shards": 256, "chunks": 16, "compressors": None}  # a shard has 256 chunks of 1024 bytes
SMALL = {"shardwrite.read.gap": 1, "shardwrite.read.request-size": "4 KiB"}


class Serving(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a directory, and notes what it was asked for."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str]]
    has_ranges, has_tags, missing, has_suffixes, head = True, True, 404, None, 200
    is_weak = is_whole_where_short = is_cut = is_retagged = False
    page, encoding, shift = b"", "", 0
    meeting: threading.Barrier | None = None

    def do_HEAD(self):
        self.answer(is_head=True)

    def do_GET(self):
        self.answer(is_head=False)

    def answer(self, *, is_head):
        path, wanted = self.translate_path(self.path), self.headers.get("Range")
        self.asked.append((self.path, wanted or self.command))
        if is_head and self.head != 200:
            self.send_response(self.head)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.meeting is not None and "/c/" in self.path:
            self.meeting.wait()
        try:
            data = Path(path).read_bytes()
        except OSError:
            if not (data := self.page):
                self.send_response(self.missing)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        tag = f'{"W/" * self.is_weak}"{hash(data)}"'
        is_met = self.headers.get("If-Match") == tag and not self.is_retagged
        is_other = self.is_weak or not is_met  # weak tags never match
        if self.has_tags and "If-Match" in self.headers and is_other:
            self.send_response(412)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin, end, status = 0, len(data), 200
        is_suffix = bool(wanted) and wanted.startswith("bytes=-")
        if is_suffix and self.has_suffixes is False:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if is_suffix and self.is_whole_where_short and int(wanted[7:]) >= len(data):
            wanted = None
        if wanted and (self.has_suffixes if is_suffix and self.has_suffixes else self.has_ranges):
            first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted).groups()
            begin = int(first) if first else max(0, len(data) - int(last))
            end, status = min(int(last) + 1, len(data)) if first else len(data), 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin - self.shift}-{end - 1}/{len(data)}")
        if self.has_tags:
            self.send_header("ETag", tag)
        end -= 3 * self.is_cut
        if self.encoding:
            self.send_header("Content-Encoding", self.encoding)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Last-Modified", "Sun, 29 Nov 2026 12:00:00 GMT")
        self.end_headers()
        if not is_head:
            self.wfile.write(data[begin:end])

    def log_message(self, *_):
        pass


class Server:
    """A running server: its URL, its directory, and its handler."""

    def __init__(self, directory, **facts):
        self.directory, self.asked = directory, []
        self.handler = type("Handler", (Serving,), {"asked": self.asked, **facts})
        answer = partial(self.handler, directory=str(directory))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), answer)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def requests(self, name=""):
        """What the server was asked for since the last call, of one file or of all."""
        asked = [wanted for path, wanted in self.asked if path.endswith(name)]
        self.asked.clear()
        return asked

    def close(self):
        self._server.shutdown()
        self._server.server_close()


KINDS = {
    "full": {},
    "no versions": {"has_tags": False},
    "weak versions": {"is_weak": True},
    "versions that nothing meets": {"is_retagged": True},
    "no last bytes": {"has_suffixes": False},
    "whole where short": {"is_whole_where_short": True},
    "only last bytes": {"has_ranges": False, "has_suffixes": True},
    "nothing": {"has_tags": False, "has_ranges": False},
}


@pytest.fixture(params=KINDS)
def server(tmp_path, request):
    served = Server(tmp_path, **KINDS[request.param])
    yield served
    served.close()


@pytest.fixture
def full(tmp_path):
    served = Server(tmp_path)
    yield served
    served.close()


def write(path, values=VALUES, **more):
    da.from_array(values, chunks=128).to_sharded_zarr(path, **SIZES | more)


def tree(root):
    zarr.create_group(root, attributes={"is": "a tree"}).create_group("a")
    write(root / "a" / "x")
    write(root / "y", VALUES[:100, :100], shards=64)
    zarr.consolidate_metadata(root)


def test_an_array_is_read_as_in_a_directory(server, tmp_path):
    write(tmp_path / "x", shards=64)
    (tmp_path / "x" / "c" / "1" / "1").unlink()  # which is then the fill value
    expected = zarr.open_array(tmp_path / "x")[...]
    x = shardwrite.open_sharded(f"{server.url}/x")
    keys = [np.s_[3:5, 60:70], np.s_[17, ::-3], np.s_[70:100, 64:128], np.s_[9:9], np.s_[...]]
    for key in keys:
        np.testing.assert_array_equal(x[key], expected[key])
    again = pickle.loads(pickle.dumps(x))
    np.testing.assert_array_equal(again[:70, :70], expected[:70, :70])
    lazy = shardwrite.from_sharded_zarr(server.url, "x")
    assert lazy.chunksize == (64, 64)
    np.testing.assert_array_equal(lazy.compute(), expected)


def test_an_array_without_an_answer_for_missing_shards(tmp_path):
    """Servers that may not say what is missing forbid it, and that is no missing shard."""
    served = Server(tmp_path, missing=403)
    write(tmp_path / "x", shards=64)
    (tmp_path / "x" / "c" / "1" / "1").unlink()
    x = shardwrite.open_sharded(f"{served.url}/x")
    np.testing.assert_array_equal(x[:64, :64], VALUES[:64, :64])
    with pytest.raises(
        StoreError, match=r"'c/1/1'.* forbids it\. Some do so where a file is missing.*403"
    ):
        x[64:70, 64:70]
    served.close()


def test_a_tree_is_converted_and_verified(server, tmp_path):
    tree(tmp_path / "tree")
    made = shardwrite.shard(f"{server.url}/tree", tmp_path / "made", shards=128)
    assert made.n_chunks_encoded == 0
    group = zarr.open_group(tmp_path / "made")
    assert dict(group.attrs) == {"is": "a tree"}
    np.testing.assert_array_equal(group["a/x"][...], VALUES)
    np.testing.assert_array_equal(group["y"][...], VALUES[:100, :100])
    assert shardwrite.verify(f"{server.url}/tree/a/x", deep=True)
    assert shardwrite.verify(tmp_path / "made" / "y", against=f"{server.url}/tree/y")


@pytest.mark.long
def test_arrays_of_zarr_v2_and_files(full, tmp_path):
    old = zarr.create_array(
        tmp_path / "old", shape=(64, 64), chunks=(16, 16), dtype="u4", zarr_format=2
    )
    old[...] = VALUES[:64, :64]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("d", data=VALUES, chunks=(64, 64))
    shardwrite.shard(f"{full.url}/old", tmp_path / "a", shards=32)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], VALUES[:64, :64])
    shardwrite.shard(f"{full.url}/x.h5::d", tmp_path / "b", shards=128)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)


def test_requests(full, tmp_path):
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{full.url}/x")
    full.requests()
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    assert full.requests() == ["bytes=-65536", "bytes=0-1023"]
    x[16:32, :16]
    assert full.requests() == ["bytes=16384-17407"], "the index is kept"
    np.testing.assert_array_equal(x[:16, 32:128], VALUES[:16, 32:128])
    assert full.requests() == ["bytes=2048-8191"], "neighbours are one request"
    with dask.config.set(SMALL):
        x = shardwrite.open_sharded(f"{full.url}/x")
        full.requests()
        np.testing.assert_array_equal(x[:32, :80], VALUES[:32, :80])
    ranges = full.requests()
    rows = ["bytes=0-4095", "bytes=4096-5119", "bytes=16384-20479", "bytes=20480-21503"]
    assert sorted(ranges) == sorted(rows), "no farther apart, and no larger than the settings say"


def test_zarr_reads_by_a_store_that_keeps_indexes(server, tmp_path):
    write(tmp_path / "x", compressors="zstd")
    x = zarr.open_array(shardwrite.CachedStore(f"{server.url}/x"), mode="r")
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    np.testing.assert_array_equal(x[16:32, :32], VALUES[16:32, :32])
    np.testing.assert_array_equal(x[:], VALUES)
    others = VALUES // 3
    write(tmp_path / "x", others, compressors="zstd", mode="w")
    np.testing.assert_array_equal(x[:16, 16:32], others[:16, 16:32])


def test_a_store_that_keeps_indexes_and_a_server_that_gives_weak_versions_later(full, tmp_path):
    values = VALUES.copy()
    values[:16, :16] = 0
    write(tmp_path / "x", values)
    x = zarr.open_array(shardwrite.CachedStore(f"{full.url}/x"), mode="r")
    np.testing.assert_array_equal(x[16:32, :16], values[16:32, :16])
    full.handler.is_weak = True
    for _ in range(2):
        np.testing.assert_array_equal(x[16:32, :16], values[16:32, :16])


def test_requests_of_a_store_that_keeps_indexes(full, tmp_path):
    write(tmp_path / "x")
    x = zarr.open_array(shardwrite.CachedStore(f"{full.url}/x"), mode="r")
    full.requests()
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    n_cold, n_warm = len(full.requests()), (x[16:32, :16], len(full.requests()))[1]
    assert (n_cold, n_warm) == (2, 1)


def test_requests_of_a_deep_check(full, tmp_path):
    write(tmp_path / "x", shards=128)
    assert shardwrite.verify(f"{full.url}/x", deep=True)
    assert full.requests("c/0/0") == ["bytes=-65536", "bytes=0-65535"]


def test_nothing_is_kept_where_no_version_tells_of_a_change(tmp_path):
    served = Server(tmp_path, **KINDS["no versions"])
    write(tmp_path / "x", compressors="zstd")
    x = shardwrite.open_sharded(f"{served.url}/x")
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    others = VALUES // 3
    write(tmp_path / "x", others, compressors="zstd", mode="w")
    np.testing.assert_array_equal(x[:16, :16], others[:16, :16])
    served.close()


def test_no_index_of_ids_is_kept_where_no_version_tells_of_a_change(tmp_path):
    served = Server(tmp_path, **KINDS["no versions"])
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity"}
    sharding |= {"preshift_bits": 0, "minishard_bits": 0, "shard_bits": 0}
    sharding |= {"minishard_index_encoding": "raw", "data_encoding": "raw"}
    written, read = (
        shardwrite.UInt64Shards(x, sharding) for x in (tmp_path / "x", f"{served.url}/x")
    )
    for values in ({1: b"aaaa", 2: b"bb"}, {1: b"xx", 2: b"yyyy"}):
        written.write(values, existing="replace")
        assert read.read([1, 2]) == values
    served.close()


def test_a_shard_that_is_replaced_is_read_anew(full, tmp_path):
    write(tmp_path / "x", compressors="zstd")
    x = shardwrite.open_sharded(f"{full.url}/x")
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    others = VALUES // 3
    write(tmp_path / "x", others, compressors="zstd", mode="w")
    full.requests()
    np.testing.assert_array_equal(x[:16, 16:32], others[:16, 16:32])


def test_a_server_that_does_not_know_the_versions_that_it_names(tmp_path):
    """So it is with a program before it that changes them. A shard that is replaced is noticed."""
    served = Server(tmp_path, is_retagged=True)
    write(tmp_path / "x", compressors="zstd")
    x = shardwrite.open_sharded(f"{served.url}/x")
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    served.requests()
    np.testing.assert_array_equal(x[16:32, :16], VALUES[16:32, :16])
    assert len(served.requests()) == 1, "nothing is asked twice any more"
    others = VALUES // 3
    write(tmp_path / "x", others, compressors="zstd", mode="w")
    np.testing.assert_array_equal(x[:16, 16:32], others[:16, 16:32])
    served.close()


def test_whole_shards_are_one_request_each(full, tmp_path):
    write(tmp_path / "x", shards=64)
    x = shardwrite.open_sharded(f"{full.url}/x")
    full.requests()
    np.testing.assert_array_equal(x[:128], VALUES[:128])
    assert len(full.requests()) == 8
    np.testing.assert_array_equal(x[...], VALUES)
    assert len(full.requests()) == 16, "of which 8 have an index that is kept"


@pytest.mark.parametrize("location", ["start", "end"])
def test_what_comes_with_the_index_of_a_large_shard_is_not_read_again(full, tmp_path, location):
    write(tmp_path / "x", index_location=location)
    with dask.config.set({"shardwrite.read.request-size": "100 KiB"}):
        x = shardwrite.open_sharded(f"{full.url}/x")
        full.requests()
        np.testing.assert_array_equal(x[...], VALUES)
    first, *others = full.requests("c/0/0")
    size = (tmp_path / "x" / "c" / "0" / "0").stat().st_size
    assert first == ("bytes=-102400" if location == "end" else "bytes=0-102399")
    ranges = [tuple(map(int, wanted[6:].split("-"))) for wanted in others]
    assert len(ranges) == 2, "two more requests for the other 160 KiB"
    nbytes = sum(last + 1 - begin for begin, last in ranges)
    assert nbytes <= size - 102400 + 4096, "one chunk twice, and what makes an end 64 KiB"


def test_a_server_without_ranges_is_asked_for_them_once(tmp_path):
    served = Server(tmp_path, **KINDS["nothing"])
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{served.url}/x")
    served.requests()
    for _ in range(2):
        np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    assert served.requests() == ["bytes=-65536", "GET", "GET"]
    served.close()


def test_a_server_without_ranges_gives_a_shard_once_though_its_index_is_kept(tmp_path):
    served = Server(tmp_path, has_ranges=False)
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{served.url}/x")
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    served.requests()
    np.testing.assert_array_equal(x[::64, ::64], VALUES[::64, ::64])
    assert served.requests() == ["GET"]
    served.close()


@pytest.mark.parametrize("status", [403, 405])
def test_a_server_that_answers_no_head(tmp_path, status):
    """Programs that serve files may know GET alone."""
    served = Server(tmp_path, head=status)
    values = VALUES.copy()
    values[:16, :16] = 0
    write(tmp_path / "x", values)
    x = shardwrite.open_sharded(f"{served.url}/x")
    kept = zarr.open_array(shardwrite.CachedStore(f"{served.url}/x"), mode="r")
    for _ in range(2):  # the second time by the kept index, for which the state is asked
        assert (x[:16, :16] == 0).all()
        assert (kept[:16, :16] == 0).all()
    served.requests()
    assert (x[:16, :16] == 0).all()
    assert served.requests() == ["GET"], "HEAD is not tried again"
    zarr.create_array(tmp_path / "y", shape=(32,), chunks=(16,), dtype="u4")[:16] = 1
    y = shardwrite.open_sharded(f"{served.url}/y")
    assert y.present().keys == ["0"]
    served.close()


def test_an_answer_that_knows_no_method_is_not_taken_for_a_missing_shard(full, tmp_path):
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{full.url}/x")
    full.handler.missing = 405
    (tmp_path / "x" / "c" / "0" / "0").unlink()
    with pytest.raises(StoreError, match=r"'c/0/0' in .* 405 Method Not Allowed"):
        x[:16, :16]


@pytest.mark.parametrize("read", [shardwrite.open_sharded, shardwrite.verify])
def test_a_server_that_gives_a_page_for_what_is_missing(tmp_path, read):
    served = Server(tmp_path, page=b"<!doctype html><html>...</html>")
    with pytest.raises(SpecError, match="it is a web page, as some servers give for what is miss"):
        read(f"{served.url}/x")
    write(tmp_path / "x", shards=64)
    (tmp_path / "x" / "c" / "1" / "1").unlink()
    x = shardwrite.open_sharded(f"{served.url}/x")
    np.testing.assert_array_equal(x[:64, :64], VALUES[:64, :64])
    with pytest.raises(CorruptShardError, match="c/1/1"):
        x[64:70, 64:70]
    served.close()


def test_a_server_that_gives_another_range(full, tmp_path):
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{full.url}/x")
    full.handler.shift = 1
    with pytest.raises(StoreError, match=r"'c/0/0' .* gives other bytes than those that it was as"):
        x[:16, :16]


def test_what_is_compressed_by_the_server_is_refused(full, tmp_path):
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{full.url}/x")
    full.handler.encoding = "gzip"
    with pytest.raises(StoreError, match=r"'c/0/0': it is given in another form .*: gzip\)\. Have"):
        x[:16, :16]
    with pytest.raises(StoreError, match=r"'zarr.json': it is given in another form"):
        shardwrite.open_sharded(f"{full.url}/x")


@pytest.mark.parametrize("given", ["url", "store"])
def test_a_web_server_is_not_written(full, tmp_path, given):
    store = f"{full.url}/new"
    if given == "store":
        store = HTTPStore.from_url(store, client_options={"allow_http": True})
    with pytest.raises(SpecError, match=r"on a web server, which is only read; write to a dir"):
        write(store)


def test_repair_of_an_array_on_a_web_server_is_refused_in_the_same_words(full, tmp_path):
    write(tmp_path / "x")
    with pytest.raises(SpecError, match=r"on a web server, which is only read; write to a dir"):
        shardwrite.repair(f"{full.url}/x", VALUES)


def test_what_cannot_be_listed_is_told(full, tmp_path):
    zarr.create_group(tmp_path / "g")
    write(tmp_path / "g" / "x")
    with pytest.raises(SpecError, match="no consolidated metadata; give the path of an array"):
        shardwrite.shard(f"{full.url}/g", tmp_path / "made", shards=64)
    with pytest.raises(SpecError, match="a group, and not an array"):
        shardwrite.open_sharded(f"{full.url}/g")
    with pytest.raises(SpecError, match="no array: there is no zarr"):
        shardwrite.open_sharded(f"{full.url}/nothing")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://me:secret@host/x", "default_headers in client_options"),
        ("https://host/x?signature=secret", r"a signature after \? is not taken"),
        ("https:/host/x", "not the URL of a bucket"),
    ],
)
def test_urls_that_are_refused(url, told):
    with pytest.raises(SpecError, match=told) as caught:
        shardwrite.open_sharded(url)
    assert "secret" not in str(caught.value)


def test_settings_for_buckets_are_not_for_web_servers(full, tmp_path):
    write(tmp_path / "x")
    storage = {"endpoint": "http://127.0.0.1:1", "region": "here", "client_options": {}}
    with dask.config.set({"shardwrite.storage": storage}):
        x = shardwrite.open_sharded(f"{full.url}/x")
        np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
        with pytest.raises(SpecError, match="region is not known to obstore"):
            shardwrite.from_sharded_zarr(full.url, "x", storage_options={"region": "here"})


def test_a_small_file_that_is_given_whole_says_nothing_of_large_ones(tmp_path):
    served = Server(tmp_path, **KINDS["whole where short"])
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{served.url}/x")
    served.requests()
    np.testing.assert_array_equal(x[:16, :16], VALUES[:16, :16])
    assert served.requests() == ["bytes=-65536", "bytes=0-1023"]
    served.close()


def test_an_answer_that_is_cut_short_is_told(full, tmp_path):
    write(tmp_path / "x")
    x = shardwrite.open_sharded(f"{full.url}/x")
    full.handler.is_cut = True
    with pytest.raises(StoreError, match=r"65533 of 65536 bytes of 'c/0/0' were answered"):
        x[:16, :16]


def test_an_update_from_a_web_server(full, tmp_path):
    write(tmp_path / "x", shards=64)
    write(tmp_path / "y", VALUES // 2, shards=64)
    x = shardwrite.from_sharded_zarr(full.url, "x")
    x[:128].to_sharded_zarr(tmp_path / "y", region=np.s_[128:])
    found = zarr.open_array(tmp_path / "y")
    np.testing.assert_array_equal(found[128:], VALUES[:128])
    np.testing.assert_array_equal(found[:128], VALUES[:128] // 2)


def test_shards_are_asked_for_side_by_side(full, tmp_path):
    """Each of eight requests waits for the others."""
    write(tmp_path / "x", shards=64)
    x = shardwrite.open_sharded(f"{full.url}/x")
    full.handler.meeting = threading.Barrier(8, timeout=20)
    np.testing.assert_array_equal(x[:128], VALUES[:128])


@pytest.mark.long
def test_xarray_opens_what_a_web_server_has(full, tmp_path):
    xarray = pytest.importorskip("xarray")
    values = xarray.Dataset({"v": (("y", "x"), VALUES)}, {"x": np.arange(256)})
    for name, consolidated in (("a", True), ("b", False)):
        values.to_zarr(tmp_path / name, consolidated=consolidated, zarr_format=3)
    with xarray.open_dataset(f"{full.url}/a", engine="shardwrite") as found:
        xarray.testing.assert_identical(found.load(), values)
    for name, more in (("b", {}), ("a", {"consolidated": False})):
        field = "consolidated=False" if more else "filename_or_obj="
        with pytest.raises(SpecError, match=rf"^{field}.*consolidated metadata"):
            xarray.open_dataset(f"{full.url}/{name}", engine="shardwrite", **more)
