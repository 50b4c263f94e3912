"""What OME-XML says of images: sizes of a pixel, and names of the channels.

Only three elements are looked at, and nothing else is kept while the text is parsed. A text that
declares a document type is refused, because entities that it defines may expand without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

_PIXELS = ["OME", "Image", "Pixels"]
_STEPS = {
    "X": ("PhysicalSizeX", "µm"),
    "Y": ("PhysicalSizeY", "µm"),
    "Z": ("PhysicalSizeZ", "µm"),
    "T": ("TimeIncrement", "s"),
}


@dataclass(frozen=True, slots=True)
class OmeImage:
    """One image of a file."""

    name: str | None
    # Number of pixels along each axis, as the text has it; axes are the letters of OME
    sizes: Mapping[str, str]
    # Size of a pixel, or time between two frames, and its unit, for each axis that has one
    steps: Mapping[str, tuple[str, str]]
    channels: list[str | None] = field(default_factory=list)  # name of each channel


class _Images:
    """Target of a parser: it collects the images of a text."""

    def __init__(self) -> None:
        self.found: list[OmeImage] = []
        self._inside: list[str] = []
        self._name: str | None = None

    def doctype(self, name: str, public: str | None, system: str | None) -> None:  # noqa: ARG002
        raise ValueError("it declares a document type, which OME-XML never does")

    def start(self, tag: str, found: Mapping[str, str]) -> None:
        self._inside.append(tag.rpartition("}")[2])
        if self._inside == _PIXELS[:2]:
            self._name = found.get("Name")
        elif self._inside == _PIXELS:
            sizes = {axis: found.get(f"Size{axis}", "") for axis in "XYZCT"}
            steps = {
                axis: (found[name], found.get(f"{name}Unit", usual))
                for axis, (name, usual) in _STEPS.items()
                if name in found
            }
            self.found.append(OmeImage(self._name, sizes, steps))
        elif self._inside == [*_PIXELS, "Channel"]:
            self.found[-1].channels.append(found.get("Name"))

    def end(self, tag: str) -> None:  # noqa: ARG002 (a parser gives it)
        self._inside.pop()

    def close(self) -> list[OmeImage]:
        return self.found


def images_in(text: str) -> list[OmeImage]:
    """Images that OME-XML describes, in its order.

    Examples
    --------
    >>> text = "<OME><Image Name='a'><Pixels SizeX='9' PhysicalSizeX='0.5'/></Image></OME>"
    >>> images_in(text)[0].steps
    {'X': ('0.5', 'µm')}
    """
    parser: Any = ET.XMLParser(target=_Images())  # noqa: S314 (the target refuses entities)
    try:
        parser.feed(text)
        found: list[OmeImage] = parser.close()
    except ET.ParseError as error:
        raise ValueError(f"it is not well-formed: {error}") from None
    return found
