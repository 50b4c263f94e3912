"""Codecs built from metadata, without storage and without dask."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from shardwrite.codecs.fill import FillPattern
    from shardwrite.codecs.limits import CHUNK_LIMIT, ask_for_chunk_limit
    from shardwrite.codecs.pipeline import Pipeline, build_pipeline
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.codecs.fill": ("FillPattern",),
            "shardwrite.codecs.limits": ("CHUNK_LIMIT", "ask_for_chunk_limit"),
            "shardwrite.codecs.pipeline": ("Pipeline", "build_pipeline"),
        },
    )

__all__ = ["CHUNK_LIMIT", "FillPattern", "Pipeline", "ask_for_chunk_limit", "build_pipeline"]
