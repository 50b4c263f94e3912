"""Check a built site.

Every internal link and anchor leads somewhere, and no page loads anything from another host.
``python docs/links.py FOLDER`` also lists the external links.
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a page loads something by itself; `a href` waits for a click.
_LOADS = {"src", "srcset", "poster", "data"}
_LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "modulepreload"}


class Page(HTMLParser):
    """What a page refers to.

    Attributes
    ----------
    links, loaded : list of str
        Addresses that a reader may follow, and those that the page loads.
    anchors : set of str
        Names to which links with ``#`` lead.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See :meth:`html.parser.HTMLParser.handle_starttag`."""
        for name, value in attrs:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in _LOADS:
                self.loaded.append(value.split()[0])
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name == "href":
                kinds = set((dict(attrs).get("rel") or "").split())
                (self.loaded if kinds & _LOADING_LINKS else self.links).append(value)


@cache
def read(path: Path) -> Page:
    """Read a page once."""
    return Page(path.read_text())


def problems(site: Path) -> list[str]:
    """List the dead links and anchors of a site, and what it loads from other hosts."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page, where = read(path), path.relative_to(site)
        for address in page.links + page.loaded:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    found.append(f"{where} loads {address}")
                continue
            start = site if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")) if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{where} links to {address}, which is not there")
            elif parts.fragment and target.suffix == ".html":
                anchor = unquote(parts.fragment)
                if anchor not in read(target).anchors and not anchor.startswith("__"):
                    found.append(f"{where} links to {address}, which has no such anchor")
    return found


def external(site: Path) -> list[str]:
    """List the addresses of other hosts to which pages link."""
    addresses = {a for path in site.rglob("*.html") for a in read(path).links if "//" in a}
    return sorted(addresses)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print("\n".join(external(folder)))
    sys.exit("\n".join(problems(folder)) or None)
