"""The sharded format of Neuroglancer precomputed, ``neuroglancer_uint64_sharded_v1``."""
