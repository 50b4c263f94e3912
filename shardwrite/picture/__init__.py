"""Pictures of the shard grid and a census of its shards: in the terminal, as HTML and as PNG."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach
from shardwrite.picture.fold import GAP, Folded, fold
from shardwrite.read.census import STATES, Census, ShardState

if TYPE_CHECKING:
    from shardwrite.picture.page import html
    from shardwrite.picture.png import write_png
    from shardwrite.picture.terminal import TerminalPicture, terminal_picture
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.picture.page": ("html",),
            "shardwrite.picture.png": ("write_png",),
            "shardwrite.picture.terminal": ("TerminalPicture", "terminal_picture"),
        },
    )

__all__ = [
    "GAP",
    "STATES",
    "Census",
    "Folded",
    "ShardState",
    "TerminalPicture",
    "fold",
    "html",
    "terminal_picture",
    "write_png",
]
