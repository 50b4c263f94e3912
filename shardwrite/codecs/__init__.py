"""Codecs: from metadata to callables. No storage, no dask."""

from shardwrite.codecs.fill import FillPattern
from shardwrite.codecs.limits import CHUNK_LIMIT, ask_for_chunk_limit
from shardwrite.codecs.pipeline import Pipeline, build_pipeline

__all__ = ["CHUNK_LIMIT", "FillPattern", "Pipeline", "ask_for_chunk_limit", "build_pipeline"]
