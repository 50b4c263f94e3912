"""Kinds of stores of obstore, and what each of them can do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.stores.base import Capability

CONDITIONS = frozenset({Capability.EXCLUSIVE, Capability.CONDITIONAL})
"""What a service can do that knows conditions on requests."""
NOTHING: Mapping[str, str] = MappingProxyType({})
"""No metadata."""
RETRIES: Mapping[str, Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=120),
    "backoff": {
        "init_backoff": timedelta(milliseconds=200),
        "max_backoff": timedelta(seconds=10),
        "base": 2,
    },
}
"""How requests are made again, in the words of obstore, where a store says nothing else."""
_BUCKET = frozenset({Capability.ATOMIC, Capability.DURABLE, Capability.SHARED})


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of store of obstore."""

    scheme: str  # scheme of its URLs, and the option that names the bucket
    container: str
    can: frozenset[Capability]  # what it can do
    # Whether the last bytes of an object can be read without knowing its size
    has_suffixes: bool = True
    most_nbytes: int = 2**63  # bytes that one request can put
    address: str = ""  # option that names another address of the service; empty if there is none
    # Environment variables for the address; the first one that is set counts
    variables: tuple[str, ...] = ()
    joint: str = "-"  # what joins the words in names of metadata; empty if objects have none
    # Whether it is a web server, which is only read, lists nothing, and may know no ranges
    is_web: bool = False

    def metadata(self, given: Mapping[str, str]) -> dict[str, str]:
        """Metadata in names that the service takes, or none if objects have none.

        Examples
        --------
        >>> KINDS["S3Store"].metadata({"run": "abc"}), KINDS["LocalStore"].metadata({"run": "abc"})
        ({'shardwrite-run': 'abc'}, {})
        """
        names = {f"shardwrite-{name}".replace("-", self.joint): given[name] for name in given}
        return names if self.joint else {}


KINDS = {
    "S3Store": Kind(
        "s3",
        "bucket",
        _BUCKET,
        most_nbytes=5 * 2**30,
        address="endpoint",
        variables=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    ),
    "GCSStore": Kind(
        "gs",
        "bucket",
        _BUCKET | CONDITIONS,
        most_nbytes=5 * 2**40,
        address="base_url",
        variables=("GOOGLE_BASE_URL",),
    ),
    "AzureStore": Kind(
        "az",
        "container_name",
        _BUCKET | CONDITIONS,
        has_suffixes=False,
        most_nbytes=5000 * 2**20,
        address="endpoint",
        variables=("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        joint="_",
    ),
    "LocalStore": Kind(
        "file",
        "",
        frozenset({Capability.ATOMIC, Capability.SHARED, Capability.EXCLUSIVE}),
        joint="",
    ),
    "HTTPStore": Kind("http", "", frozenset({Capability.SHARED}), joint="", is_web=True),
    "MemoryStore": Kind("memory", "", frozenset({Capability.ATOMIC}) | CONDITIONS),
}


@dataclass(slots=True)
class Probed:
    """What was found out about a service by trying it; the same for all parts of a store."""

    can: frozenset[Capability] = frozenset()  # what the service can do
    is_done: bool = False  # whether it was tried
    has_ranges: bool = True  # whether a part of an object can be asked for
    has_heads: bool = True  # whether an object can be looked at without its bytes
    has_conditions: bool = True  # whether a request can name the version that it wants


def is_bucket(given: object) -> bool:
    """Whether a value is a store of obstore that `BucketStore` knows."""
    kind = type(given)
    return kind.__module__.partition(".")[0] == "obstore" and kind.__name__ in KINDS


def given_address(kind: str, options: Mapping[str, Any]) -> str:
    """Address of a service, from an option or the environment; empty if neither names it."""
    known = KINDS[kind]
    named = (os.environ.get(name, "") for name in known.variables)
    return str(options.get(known.address) or next(filter(None, named), ""))
