"""Formats of before: Zarr v2, Zarr in ZIP files, and the storage transformer of 2022."""
