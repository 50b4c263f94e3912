"""Groups with consolidated metadata in buckets list arrays that were written by a URL of their own."""

from __future__ import annotations

import json
import threading
import warnings

import dask.array as da
import numpy as np
import pytest
import servers
import zarr

import shardwrite

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")
obstore = pytest.importorskip("obstore")
X = np.arange(64, dtype="u4").reshape(8, 8) + 1
GOOD = {"shards": 8, "chunks": 4, "source_id": "x"}
EMPTY = {"kind": "inline", "must_understand": False, "metadata": {}}
GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "consolidated_metadata": EMPTY})


def write(url, values=X, **keywords):
    how = {} if "region" in keywords else GOOD
    return da.from_array(values, chunks=8).to_sharded_zarr(
        url, **{"source_id": "x", **how, **keywords}
    )


@pytest.fixture
def client(moto, url):
    """The bucket below a group that lists its arrays."""
    client = moto.client(servers.below_bucket(url))
    obstore.put(client, "zarr.json", GROUP.encode())
    return client


def listed(client):
    document = json.loads(bytes(obstore.get(client, "zarr.json").bytes()))
    return document["consolidated_metadata"]["metadata"]


@pytest.mark.long
def test_an_array_is_listed_however_it_is_given(client, url):
    write(url, name="by-name")
    write(f"{url}/by-url")
    write(f"{url}/by-url", region="append", source_id="more")
    found = zarr.open_consolidated(zarr.storage.ObjectStore(client), mode="r")
    assert sorted(found.array_keys()) == ["by-name", "by-url"]
    np.testing.assert_array_equal(found["by-url"][...], np.concatenate([X, X]))
    assert shardwrite.verify(url).is_good
    assert not shardwrite.verify(f"{url}/by-url").warnings

    obstore.put(client, "zarr.json", GROUP.encode())
    assert [problem.key for problem in shardwrite.verify(url).problems] == ["by-name", "by-url"]
    write(f"{url}/by-name")  # the same call in another spelling
    assert list(listed(client)) == ["by-name"]


@pytest.mark.long
def test_writers_at_once_are_all_listed(client, url):
    names = ["a", "b", "c", "d"]
    writers = [threading.Thread(target=write, args=(f"{url}/{name}",)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert list(listed(client)) == names


@pytest.mark.long
def test_a_replacement_is_not_listed_while_it_is_written(client, url):
    write(f"{url}/a")

    def look(block):
        assert not listed(client)
        return block

    y = da.from_array(X + 1, chunks=8).map_blocks(look, dtype="u4", meta=np.empty((0, 0), "u4"))
    y.to_sharded_zarr(f"{url}/a", **{**GOOD, "mode": "w", "source_id": "new"})
    assert list(listed(client)) == ["a"]


PLAIN_GROUP = json.dumps({"zarr_format": 3, "node_type": "group"})


@pytest.mark.long
@pytest.mark.parametrize("document", [GROUP, PLAIN_GROUP], ids=["listed", "not listed"])
def test_readers_of_a_group_see_no_run_on_an_array_that_is_there(moto, url, document):
    """The state of the run lies inside of the array, where zarr-python looks for no nodes."""
    client, looks = moto.client(servers.below_bucket(url)), []
    obstore.put(client, "zarr.json", document.encode())
    write(url, name="a")

    def look(_):
        store = zarr.storage.ObjectStore(client)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            names = {name for name, _ in zarr.open_group(store, mode="r").members()}
        looks.append((names, [each for each in told if "not recognized" in str(each.message)]))

    write(url, name="a", region="append", source_id="more", progress=look)
    write(url, name="b", publish="first", progress=look)
    assert [names for names, _ in looks] == [{"a"}, {"a", "b"}]
    assert not [told for _, told in looks if told]
