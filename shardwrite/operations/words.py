"""Keywords of dask's and zarr's functions, turned into those of this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

import shardwrite._dask as dask
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.place.url import named

_INSTEAD = {
    "chunk_key_separator": "give chunk_key_encoding",
    "compressor": "give compressors",
    "config": "give write_empty_chunks to to_sharded_zarr",
    "data": "give the array itself",
    "dimension_separator": 'give chunk_key_encoding={"name": "default", "separator": "/"}',
    "mode": "give mode to to_sharded_zarr",
    "path": "give name",
    "read_only": "leave it out: the array is written",
    "storage_options": "give storage_options to to_sharded_zarr",
    "store": "give it as the store of to_sharded_zarr",
    "write_data": "give compute=False, or call shardwrite.create",
    "write_empty_chunks": "give write_empty_chunks to to_sharded_zarr",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrWords:
    """Keywords of `zarr.create_array` that were given in one mapping, `zarr_array_kwargs`."""

    # Those that are fields of `ArrayOptions`
    array: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str | None = None  # path of the array in its store
    overwrite: bool | None = None  # whether an array may be replaced
    # ``shape`` and ``dtype``, which must be those of the source
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> ZarrWords:
        """Sort the keywords in a mapping."""
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise _refused("not a mapping", type(given).__name__, "give keywords and their values")
        rest = dict(given)
        array = {f.name: rest.pop(f.name) for f in fields(ArrayOptions) if f.name in rest}
        facts = {key: rest.pop(key) for key in ("shape", "dtype") if rest.get(key) is not None}
        name, overwrite = rest.pop("name", None), rest.pop("overwrite", None)
        for key in rest:
            if rest[key] is not None or key not in (*_INSTEAD, "shape", "dtype"):
                known = [f.name for f in fields(ArrayOptions)]
                remedy = _INSTEAD.get(key, f"these are known: {known}")
                raise _refused("no keyword here", key, remedy)
        return cls(array=array, name=name, overwrite=overwrite, facts=facts)

    def named(self, name: str | None) -> str | None:
        """Path of the array, which may be given here and as a keyword, too."""
        return named(name, self.name)

    def overwriting(self, overwrite: bool | None) -> bool | None:
        """Whether to overwrite, which a keyword says, or else these words."""
        return self.overwrite if overwrite is None else overwrite

    def over(self, options: ArrayOptions) -> ArrayOptions:
        """The options with these keywords."""
        for key, value in self.array.items():
            usual = next(f.default for f in fields(options) if f.name == key)
            known = getattr(options, key)
            if known is not usual and known != usual and known != value:
                raise _refused(f"says something else than {key}={known!r}", key, "give it once")
        return replace(options, **self.array)

    def check(self, x: dask.array.Array) -> None:
        """Refuse a shape or a dtype that is not the source's."""
        if "shape" in self.facts and self.facts["shape"] not in (x.shape, list(x.shape)):
            raise _refused("is not the source's", "shape", f"leave it out: it is {x.shape}")
        try:
            is_other = np.dtype(self.facts.get("dtype", x.dtype)) != x.dtype
        except TypeError:
            is_other = True
        if is_other:
            remedy = "leave it out, and convert the source with astype"
            raise _refused("is not the source's", "dtype", remedy)


def _refused(why: str, value: str, remedy: str) -> SpecError:
    return SpecError(why, field="zarr_array_kwargs", value=value, remedy=remedy)
