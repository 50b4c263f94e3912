"""How many parts an array is written in."""

from __future__ import annotations

from shardwrite.errors import SpecError

_SECONDS = 600  # least duration of a part: the starts of shorter tasks would cost too much


def parts_for(raw_nbytes: int, n_groups: int, nbytes_per_second: float, max_array_size: int) -> int:
    """Number of parts of an array, so that each takes ten minutes or more.

    - `raw_nbytes`: decoded bytes of the array.
    - `nbytes_per_second`: decoded bytes that one task writes in a second.

    Examples
    --------
    >>> parts_for(2_400_000_000_000, 20_000, 200e6, 1001)
    20
    >>> parts_for(10_000, 20_000, 200e6, 1001)
    1
    """
    if nbytes_per_second <= 0:
        remedy = "give for instance 200MB"
        raise SpecError(
            "not a positive number of bytes",
            field="throughput",
            value=nbytes_per_second,
            remedy=remedy,
        )
    return max(1, min(int(raw_nbytes / (nbytes_per_second * _SECONDS)), n_groups, max_array_size))
