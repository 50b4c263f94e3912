"""The command line as ``python -m shardwrite``, where its script is not on the path."""

from __future__ import annotations

import sys

from shardwrite.cli import main

if __name__ == "__main__":
    sys.exit(main())
