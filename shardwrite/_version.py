"""Version of the package: a tag of git gives it, and the installation keeps it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("shardwrite")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"
