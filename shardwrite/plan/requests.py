"""Requests to an object store, and what they cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from shardwrite.codecs.documents import JSON

_GB = 10**9


@dataclass(frozen=True, slots=True)
class Requests:
    """Number of requests to an object store, as far as nothing must be repeated."""

    # Number of objects that are put, of objects and ranges that are read or looked at (GET and
    # HEAD), and of lists. A list names up to 1,000 objects. Removals are not counted: services take
    # nothing for them.
    n_put: int = 0
    # Number of objects that are put, of objects and ranges that are read or looked at (GET and
    # HEAD), and of lists. A list names up to 1,000 objects. Removals are not counted: services take
    # nothing for them.
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


@dataclass(frozen=True, slots=True)
class Prices:
    """What a service takes, in a currency of the user's. None where it is not known."""

    put: float | None = None  # for 1,000 requests that put or list
    get: float | None = None  # for 1,000 requests that read or look
    stored: float | None = None  # for a GB (10^9 bytes) in a month

    def of(self, requests: Requests) -> float | None:
        """Price of some requests; None if one of the two prices is not known."""
        if self.put is None or self.get is None:
            return None
        return ((requests.n_put + requests.n_list) * self.put + requests.n_get * self.get) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a run asks of an object store, at most, if nothing must be repeated."""

    requests: Requests  # requests that do not depend on how long the run takes
    # Requests that keep the state of the run, for each hour that it takes
    hourly: Requests = Requests()
    put_nbytes: int  # bytes that are put and read
    get_nbytes: int = 0  # bytes that are put and read
    # Whether the bytes are those expected at the compression that was given, and not the most
    is_expected: bool = False
    prices: Prices = Prices()  # what the service takes

    @property
    def cost(self) -> float | None:
        """Price of the requests; None if it is not known."""
        return self.prices.of(self.requests)

    @property
    def hourly_cost(self) -> float | None:
        """Price of the requests of each hour; None if it is not known."""
        return self.prices.of(self.hourly)

    @property
    def monthly_cost(self) -> float | None:
        """Price of the bytes that are put, for a month; None if it is not known."""
        stored = self.prices.stored
        return None if stored is None else stored * self.put_nbytes / _GB

    def to_dict(self) -> dict[str, JSON]:
        """All facts as values that JSON can hold."""
        costs = {"requests": self.cost, "per_hour": self.hourly_cost, "a_month": self.monthly_cost}
        return {**asdict(self), "cost": costs}
