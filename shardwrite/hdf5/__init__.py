"""Shards that are files of HDF5: how the library lays them out, and how they are written."""
