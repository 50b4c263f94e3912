"""Requests to an object store, and bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from shardwrite.codecs.documents import JSON


@dataclass(frozen=True, slots=True)
class Requests:
    """Number of requests to an object store, as far as nothing must be repeated."""

    # Number of objects that are put, of objects and ranges that are read or looked at (GET and
    # HEAD), and of lists. A list names up to 1,000 objects. Removals are not counted: services take
    # nothing for them.
    n_put: int = 0
    n_get: int = 0
    # Number of objects that are put, of objects and ranges that are read or looked at (GET and
    # HEAD), and of lists. A list names up to 1,000 objects. Removals are not counted: services take
    # nothing for them.
    n_list: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            self.n_put + other.n_put, self.n_get + other.n_get, self.n_list + other.n_list
        )

    def times(self, n: int) -> Requests:
        """As many requests for each of `n` things."""
        return Requests(n * self.n_put, n * self.n_get, n * self.n_list)

    def __str__(self) -> str:
        return f"{self.n_put:,} PUT, {self.n_get:,} GET or HEAD, {self.n_list:,} LIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a run asks of an object store, at most, if nothing must be repeated."""

    requests: Requests  # requests that do not depend on how long the run takes
    # Requests that keep the state of the run, for each hour that it takes
    hourly: Requests = Requests()
    put_nbytes: int  # bytes that are put and read
    get_nbytes: int = 0
    # Whether the bytes are those expected at the compression that was given, and not the most
    is_expected: bool = False

    def to_dict(self) -> dict[str, JSON]:
        """All facts as values that JSON can hold."""
        return asdict(self)
