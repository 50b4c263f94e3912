"""Codecs as users give them: names, documents, or objects of zarr-python.

zarr-python is imported only for a codec that it must tell about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.codecs.pipeline import serializer_named
from shardwrite.errors import SpecError
from shardwrite.format.sharding import ShardingIndexed

VLEN_DTYPES = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}
"""Data types by the codecs of elements of variable length."""


def as_list(value: Any) -> list[Any]:
    """Items of a sequence; a list of the value itself if it is no sequence, or a text."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def with_documents(value: Any) -> Any:
    """Turn bare codec names into the mappings that zarr takes."""
    if isinstance(value, str) and value not in ("auto", "keep"):
        # zarr-python 3.4 needs an order of bytes, which it drops where elements are single bytes.
        return {"name": value, "configuration": {"endian": "little"} if value == "bytes" else {}}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [with_documents(v) for v in value]
    return value


def document_of(codec: Any) -> Mapping[str, Any]:
    """Document of a codec, which may be one already; empty if it is no codec."""
    if isinstance(codec, Mapping):
        return codec
    found: Document = codec.to_dict() if hasattr(codec, "to_dict") else {}
    return found


def as_document(codec: Any) -> Document:
    """Document of a codec, as JSON holds it."""
    if not isinstance(codec, Mapping) and not hasattr(codec, "to_dict"):
        raise SpecError(
            "not a codec", field="index_codecs", value=codec, remedy='use "bytes" and "crc32c"'
        )
    document = dict(codec) if isinstance(codec, Mapping) else codec.to_dict()
    if document.get("configuration") == {}:
        del document["configuration"]
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(document, default=lambda item: item.value)
    )


def codec_class(name: str) -> type[Any] | None:
    """Class of a codec by its name; None if zarr does not know it."""
    from zarr.registry import get_codec_class

    try:
        return get_codec_class(name)
    except (LookupError, ValueError):  # zarr 3.1 raises the first, and newer versions the second
        return None


def _names_of(codecs: Any) -> list[str]:
    """Names of those codecs that are documents."""
    return [
        str(one["name"]) for one in as_list(codecs) if isinstance(one, Mapping) and "name" in one
    ]


def are_known(codecs: Any) -> bool:
    """Whether these are documents of codecs that zarr knows by their names."""
    names = _names_of(codecs)
    return bool(names) and unknown_name(codecs) is None


def unknown_name(codecs: Any) -> str | None:
    """First name of a codec that zarr does not know; None if there is none."""
    return next((name for name in _names_of(codecs) if codec_class(name) is None), None)


def refuse_numcodecs(field: str, value: Any) -> None:
    """Refuse codecs of numcodecs, which are those of Zarr v2, and name what stands for them."""
    for codec in as_list(value):
        name = getattr(codec, "codec_id", None)
        if isinstance(name, str) and not isinstance(codec, Mapping):
            new = f'"{name}", {{"name": "{name}", "configuration": {{...}}}}'
            if name not in ("blosc", "crc32c", "gzip", "zstd"):
                new = json.dumps(_for_v3(codec), default=str)
            raise SpecError(
                "a codec of numcodecs, which is for Zarr v2",
                field=field,
                value=value,
                remedy=f"give the one of Zarr v3: {new}, or an object of zarr.codecs",
            )


def _for_v3(codec: Any) -> Document:
    """Document of the codec of Zarr v3 that does what one of numcodecs does."""
    configuration = dict(codec.get_config())
    return {"name": f"numcodecs.{configuration.pop('id')}", "configuration": configuration}


def sharding_in(serializer: Any) -> Document | None:
    """Document of a sharding that is given as the serializer; None if it is another codec.

    zarr-python would compare the chunk shape of a sharding with that of the array even where a
    transposition stands between them. So the sharding is put into the document here.
    """
    document = document_of(serializer)
    if document.get("name") != ShardingIndexed.name:
        return None
    from zarr.codecs import ShardingCodec

    try:
        return as_document(ShardingCodec.from_dict(dict(document)))
    # zarr raises many types here; each of them means that the configuration is wrong.
    except Exception as error:
        raise SpecError(
            f"not a sharding: {error}",
            field="serializer",
            value=serializer,
            remedy="give zarr.codecs.ShardingCodec(chunk_shape=..., codecs=...), or its document",
        ) from error


def serializer_name(serializer: Any) -> str | None:
    """Name of the codec that makes bytes of elements: in a sharding, that of its inner chunks."""
    document = document_of(serializer)
    if document.get("name") != ShardingIndexed.name:
        return document.get("name")
    names = (serializer_name(codec) for codec in document["configuration"]["codecs"])
    return next((name for name in names if name in VLEN_DTYPES), None)


def unknown_to_zarr(serializer: Any, shard_format: Any) -> Document | None:
    """Document of a codec of a wing that is given as the serializer; None if it is none.

    zarr-python does not know these, so they are put into the document here.
    """
    document = document_of(serializer)
    found = serializer_named(str(document.get("name")))
    if found is None:
        return None
    found.check_format(shard_format, serializer)
    return as_document(document)


def put_serializer(serializer: Document, codecs: list[Document]) -> None:
    """Replace the array-to-bytes codec in a list by another, such as a sharding."""
    from zarr.abc.codec import ArrayBytesCodec
    from zarr.registry import get_codec_class

    at = next(
        i
        for i, codec in enumerate(codecs)
        if issubclass(get_codec_class(codec["name"]), ArrayBytesCodec)
    )
    codecs[at] = serializer
