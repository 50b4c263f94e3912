"""What stands at a path: a node of Zarr, something else, or nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError
from shardwrite.format.hierarchy_2022 import DATA, META, documents_of, is_hierarchy
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2, kind_of_document, shape_in
from shardwrite.place.base import MARK_NAME
from shardwrite.stores import (
    Store,
    as_store_error,
    is_file,
    is_there,
    mode_of,
    parse_document,
    read_json,
    read_limit,
)

_ENDS_OF_ARRAYS = (".array.json", f".{MARK_NAME}")  # in a hierarchy of 2022


def kind_of(path: Path) -> str:
    """Kind of what stands at a path."""
    mode = mode_of(path, follow=False)
    if not mode:
        return "nothing"
    if not stat.S_ISDIR(mode):
        return "link" if stat.S_ISLNK(mode) else "other"
    of_array, of_group = DOCUMENTS_OF_V2
    if is_there(path / of_array):
        return "v2"
    document = path / DOCUMENT
    mode = mode_of(document)
    if not mode and is_there(path / of_group):
        return "v2 group"
    if not stat.S_ISREG(mode):
        return "other" if mode or _has_entries(path) else "nothing"
    try:
        return kind_of_document(read_json(document))
    except ValueError:
        return "torn"


def hierarchy_document(store: Store) -> Document | None:
    """Document of the hierarchy of 2022 that a store holds; None if it holds none."""
    data = store.read_whole(DOCUMENT, read_limit())
    if data is None or len(data) > read_limit() or b"purl.org" not in data:
        return None
    try:
        document: Document = parse_document(data, DOCUMENT)
    except SpecError:  # broken documents are told by those who read them
        return None
    return document if is_hierarchy(document) else None


def array_of_2022_around(path: Path) -> Path | None:
    """Directory of the array of 2022 that contains a path, or of a run that makes one there."""
    for root in path.parents:
        for begin in documents_of(path.parent.relative_to(root).as_posix()):
            is_node = any(is_file(root / f"{begin}{end}") for end in _ENDS_OF_ARRAYS)
            if is_node and _is_hierarchy(root / DOCUMENT):
                return root / f"{DATA}{begin.removeprefix(META)}"
    return None


def _is_hierarchy(document: Path) -> bool:
    """Whether a document is there, and is that of a hierarchy of 2022."""
    try:
        return is_file(document) and is_hierarchy(read_json(document))
    except ValueError:
        return False


def shape_of(document: Any, name: str) -> list[int]:
    """Shape of the array in a metadata document."""
    shape = shape_in(document)
    if shape is None:
        raise SpecError(
            "not an array's",
            field=DOCUMENT,
            value=name,
            remedy="write the array again, or remove the document",
        )
    return shape


def _has_entries(path: Path) -> bool:
    """Whether a directory holds anything but empty directories, which a killed run may leave."""
    with as_store_error(str(path), "cannot list"), os.scandir(path) as entries:
        return any(
            not stat.S_ISDIR(mode_of(entry.path, follow=False)) or _has_entries(Path(entry.path))
            for entry in entries
        )
