"""The write strategy that makes each shard a file of HDF5, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.errors import SpecError
from shardwrite.format.frame import HDF5, Framing
from shardwrite.format.strategies import Strategy, register_strategy
from shardwrite.seams import resolve

DEFAULT_DATASET = "data"
"""Name of the dataset in the shards of a new array, if none is given."""

_MAX_NAME = 1024
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")  # no name in UTF-8 holds these


@register_strategy
@dataclass(frozen=True, slots=True)
class Hdf5(Strategy):
    """Strategy that makes each shard a file of HDF5, whose one dataset has the same inner chunks.

    The file opens in programs that read HDF5 and NetCDF-4, and the shard in those that read Zarr.
    An update writes the whole shard anew. No other strategy changes such a shard.

    Parameters
    ----------
    index : {"start", "end"}, optional
        Where the shard holds its index: in a user block at the start of the file, or at its end. A
        new array gets this index location. By default it is that of the array.
    dataset : str, optional
        Name of the dataset in the file, which may be a path such as ``"raw/data"``. By default, an
        update keeps the name that the files of the array have. In a new array it is ``"data"``.

    Raises
    ------
    SpecError
        If there is no such place for the index, or the name is not one of a dataset.

    Examples
    --------
    >>> Hdf5(dataset="raw/data").label
    'hdf5 (raw/data)'
    """

    name: ClassVar[str] = "hdf5"
    index: str | None = None
    dataset: str | None = None

    def __post_init__(self) -> None:
        if self.index not in (None, "start", "end"):
            raise SpecError(
                "no such place", field="index", value=self.index, remedy='give "start" or "end"'
            )
        name: Any = self.name_in_file
        parts = name.split("/") if isinstance(name, str) else [""]
        is_name = all(parts) and not {".", ".."} & set(parts) and _NOT_TEXT.search(name) is None
        if not is_name or len(name) > _MAX_NAME:
            raise SpecError(
                "no name of a dataset",
                field="dataset",
                value=name,
                remedy='give a name such as "data" or "raw/data"',
            )

    @property
    def name_in_file(self) -> str:
        """Name of the dataset in new files."""
        return DEFAULT_DATASET if self.dataset is None else self.dataset

    @property
    def label(self) -> str:
        """Readable name, such as ``hdf5 (data)``."""
        return f"hdf5 ({self.name_in_file})"

    def to_dict(self) -> Mapping[str, JSON]:
        """See :meth:`Strategy.to_dict`."""
        return {"index": self.index, "dataset": self.name_in_file}

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The strategy that ``hdf5:`` and a text name; the text is the name of the dataset."""
        return cls(dataset=text)

    def framing(self) -> Framing:
        """What a shard holds as a file of HDF5, beside its inner chunks. It decides on offsets."""
        made: Framing = resolve("framing", self.name)(self)
        return made


def dataset_of(label: str | None) -> str | None:
    """Name of the dataset in the label of a strategy; None if it is none of files of HDF5.

    Examples
    --------
    >>> dataset_of("hdf5 (raw/data)"), dataset_of("fixed-order (C)")
    ('raw/data', None)
    """
    found = HDF5.label.fullmatch(label or "")
    return None if found is None else found[1]
