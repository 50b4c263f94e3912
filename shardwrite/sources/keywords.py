"""Keywords that say how a file is read, and the arguments of `open_source`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from shardwrite.options import Keywords, argument, arguments, keywords, option

if TYPE_CHECKING:
    import numpy.typing as npt


@keywords
class FileKeywords(Keywords):
    """Which array of a file is opened, and as what."""

    section: ClassVar[str] = "Source"

    format: str | None = option(
        None,
        """A key of `shardwrite.sources.FORMATS`. By default, the name and the first bytes of the
        file decide.""",
        command_help="Format of SRC. Default: guessed from name and content.",
    )
    dataset: str | None = option(
        None,
        "Path of the array inside the file, if it holds several.",
        command_help="Path of the array inside SRC, as after :: in FILE::PATH.",
    )
    shape: Sequence[int] | None = option(
        None,
        "Shape of a raw binary file.",
        parser="extents",
        command_help="Shape of a raw file, such as 512,512,64.",
    )
    dtype: npt.DTypeLike | None = option(
        None,
        "Type of the elements of a raw file.",
        command_help="Type of the elements of a raw file, such as uint16.",
    )
    offset: int = option(0, "Number of bytes before the data of a raw file.")
    order: str = option("C", "Order of the axes in a raw file.", choices=("C", "F"), flag=None)
    chunks: Any = option(
        None,
        "Chunks in which the source is read. By default as the file has them.",
        kind="int, tuple or str",
        flag="source-chunks",
        parser="sizes",
        command_help="Read SRC in chunks of this shape. Default: as the file has them.",
    )


@arguments
class OpenArguments(FileKeywords):
    """Arguments of `open_source`."""

    path: str | os.PathLike[str] = argument(
        "File, directory, pattern or URL. ``FILE::PATH`` names an array in it."
    )
