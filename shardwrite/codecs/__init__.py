"""Codecs built from metadata, without storage and without dask."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from shardwrite.codecs.fill import FillPattern
    from shardwrite.codecs.pipeline import Pipeline, build_pipeline
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.codecs.fill": ("FillPattern",),
            "shardwrite.codecs.pipeline": ("Pipeline", "build_pipeline"),
        },
    )

__all__ = ["FillPattern", "Pipeline", "build_pipeline"]
