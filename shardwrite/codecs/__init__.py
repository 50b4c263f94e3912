"""Codecs: from metadata to callables. No storage, no dask."""

from shardwrite.codecs.fill import FillPattern
from shardwrite.codecs.pipeline import Pipeline, build_pipeline

__all__ = ["FillPattern", "Pipeline", "build_pipeline"]
