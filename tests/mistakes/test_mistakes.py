"""Mistakes as users make them: a row each, with the error, what it says, and what it tells to do.

All that holds for every mistake is checked in one place: one error is told, nothing is computed,
and nothing is written. Every value of every keyword is in `test_bad_input.py`, and
`test_remedies.py` carries remedies out.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import IncompleteError, PlanError, ShardWriter, SpecError, StoreError
from shardwrite.cli import main
from shardwrite.sources import open_source
from shardwrite.stores.posix import PosixStore

sys.path.insert(0, str(Path(__file__).parent))
from workplace import LAYOUT, Workplace, as_nobody, told

WHOLE = (slice(None), slice(None))
# Older versions of click suggest options, and no commands.
SUGGESTS = tuple(map(int, version("click").split(".")[:2])) >= (8, 4)
NO_OPTION = "No such option '--overwite'" if SUGGESTS else "No such option: --overwite"

# ---- in Python: what is called, the error, what it says, what it tells to do

IN_PYTHON = {
    # the source
    "the path of a file for the array": (
        lambda w: shardwrite.to_sharded_zarr("x.npy", "out", **LAYOUT),
        SpecError, "x='str': not an array", "open_source(path)",
    ),
    "array and store in the wrong order": (
        lambda w: shardwrite.to_sharded_zarr("out", w.x, **LAYOUT),
        SpecError, "not an array", "give the array first, and the path of the store second",
    ),
    "a list": (
        lambda w: shardwrite.to_sharded_zarr([1, 2], "out", **LAYOUT),
        SpecError, "x='list': not an array", "give a dask or numpy array",
    ),
    "a dataset of xarray": (
        lambda w: shardwrite.to_sharded_zarr(xr.Dataset({"t": w.y}), "out", **LAYOUT),
        SpecError, "x='Dataset': not an array", "give one of its variables, such as x['t']",
    ),
    "a group of zarr": (
        lambda w: shardwrite.to_sharded_zarr(zarr.open_group("group.zarr"), "out", **LAYOUT),
        SpecError, "x='Group': not an array", "give one of its arrays",
    ),
    "an array that dask does not know the size of": (
        lambda w: w.x[w.x > 0].to_sharded_zarr("out"),
        SpecError, "unknown chunk sizes", "compute_chunk_sizes()",
    ),
    "objects": (
        lambda w: w.source((4,), object).to_sharded_zarr("out", **LAYOUT),
        SpecError, "dtype='object': objects have no stored form", "vlen-utf8",
    ),
    "a file that is not there": (
        lambda w: open_source("nowhere.npy"), StoreError, "no such file or directory", "nowhere.npy",
    ),
    "an array that is not in the file": (
        lambda w: open_source("two.h5::three"), SpecError, "no such array", "choose one of: one, two",
    ),
    # keywords
    "compressor": (
        lambda w: w.x.to_sharded_zarr("out", compressor="zstd", **LAYOUT),
        TypeError, "unexpected keyword argument 'compressor'", "give compressors",
    ),
    "shard": (
        lambda w: w.x.to_sharded_zarr("out", shard=8, chunks=4),
        TypeError, "unexpected keyword argument 'shard'", "give shards",
    ),
    "chunk, in a plan": (
        lambda w: shardwrite.plan(w.x, shards=8, chunk=4),
        TypeError, "plan() got an unexpected keyword argument 'chunk'", "give chunks",
    ),
    "a keyword with a slip": (
        lambda w: w.x.to_sharded_zarr("out", memorylimit="1GB", **LAYOUT),
        TypeError, "'memorylimit'", "give memory_limit",
    ),
    "path": (
        lambda w: shardwrite.to_sharded_zarr(w.x, path="out", **LAYOUT),
        TypeError, "'path'", "give store",
    ),
    "a dry run": (
        lambda w: w.x.to_sharded_zarr("out", dry_run=True, **LAYOUT),
        TypeError, "'dry_run'", "such as shardwrite.plan",
    ),
    "a client": (
        lambda w: w.x.to_sharded_zarr("out", client=None, **LAYOUT),
        TypeError, "'client'", "leave it out: the client that dask uses",
    ),
    "a lock": (
        lambda w: w.x.to_sharded_zarr("out", lock=True, **LAYOUT),
        TypeError, "'lock'", "leave it out: no two tasks write the same shard",
    ),
    "delayed": (
        lambda w: w.x.to_sharded_zarr("out", delayed=True, **LAYOUT),
        TypeError, "'delayed'", "give compute=False",
    ),
    "retries": (
        lambda w: w.x.to_sharded_zarr("out", retries=2, **LAYOUT),
        TypeError, "'retries'", "make the source with dask.annotate(retries=...)",
    ),
    "overwrite, for a new array": (
        lambda w: shardwrite.create("out", (4,), "f4", overwrite=True, **LAYOUT),
        TypeError, "'overwrite'", 'give mode="w"',
    ),
    "overwrite, for a region": (
        lambda w: shardwrite.write_region(w.x, "array.zarr", WHOLE, overwrite=True),
        TypeError, "'overwrite'", "leave it out",
    ),
    "dtype": (
        lambda w: w.x.to_sharded_zarr("out", dtype="f8", **LAYOUT),
        TypeError, "'dtype'", "convert the source with astype",
    ),
    "threads": (
        lambda w: w.x.to_sharded_zarr("out", num_workers=4, **LAYOUT),
        TypeError, "'num_workers'", "dask.config.set(num_workers=...)",
    ),
    "compressor, for several arrays": (
        lambda w: shardwrite.store([w.x], ["out"], compressor="zstd", **LAYOUT),
        TypeError, "store() got an unexpected keyword argument 'compressor'", "give compressors",
    ),
    "dst, for the store": (
        lambda w: ShardWriter(path="array.zarr"),
        TypeError, "ShardWriter() got an unexpected keyword argument 'path'", "give store",
    ),
    "overwrite and another mode": (
        lambda w: w.x.to_sharded_zarr("out", mode="w-", overwrite=True, **LAYOUT),
        SpecError, "says something else than mode='w-'", "give one of the two",
    ),
    # sizes
    "512x512": (
        lambda w: w.x.to_sharded_zarr("out", shards="512x512", chunks=4),
        SpecError, "shards='512x512': not a positive number of bytes", "(512, 512)",
    ),
    "256 MBB": (
        lambda w: w.x.to_sharded_zarr("out", shards="256 MBB"),
        SpecError, "shards='256 MBB'", 'give for instance "256MB"',
    ),
    "shards that are no multiple of chunks": (
        lambda w: w.x.to_sharded_zarr("out", shards=10, chunks=4),
        SpecError, "not a multiple of the inner chunk", "give 12 instead of 10",
    ),
    "three sizes for two axes": (
        lambda w: w.x.to_sharded_zarr("out", shards=(8, 8, 8), chunks=4),
        SpecError, "shards=(8, 8, 8): has 3 entries for 2 axes", "give 2 sizes",
    ),
    "too little memory for a chunk": (
        lambda w: w.x.to_sharded_zarr("out", memory_limit=10, **LAYOUT),
        PlanError, "an inner chunk takes 64 bytes", "raise memory_limit",
    ),
    "too little memory for the source": (
        lambda w: w.source((2048, 2048), chunks=2048).to_sharded_zarr(
            "out", shards=512, chunks=64, memory_limit="4MB"
        ),
        PlanError, "may use 4,000,000", "raise memory_limit",
    ),
    # names
    "a strategy": (
        lambda w: w.x.to_sharded_zarr("out", strategy="fixed", **LAYOUT),
        SpecError, "strategy='fixed': no such write strategy", "'fixed-order'",
    ),
    "an order": (
        lambda w: shardwrite.FixedOrder("hilbert"),
        SpecError, "order='hilbert': no such order", "'morton'",
    ),
    "a durability": (
        lambda w: w.x.to_sharded_zarr("out", durability="fsync", **LAYOUT),
        SpecError, "durability='fsync'", "use one of ['full', 'batch', 'none']",
    ),
    "a dtype": (
        lambda w: shardwrite.create("out", (4, 4), "flot32", **LAYOUT),
        SpecError, "dtype='flot32': no data type", 'give for instance "float32"',
    ),
    "Zarr v2": (
        lambda w: w.x.to_sharded_zarr("out", zarr_format=2, **LAYOUT),
        SpecError, "only arrays of Zarr v3 have shards", "leave it out",
    ),
    # codecs and metadata
    "a codec of numcodecs": (
        lambda w: w.x.to_sharded_zarr("out", compressors=numcodecs.Zstd(), **LAYOUT),
        SpecError, "a codec of numcodecs, which is for Zarr v2", 'give the one of Zarr v3: "zstd"',
    ),
    "a filter of numcodecs": (
        lambda w: w.x.to_sharded_zarr("out", filters=[numcodecs.Delta("f4")], **LAYOUT),
        SpecError, "which is for Zarr v2",
        '{"name": "numcodecs.delta", "configuration": {"dtype": "<f4", "astype": "<f4"}}',
    ),
    "a codec that nobody has": (
        lambda w: w.x.to_sharded_zarr("out", compressors="zsdt", **LAYOUT),
        SpecError, "nothing is known by the name 'zsdt'", '"zstd"',
    ),
    "a level that zstd does not have": (
        lambda w: w.x.to_sharded_zarr(
            "out", compressors={"name": "zstd", "configuration": {"level": 99}}, **LAYOUT
        ),
        SpecError, "less than or equal to 22", "correct its configuration",
    ),
    "a codec whose library is missing": (
        lambda w: w.x.to_sharded_zarr(
            "out", serializer={"name": "numcodecs.zfpy", "configuration": {}}, compressors=None, **LAYOUT
        ),
        SpecError, "codecs='numcodecs.zfpy'", "install its library",
    ),
    "a fill value": (
        lambda w: w.source(dtype="u1").to_sharded_zarr("out", fill_value=-1, **LAYOUT),
        SpecError, "fill_value=-1", "give a scalar of the array's dtype",
    ),
    "names of axes": (
        lambda w: w.x.to_sharded_zarr("out", dimension_names=["y"], **LAYOUT),
        SpecError, "dimension_names=['y']: 1 for 2 axes", "for each axis",
    ),
    "attributes of numpy": (
        lambda w: w.x.to_sharded_zarr("out", attributes={"a": np.arange(3)}, **LAYOUT),
        SpecError, "ndarray is not JSON serializable", "give a mapping that JSON can hold",
    ),
    # places
    "a file for the target": (
        lambda w: w.x.to_sharded_zarr("x.raw", **LAYOUT),
        SpecError, "something that is no Zarr array stands there", "give another path",
    ),
    "a target below a file": (
        lambda w: w.x.to_sharded_zarr("x.raw/out", **LAYOUT),
        StoreError, "Not a directory", "give a directory that can be written to",
    ),
    "an array that exists": (
        lambda w: w.x.to_sharded_zarr("array.zarr", shards=16, chunks=4),
        SpecError, "an array exists there; it differs in", 'give mode="w" to replace it',
    ),
    "a directory with other things, to be replaced": (
        lambda w: w.x.to_sharded_zarr("full", mode="w", **LAYOUT),
        SpecError, "something that is no Zarr array stands there", "remove it yourself",
    ),
    "a group for the target": (
        lambda w: w.x.to_sharded_zarr("group.zarr", **LAYOUT),
        SpecError, "a group stands there", "give another name=",
    ),
    "a bucket with keys in its URL": (
        lambda w: w.x.to_sharded_zarr("s3://me:secret@bucket/x", **LAYOUT),
        SpecError, "holds credentials", "set them in the environment",
    ),
    "a URL of another kind": (
        lambda w: w.x.to_sharded_zarr("sftp://host/x", **LAYOUT),
        SpecError, "no known kind of URL", "give a directory's path",
    ),
    "the document of an array for the array": (
        lambda w: w.x.to_sharded_zarr("out/zarr.json", **LAYOUT),
        SpecError, "such a name is for a document of Zarr", "give the directory of the array, '",
    ),
    "the document of an array, to be read": (
        lambda w: shardwrite.open_sharded("array.zarr/zarr.json"),
        SpecError, "such a name is for a document of Zarr", "array.zarr'",
    ),
    "the name of a document of Zarr v2": (
        lambda w: w.x.to_sharded_zarr("out", name="a/.zgroup", **LAYOUT),
        SpecError, "not a relative path of plain names", "images/raw",
    ),
    "an array for a codec": (
        lambda w: w.x.to_sharded_zarr("out", serializer=np.zeros(2), **LAYOUT),
        SpecError, "not a codec", "give one array-to-bytes codec",
    ),
    "an array for the name of a codec": (
        lambda w: w.x.to_sharded_zarr("out", compressors={"name": np.zeros(2)}, **LAYOUT),
        SpecError, "not a codec", "give bytes-to-bytes codecs",
    ),
    "a number of numpy for filters": (
        lambda w: w.x.to_sharded_zarr("out", filters=np.int64(1), **LAYOUT),
        SpecError, "not a codec", "give array-to-array codecs",
    ),
    "an array in the codecs of the index": (
        lambda w: w.x.to_sharded_zarr(
            "out", index_codecs=[{"name": "bytes", "configuration": {"endian": np.zeros(2)}}], **LAYOUT
        ),
        SpecError, "cannot be held by JSON", 'use "bytes" and "crc32c"',
    ),
    "an array for the encoding of keys": (
        lambda w: w.x.to_sharded_zarr("out", chunk_key_encoding={"name": np.zeros(2)}, **LAYOUT),
        SpecError, "no encoding of keys", 'use "default" or "v2"',
    ),
    "an array for the separator of keys": (
        lambda w: w.x.to_sharded_zarr(
            "out", chunk_key_encoding={"name": "v2", "separator": np.zeros(2)}, **LAYOUT
        ),
        SpecError, "no such separator", 'use "default" or "v2"',
    ),
    "no store": (
        lambda w: w.x.to_sharded_zarr(None, **LAYOUT),
        SpecError, "store=None: not a path", "give a directory's path",
    ),
    # arrays that exist
    "an array that is not there": (
        lambda w: shardwrite.open_sharded("nowhere.zarr"),
        SpecError, "there is no zarr.json", "give the path of a sharded Zarr v3 array",
    ),
    "a group for the array": (
        lambda w: shardwrite.from_sharded_zarr("group.zarr"),
        SpecError, "a group, and not an array", "give the path of an array in it: a",
    ),
    "a torn zarr.json": (
        lambda w: shardwrite.verify("torn.zarr"),
        SpecError, "zarr.json is torn", "restore it",
    ),
    "a zarr.json of something else": (
        lambda w: shardwrite.verify("list.zarr"),
        SpecError, "not a Zarr v3 document", "only version 3",
    ),
    "Zarr v2, to be updated": (
        lambda w: shardwrite.write_region(w.x, "v2.zarr", WHOLE),
        SpecError, "one of Zarr v2 stands there", "copy it to a Zarr v3 array",
    ),
    "a region with a step": (
        lambda w: shardwrite.write_region(w.x[::2], "array.zarr", np.s_[::2, :]),
        SpecError, "a slice with the step 2 along axis 0", "write box by box",
    ),
    "a region that goes beyond the end": (
        lambda w: shardwrite.write_region(w.x, "array.zarr", np.s_[8:24, :]),
        SpecError, "along axis 0, the array ends before the region does", 'region="append"',
    ),
    "a region outside of the array": (
        lambda w: shardwrite.erase("array.zarr", np.s_[100:200]),
        SpecError, "holds no elements", "inside of (16, 16)",
    ),
    "an index outside of the array": (
        lambda w: shardwrite.write_region(w.x[0], "array.zarr", np.s_[99]),
        SpecError, "the index 99 is out of bounds for 16 elements", "from -n to n - 1",
    ),
    "an array of another shape": (
        lambda w: shardwrite.write_region(w.x[:3], "array.zarr", np.s_[:8]),
        SpecError, "x.shape=(3, 16): is not the region's", "give an array of shape (8, 16)",
    ),
    "values that would lose": (
        lambda w: shardwrite.write_region(w.source(dtype="f8"), "array.zarr", WHOLE),
        SpecError, "cannot be cast to the array's float32", 'astype("float32")',
    ),
    "an axis that is not there": (
        lambda w: shardwrite.write_region(w.x, "array.zarr", "append", axis=2),
        SpecError, "axis=2: no such axis", "the array has 2 axes",
    ),
    "another source for a repair": (
        lambda w: shardwrite.repair("array.zarr", w.x[:3]),
        SpecError, "x.shape=(3, 16): is not the array's", "give a source of shape (16, 16)",
    ),
    # conversions and parts
    "a conversion of nothing": (
        lambda w: shardwrite.reshard("nowhere.zarr", "out"),
        SpecError, "there is no such directory", "give the path of an array or of a group",
    ),
    "a conversion of a group without arrays": (
        lambda w: shardwrite.shard("empty.zarr", "out"),
        SpecError, "a group without arrays", "a group with arrays",
    ),
    "a conversion of arrays that are not there": (
        lambda w: shardwrite.shard("group.zarr", "out", include="b*"),
        SpecError, "holds no array that is asked for", "give other patterns to include",
    ),
    "a conversion into its source": (
        lambda w: shardwrite.reshard("array.zarr", "array.zarr/new", shards=16),
        SpecError, "which is the source", "give a place outside of the source",
    ),
    "compressor, for a conversion": (
        lambda w: shardwrite.reshard("array.zarr", "out", compressor="zstd"),
        TypeError, "'compressor'", "give compressors",
    ),
    "a part that was not prepared": (
        lambda w: shardwrite.write_part(w.x, "out", 0, 2),
        IncompleteError, "nothing was begun", "call prepare first",
    ),
    "options for a plan": (
        lambda w: shardwrite.prepare(w.x, "out", {"shards": 8}),
        SpecError, "plan='dict': not a plan", "give what shardwrite.plan(x, ...) returns",
    ),
}  # fmt: skip

# ---- on the command line: what is typed, the exit code, what it says, what it tells to do

ON_THE_COMMAND_LINE = {
    # sizes and choices
    "write x.npy out --shards 512x512": (2, "--shards 512x512", "give a shape as 512,512"),
    "write x.npy out --shards 8 --chunks 4x4": (2, "--chunks 4x4", "give a shape as 4,4"),
    "write x.npy out --shards '256 MBB'": (2, "--shards '256 MBB'", '"256MB"'),
    "write x.npy out --shards 10 --chunks 4": (2, "with --chunks 4,4", "give 12 instead of 10"),
    "write x.npy out --strategy sideways": (2, "--strategy sideways: no such", "use one of append-only, fixed-order, hdf5"),
    "update x.npy array.zarr --append 0 --in-place --strategy Z": (2, "--strategy Z", "morton"),
    "compact array.zarr --order Z": (2, "--order Z: no such order", "use one of C, F"),
    "write x.npy out --durability fsync": (2, "'fsync' is not one of", "'full', 'batch', 'none'"),
    "write x.npy out --memory-limit 10": (2, "a process may use 10", "raise --memory-limit"),
    "write large.npy out --shards 64 --chunks 32 --memory-limit 100kB --threads 4": (
        2, "4 threads needs", "use fewer threads (--threads), or read the source in smaller chunks (--source-chunks)",
    ),
    "write x.npy out --source-chunks 0": (2, "--source-chunks 0", "64,64,32"),
    "write x.npy out --fill-value green": (2, "--fill-value green: is no float32", "such as 0.5"),
    "write x.npy out --dimension-names y": (2, "--dimension-names y: 1 for 2 axes", "time,,x"),
    "write x.npy out --overwite": (2, NO_OPTION, "--overwrite"),
    "wirte x.npy out": (2, "No such command 'wirte'", "'write'" if SUGGESTS else "shardwrite -h"),
    "precomputed volume.npy out --resolution 4,4,40": (2, "--axes: no name of an axis", '"zyx"'),
    "write x.npy out --scheduler nowhere": (2, "--scheduler nowhere: no address", "tcp://host:8786"),
    # JSON
    """write x.npy out --compressors '[{"name": "zstd"'""": (2, "--compressors", "is no JSON"),
    "write x.npy out --filters '[transpose]'": (2, "is no JSON", '[{"name": "transpose", "conf'),
    "write x.npy out --compressors zsdt": (2, "--compressors zsdt: nothing is known", '"zstd"'),
    """write x.npy out --attributes '{"a": '""": (2, "is no JSON", '{"units": "K"}'),
    "precomputed volume.npy out --resolution 4,4,40 --axes zyx --sharding '{6'": (2, "is no JSON", '{"preshift_bits": 0, "mini'),
    "verify torn.zarr": (2, "ARRAY ", "restore it"),
    # sources
    "write nowhere.npy out": (2, "SRC nowhere.npy: no such file", "check the path"),
    "plan nowhere.h5::one": (2, "no such file", "check the path"),
    "write two.h5 out": (2, "it holds 2 arrays", "choose one with --dataset: one, two"),
    "write two.h5::three out": (2, "--dataset three: there is no such array", "one of: one, two"),
    "write none.h5 out": (2, "there is no array in it", "with an array"),
    "write short.npy out": (2, "the file is too short", "give the file whole\n"),
    "write broken.h5 out": (2, "cannot be read as hdf5", "--format and --dataset"),
    "write what.ever out": (2, "cannot be told", "give --format as one of: zarr, hdf5"),
    "write x.npy out --format nupy": (2, "--format nupy: no such format", "npy"),
    "write x.raw out": (2, "a raw file does not say its shape", "give --shape and --dtype"),
    "write x.raw out --dtype flot32 --shape 5": (2, "--dtype flot32", "uint16"),
    "write x.raw out --dtype float32 --shape 5x5": (2, "'5x5' is no shape", "5,5"),
    "write objects.npy out": (2, "Python objects", "fixed-size dtype"),
    "write ftp://user:pass@host/x.npy out": (2, "only local files are read", "copy it to a local file"),
    "write empty.zarr out": (2, "there is no array in it", "with an array"),
    # places
    "write x.npy array.zarr --shards 16 --chunks 4": (2, "DST ", "give --overwrite to replace it"),
    "init x.npy array.zarr": (2, "an array exists there", "give --overwrite to replace it"),
    "write x.npy x.raw": (2, "something that is no Zarr array", "give another path"),
    "write x.npy group.zarr": (2, "a group stands there", "give another --name inside it"),
    "write x.npy sftp://host/x": (2, "DST sftp://host/x", "s3://bucket/x.zarr\n"),
    "write x.npy https://host/x": (2, "DST https://host/x", "s3://bucket/x.zarr\n"),
    "write x.npy s3://me:secret@bucket/x": (2, "DST s3://***@bucket/x", "AWS_SECRET_ACCESS_KEY\n"),
    "write x.npy": (2, "Missing argument", "DST"),
    # arrays that exist
    "update x.npy array.zarr": (2, "either --region", "--append AXIS"),
    "update x.npy array.zarr --region 8:24,:": (2, "the array ends before the region", "with --append AXIS"),
    "update x.npy array.zarr --region ::2,:": (2, "--region ::2,:: a slice with the step 2", "box by box"),
    "update x.npy array.zarr --region a:b": (2, "'a:b' is no region", "0:64,10:20,:"),
    "update two.h5::one array.zarr --region :": (2, "dtype 'float64' of SRC", "--casting unsafe"),
    "update x.npy group.zarr --append 0": (2, "ARRAY ", "in it: a"),
    "erase array.zarr --region 100:200": (2, "--region 16:16,0:16: holds no elements", "inside of (16, 16)"),
    "verify nowhere.zarr": (2, "there is no zarr.json", "give the path of"),
    "verify array.zarr --against nowhere.npy": (2, "--against nowhere.npy", "check the path"),
    "repair array.zarr --source large.npy": (2, "shape (512, 512) of --source", "shape (16, 16)"),
    "census empty.zarr": (2, "a group, and not an array", "give the path of an array"),
    # conversions and parts
    "shard nowhere.zarr out": (2, "SRC ", "give the path of an array or of a group"),
    "shard empty.zarr out": (2, "a group without arrays", "a group with arrays"),
    "reshard group.zarr out --include b": (2, "holds no array that is asked for", "--include"),
    "unshard array.zarr array.zarr/new": (2, "DST ", "give a place outside of the source"),
    "reshard array.zarr out --shards 8x8": (2, "--shards 8x8", "give a shape as 8,8"),
    "reshard array.zarr out --compressors '[zstd'": (2, "--compressors", "is no JSON"),
    "upload array.zarr out": (2, "URL ", "give a URL such as s3://bucket/x.zarr"),
    "upload nowhere.zarr memory://out": (2, "SRC ", "give the path of an array or of a group"),
    "upload v2.zarr memory://out": (2, "an array of Zarr v2 is not copied as it is", "use reshard"),
    "download array.zarr memory://out": (2, "DST ", "upload copies to a URL"),
    "download array.zarr group.zarr/a": (2, "an array exists there", "give --overwrite to replace it"),
    "download s3:/bucket/x out": (2, "URL ", "give one such as s3://bucket/x.zarr\n"),
    "write-part x.npy out 0/2": (85, "nothing was begun", "run shardwrite init first"),
    "write-part x.npy out 2/2": (2, "there is no part 2 of 2", "counted from 0"),
}  # fmt: skip

OF_PYTHON = re.compile(
    r"""\b[a-z_]+=(?:True|False|None|["'(\[{])|\w\(\)|\w\(\.\.\.\)|Order\(|Only\(|\b(?:memory_limit|storage_options)\b|Traceback"""
)
"""What a user of the command line should never read."""


@pytest.fixture(scope="module")
def workplace():
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as root, dask.config.set(scheduler="sync"):
        yield Workplace(Path(root).resolve())
        os.chdir(before)


def test_there_are_many():
    assert len(IN_PYTHON) + len(ON_THE_COMMAND_LINE) >= 120


@pytest.mark.compat
@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_in_python(workplace, mistake):
    call, kind, says, remedy = IN_PYTHON[mistake]
    with workplace.untouched(), pytest.raises(kind) as caught:
        call(workplace)
    check_error(caught.value, kind, says, remedy)


def check_error(error, kind, says, remedy):
    assert type(error) is kind
    text = str(error)
    assert says in text
    assert remedy in text
    assert "During handling" not in told(error)


@pytest.mark.compat
@pytest.mark.parametrize("line", ON_THE_COMMAND_LINE)
def test_on_the_command_line(workplace, line):
    code, says, remedy = ON_THE_COMMAND_LINE[line]
    with workplace.untouched():
        ended = CliRunner().invoke(main, shlex.split(line))
    assert ended.exit_code == code, ended.output
    assert says in ended.output
    assert remedy in ended.output
    assert OF_PYTHON.search(ended.output) is None, ended.output
    assert "pass@" not in ended.output


# ---- files of others


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda w: open_source("secret.npy"), "secret.npy"),
        (lambda w: w.x.to_sharded_zarr("closed/out", **LAYOUT), "closed/out"),
    ],
    ids=["a source", "a target"],
)
def test_what_is_closed_to_a_user_is_a_typed_error(workplace, call, says):
    with workplace.untouched(), as_nobody(), pytest.raises(StoreError) as caught:
        call(workplace)
    assert caught.value.errno == 13
    check_error(caught.value, StoreError, says, "Permission denied")


@pytest.mark.parametrize(
    ("mode", "call"),
    [
        (0o311, lambda path: list(PosixStore(path).list_keys())),
        (0o644, lambda path: shardwrite.open_sharded(path / "x")),
        (0o555, lambda path: PosixStore(path).create_new("token", b"")),
    ],
    ids=["list", "pass", "write"],
)
def test_whom_to_ask_for_the_right_is_told(workplace, mode, call):
    """It is the owner of the first directory that is closed, and the call then goes on."""
    home = Path(tempfile.mkdtemp(dir=Path.cwd()))
    shardwrite.create(home / "x", (8,), "u4", shards=4, chunks=2)
    home.chmod(mode)
    owner = pwd.getpwuid(os.geteuid()).pw_name
    with as_nobody(), pytest.raises(StoreError, match="Permission denied") as caught:
        call(home)
    assert f"; ask {owner} for the right to use {home}" in str(caught.value)
    home.chmod(0o777)
    with as_nobody():
        call(home)


@pytest.mark.parametrize("line", ["write secret.npy out", "write x.npy closed/out"])
def test_what_is_closed_to_a_user_of_the_command_line(workplace, line):
    with workplace.untouched(), as_nobody():
        ended = CliRunner().invoke(main, shlex.split(line))
    assert ended.exit_code == 1
    assert "Permission denied" in ended.output
    assert OF_PYTHON.search(ended.output) is None, ended.output


# ---- a source that fails while it is computed


def failing(block, block_id=None):
    if block_id == (1, 1):
        raise ValueError("frame 7 is broken")
    return block


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_a_block_that_fails_is_named_by_its_region(tmp_path, scheduler):
    x = da.ones((16, 16), chunks=8).map_blocks(failing, dtype="f8", meta=np.empty((0, 0)))
    with (
        dask.config.set(scheduler=scheduler, num_workers=1),
        pytest.raises(ValueError, match="frame") as caught,
    ):
        x.to_sharded_zarr(tmp_path / "x", **LAYOUT)
    assert str(caught.value) == "frame 7 is broken"
    (note,) = caught.value.__notes__
    assert re.search(r"region \[\d+:16, \d+:16\]", note), note
    assert 'raise ValueError("frame 7 is broken")' in told(caught.value)
    assert not (tmp_path / "x" / "zarr.json").exists()


def test_a_file_that_fails_while_it_is_read_is_told_without_a_traceback(tmp_path):
    zarr.create_array(
        tmp_path / "x", data=np.arange(64), chunks=8, compressors=zarr.codecs.ZstdCodec()
    )
    (tmp_path / "x/c/3").write_bytes(b"torn")
    ended = CliRunner().invoke(
        main, ["write", f"{tmp_path}/x", f"{tmp_path}/out", "--shards", "8", "--chunks", "4"]
    )
    assert ended.exit_code == 1
    assert isinstance(ended.exception, SystemExit)
    assert "cannot be read, and may be damaged" in ended.output
    assert re.search(r"region \[\d+:\d+\]", ended.output), ended.output
    assert "Traceback" not in ended.output
    assert not (tmp_path / "out" / "zarr.json").exists()


# ---- the decorator of public functions


def test_every_public_function_speaks_of_keywords():
    for name in shardwrite.__all__:
        found = getattr(shardwrite, name)
        if callable(found) and not isinstance(found, type) and name not in UNGUARDED:
            with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'; "):
                found(*[None] * N_POSITIONAL.get(name, 1), nonsense=1, **MORE.get(name, {}))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(("verify", field) for field in ("deep", "accept", "name", "on_shards")),
        *(("repair", field) for field in ("deep", "salvage", "scan", "exclusive", "drop_hdf5")),
        *(("compact", field) for field in ("above", "order", "restart", "progress")),
        *(("to_sharded_zarr", field) for field in ("mode", "restart", "recheck", "durability")),
    ],
)
def test_an_array_is_no_single_value(tmp_path, name, field):
    """All public functions look at this in one place, before they do anything."""
    several = np.array([True, False])
    arguments = (np.ones(4), tmp_path) if name == "to_sharded_zarr" else (tmp_path,)
    for value in (several, da.from_array(several), several[:1]):
        with pytest.raises(SpecError, match="an array, and not one value") as caught:
            getattr(shardwrite, name)(*arguments, **{field: value})
        assert caught.value.fields["field"] == field
        assert caught.value.fields["value"] in ("ndarray", "Array")
    with pytest.raises(SpecError, match="an array, and not one value"):
        shardwrite.open_sharded(tmp_path, several)


UNGUARDED = {"patch_dask", "patch_xarray", "register_strategy", "register_shard_format"}
N_POSITIONAL = {"create": 3, "erase": 2, "store": 2, "convert_part": 4}
N_POSITIONAL |= {"prepare_conversion": 2, "finalize_conversion": 2}
MORE = {"create": LAYOUT}
