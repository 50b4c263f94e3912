"""Codecs built from metadata, without storage and without dask."""
