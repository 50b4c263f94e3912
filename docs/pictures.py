"""Draw the overview picture of the README and the site: ``python docs/pictures.py``.

The picture is text, so it is committed and compared in the tests. The pictures of the gallery come
from real arrays, and `make docs` draws them anew.
"""

from __future__ import annotations

from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
_SIDE = 192
_TOP = 56
_LEFTS = (24, 312, 600)
_STYLE = """
  text { font: 15px sans-serif; fill: #24292f }
  .small { font-size: 12.5px; fill: #57606a }
  .line { stroke: #57606a; stroke-width: 1; fill: none }
  .slab { fill: #0072b2; fill-opacity: .22 }
  .shard { fill: #e69f00; fill-opacity: .28 }
  .chunk { fill: #009e73; fill-opacity: .25 }
  .read { fill: #009e73; fill-opacity: .9 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9da7b3 }
    .line { stroke: #9da7b3 }
  }"""


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"/>'
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="line"/>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{styled}>{text}</text>'


def _arrow(x: float) -> str:
    y = _TOP + _SIDE / 2
    return f'<path class="line" d="M{x:g} {y:g} h56 m-9 -6 l9 6 l-9 6"/>'


def overview() -> str:
    """Draw source chunks, shards and inner chunks beside each other, as SVG."""
    first, second, third = _LEFTS
    parts = [_text(first, 28, "Your chunks"), _text(first, 46, "any size: here 16 slabs", "small")]
    parts += [_rect(first, _TOP + k * _SIDE / 16, _SIDE, _SIDE / 16 - 2, "slab") for k in range(16)]
    parts += [_arrow(first + _SIDE + 20), _text(second, 28, "Shards")]
    parts += [_text(second, 46, "4 files, each written once", "small")]
    half = _SIDE / 2
    parts += [
        _rect(second + column * half, _TOP + row * half, half - 4, half - 4, "shard")
        for row in range(2)
        for column in range(2)
    ]
    parts += [_arrow(second + _SIDE + 20), _text(third, 28, "Inner chunks")]
    parts += [_text(third, 46, "a reader fetches only the dark one", "small")]
    quarter = _SIDE / 4
    parts += [
        _rect(
            third + column * quarter,
            _TOP + row * quarter,
            quarter - 3,
            quarter - 3,
            "read" if (row, column) == (1, 2) else "chunk",
        )
        for row in range(4)
        for column in range(4)
    ]
    note = "One shard, and the index at its end"
    parts += [_rect(third, _TOP + _SIDE + 6, _SIDE - 3, 10, "shard")]
    parts += [_text(third, _TOP + _SIDE + 34, note, "small")]
    body = "\n".join(parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 296" width="840" height="296" '
        'role="img" aria-label="Chunks of any size become four shards of small inner chunks">\n'
        f"<style>{_STYLE}\n</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "overview.svg").write_text(overview())
