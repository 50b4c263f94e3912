"""The command line: ``shardwrite``, and ``dask shardwrite``."""

from shardwrite.cli.main import main

__all__ = ["main"]
