"""Words that users try as keywords, and the keywords that are meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

_MEANT = {
    "chunk": "chunks",
    "chunk_shape": "chunks",
    "chunk_size": "chunks",
    "chunksize": "chunks",
    "inner_chunks": "chunks",
    "codec": "compressors",
    "codecs": "compressors",
    "compression": "compressors",
    "compressor": "compressors",
    "shard": "shards",
    "shard_shape": "shards",
    "shard_size": "shards",
    "filter": "filters",
    "fill": "fill_value",
    "missing_value": "fill_value",
    "nodata": "fill_value",
    "dim_names": "dimension_names",
    "dimensions": "dimension_names",
    "dims": "dimension_names",
    "attrs": "attributes",
    "dataset": "name",
    "group": "name",
    "array_path": "name",
    "file": "store",
    "filename": "store",
    "path": "store",
    "target": "store",
    "url": "store",
    "array": "x",
    "data": "x",
    "source": "x",
    "slices": "region",
    "mem_limit": "memory_limit",
    "memory": "memory_limit",
    "max_mem": "memory_limit",
    "fsync": "durability",
    "sync": "durability",
    "force": "restart",
    "index_at": "index_location",
    "offset": "region",
}
_SENTENCES = {
    "dtype": "leave it out, and convert the source with astype",
    "n_threads": "set them with dask.config.set(num_workers=...)",
    "n_workers": "start a cluster with distributed.Client(n_workers=...)",
    "num_workers": "set them with dask.config.set(num_workers=...)",
    "overwrite": "leave it out: shards that the region touches are written again",
    "resume": "leave it out: the same call goes on where it was interrupted",
    "scheduler": "set it with dask.config.set(scheduler=...)",
    "threads": "set them with dask.config.set(num_workers=...)",
    "workers": "start a cluster with distributed.Client(n_workers=...)",
}


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that a function does not have, and name the ones that are meant.

    Examples
    --------
    >>> refuse_unknown("plan", ["shard"], ["shards", "chunks"])
    Traceback (most recent call last):
    TypeError: plan() got an unexpected keyword argument 'shard'; give shards
    """
    unknown = [word for word in given if word not in known]
    if unknown:
        remedies = dict.fromkeys(filter(None, (_remedy(word, known) for word in unknown)))
        names = ", ".join(map(repr, unknown))
        told = f"{function}() got an unexpected keyword argument {names}"
        raise TypeError("; ".join([told, *(remedies or [f"it has {', '.join(known)}"])]))


def _remedy(word: str, known: Collection[str]) -> str:
    if word == "overwrite" and "mode" in known:
        return 'give mode="w" to replace what exists'
    if word in _SENTENCES:
        return _SENTENCES[word]
    meant = _MEANT.get(word.lower())
    if meant not in known:
        meant = next(iter(get_close_matches(word.lower(), list(known), 1, 0.7)), None)
    return f"give {meant}" if meant else ""
