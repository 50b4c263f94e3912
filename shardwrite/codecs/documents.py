"""Types of parsed JSON: free documents of Zarr, and values that a reader still has to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["JSON", "Codec", "Document"]

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""A value that JSON can hold. Its kind must be checked before it is used."""

Document: TypeAlias = dict[str, Any]
"""A metadata document of Zarr, or a part of one; its fields are as the specification says."""

Codec: TypeAlias = Mapping[str, Any]
"""A codec as it stands in a metadata document, or its configuration."""
