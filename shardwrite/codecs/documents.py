"""Types of parsed JSON: free documents of Zarr, and values that a reader still has to check."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""A value that JSON can hold. Its kind must be checked before it is used."""

Document: TypeAlias = dict[str, Any]
"""A metadata document of Zarr, or a part of one; its fields are as the specification says."""

Codec: TypeAlias = Mapping[str, Any]
"""A codec as it stands in a metadata document, or its configuration."""


_SURROGATES = re.compile("[\ud800-\udfff]")


def has_surrogates(text: str) -> bool:
    """Whether a text has a surrogate; Python makes one of each byte that is no UTF-8.

    JSON can spell it, and many readers then refuse the whole document.
    """
    return _SURROGATES.search(text) is not None


def without_surrogates(text: str) -> str:
    """A text in which U+FFFD stands for each surrogate; see `has_surrogates`."""
    return _SURROGATES.sub("\ufffd", text)


def check_json(value: Any) -> None:
    """Check that every reader of JSON takes a value.

    - Raises UnicodeError if it holds a surrogate.
    - Raises another ValueError if it holds NaN or an infinite number.
    - Raises TypeError or RecursionError if JSON does not hold it at all.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if has_surrogates(text):
        raise UnicodeError("holds bytes that are no text in UTF-8, or a half of a character")


def attributes_of(document: Document) -> Document:
    """Attributes of a node; none if its document has something there that is no object.

    Readers of Zarr pass over what does not concern them, so no error is needed.
    """
    attributes: object = document.get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def named_today(codecs: Sequence[Codec]) -> list[Document]:
    """Codecs in which ``endian`` is called ``bytes``, also in shardings and in their indexes.

    The proposal of the sharding codec (ZEP 2) has the old name, which other readers do not know.
    """
    return [_named_today(codec) for codec in codecs]


def _named_today(codec: Codec) -> Document:
    renamed = {**codec, "name": "bytes"} if codec["name"] == "endian" else {**codec}
    if renamed["name"] == "sharding_indexed":
        configuration = renamed["configuration"]
        lists = {field: named_today(configuration[field]) for field in ("codecs", "index_codecs")}
        renamed["configuration"] = {**configuration, **lists}
    return renamed
