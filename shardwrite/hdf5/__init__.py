"""HDF5: shards that are files of it, files that become shards, and files as stores of chunks."""
