"""Comparison of shardwrite with other ways to write sharded Zarr arrays, on one machine in one run."""
