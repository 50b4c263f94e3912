"""Volumes of Neuroglancer: scales, hashed scales, chunks by 64-bit id, and their encodings."""
