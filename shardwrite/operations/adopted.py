"""What an adoption is planned to do, and what it has done, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwrite.errors import printable
from shardwrite.grid import ceil_div
from shardwrite.results import Facts, Result, counted, human


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Result):
    """Files of which the shards of an array were made. :func:`shardwrite.adopt` returns it.

    Attributes
    ----------
    path : str
        Path of the array.
    dataset : str
        Name of the dataset in each file.
    shape, shards, chunks : tuple of int
        Shapes in elements: of the array, of a shard, and of an inner chunk.
    index_location : {"start", "end"}
        Position of the index in each shard.
    n_shards : int
        Number of files.
    nbytes : int
        Size of all files, in bytes.
    left_out : tuple of str
        Names of attributes that are left out, because they differ from file to file.
    is_plan : bool
        Whether nothing was done, because only a plan was asked for.
    is_skipped : bool
        Whether nothing was done, because the same call had ended before.
    """

    path: str
    dataset: str
    shape: tuple[int, ...]
    shards: tuple[int, ...]
    chunks: tuple[int, ...]
    index_location: str
    n_shards: int
    nbytes: int
    left_out: tuple[str, ...] = ()
    is_plan: bool = False
    is_skipped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All fields as a dictionary that can be stored as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Adopted:
        """Make a result of the fields that `to_dict` returns."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return cls(**fields)

    @property
    def _title(self) -> str:
        return "to adopt" if self.is_plan else "adopted before" if self.is_skipped else "adopted"

    def _rows(self) -> list[tuple[str, str]]:
        counts = tuple(ceil_div(n, s) for n, s in zip(self.shape, self.shards, strict=True))
        is_grid = sum(count > 1 for count in counts) > 1
        where = f", in a grid of {' x '.join(map(str, counts))}" if is_grid else ""
        rows = [
            ("array", f"{self.path}, {self.shape}"),
            ("files", f"{self.n_shards:,}{where}, {human(self.nbytes)}, left as they are"),
            ("shards", f"{self.shards}, index at the {self.index_location}"),
            ("inner chunks", f"{self.chunks}, of the dataset {self.dataset!r}"),
        ]
        if self.left_out:
            rows.append(("left out", f"{', '.join(self.left_out)}: not the same in all files"))
        return rows

    def __repr__(self) -> str:
        return f"<Adopted {printable(self.path)}, {counted(self.n_shards, 'file')}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [(f"{self.n_shards:,}", "files"), (human(self.nbytes), "in all")]
        return Facts(title=self._title, subject=self.path, headline=headline, rows=self._rows())
