"""What notebooks show of plans, results, reports and arrays."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite.results import Axis, Facts
from shardwrite.show.html import Bar, bar_html, card_html, page_html

VOID = {"br", "meta"}
LOADS = {"src", "href", "srcset", "poster", "action", "data", "xlink:href", "background"}
HOSTILE = "<script>alert(1)</script>&\"'{{ 7 * 7 }}</style>"


class Page(HTMLParser):
    """Tags, attributes and texts of HTML whose tags are balanced."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts, self.style = [], [], [], [], ""
        self.lists = {}
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class", "")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag
        self.texts.append(" ")

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "style":
            self.style += data
            return
        self.texts.append(data)
        for tag, name in self.open:
            if tag == "ul":
                self.lists[name] = self.lists.get(name, "") + data

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


def checked(html):
    """The parsed HTML, after a look for scripts and for what would be loaded."""
    page = Page(html)
    assert not {"script", "iframe", "link", "img", "object"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not names & LOADS
    assert not [name for name in names if name.startswith("on")]
    assert "@import" not in page.style
    assert "url(" not in page.style
    return page


SHARDING = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "hash": "identity",
    "preshift_bits": 0,
    "minishard_bits": 1,
    "shard_bits": 1,
}


@pytest.fixture(scope="module")
def a():
    found = np.random.default_rng(0).integers(1, 9, (40, 64)).astype("i4")
    found[:16, :16] = 0
    return found


@pytest.fixture(scope="module")
def objects(a, tmp_path_factory):
    """One of everything that the public functions return, of a whole and of a damaged array."""
    x = da.from_array(a, chunks=(10, 64))
    root = tmp_path_factory.mktemp("x")
    keywords = {"shards": 16, "chunks": 4, "dimension_names": ["lat", "lon"]}
    plan = shardwrite.plan(x, **keywords)
    result = shardwrite.to_sharded_zarr(x, root / "x", **keywords)
    shardwrite.create(root / "s", (0, 64), "i4", shards=16, chunks=4)
    with shardwrite.ShardWriter(root / "s") as writer:
        writer.append(a[:16])
    made = {
        "plan": plan,
        "result": result,
        "report": shardwrite.verify(root / "x"),
        "census": shardwrite.census(root / "x"),
        "array": shardwrite.open_sharded(root / "x"),
        "compaction": shardwrite.compact(root / "x"),
        "repair": shardwrite.repair(root / "x"),
        "conversion plan": shardwrite.plan_reshard(root / "x", shards=32),
        "conversion": shardwrite.reshard(root / "x", root / "y", shards=32),
        "stream": writer.report(),
    }
    by_id = shardwrite.UInt64Shards(root / "ids", SHARDING)
    made["chunks by id"] = by_id.write({n: bytes(n) for n in range(9)})
    made["report of chunks by id"] = by_id.verify()
    (root / "x" / "c" / "1" / "1").write_bytes(b"torn")
    (root / "x" / "c" / "2" / "2").unlink()
    return {
        **made,
        "bad report": shardwrite.verify(root / "x"),
        "bad census": shardwrite.census(root / "x"),
        "bad repair": shardwrite.repair(root / "x"),
    }


KINDS = [
    *("plan", "result", "report", "census", "array", "compaction", "repair", "conversion plan"),
    *("conversion", "stream", "bad report", "bad census", "bad repair"),
    *("chunks by id", "report of chunks by id"),
]


@pytest.mark.compat
@pytest.mark.parametrize("kind", KINDS)
def test_a_card_loads_nothing_and_its_text_form_is_one_line(objects, kind):
    page = checked(objects[kind]._repr_html_())
    assert "table" in page.tags
    line = repr(objects[kind])
    assert re.fullmatch(r"<[A-Z]\w+\b.{10,400}>", line), line
    assert type(objects[kind]).__name__ in line


def test_every_class_of_a_result_has_a_card():
    classes = [one for one in vars(shardwrite).values() if isinstance(one, type)]
    classes += [getattr(shardwrite, name) for name in shardwrite.__all__]
    has_text = {
        one.__name__
        for one in classes
        if isinstance(one, type)
        and not issubclass(one, BaseException)
        and "__str__" in vars(one)
        and one.__module__.startswith("shardwrite")
    }
    has_card = {one.__name__ for one in classes if hasattr(one, "_repr_html_")}
    assert has_text - has_card == {"Part"}  # a line of text


def test_headline_numbers_come_first_and_axes_have_their_names(objects):
    page = checked(objects["plan"]._repr_html_())
    plan = objects["plan"]
    assert page.text.startswith("plan (40, 64) int32 12 files at most")
    assert page.text.index("memory per process at most") < page.text.index("lat")
    assert "lat 40 16 4 3" in page.text
    assert "lon 64 16 4 4" in page.text
    assert f"{plan.n_tasks:,} tasks" in page.text
    assert "along axes lat and lon" in page.text
    assert "lat 40 16 4 3" in checked(objects["array"]._repr_html_()).text
    assert "11 files" in checked(objects["result"]._repr_html_()).text


def test_axes_without_names_are_numbered(a):
    plan = shardwrite.plan(da.from_array(a, chunks=8), shards=16, chunks=4)
    assert "0 40 16 4 3" in checked(plan._repr_html_()).text


@pytest.mark.parametrize("kind", ["report", "census", "repair", "plan"])
def test_good_things_have_no_red(objects, kind):
    assert checked(objects[kind]._repr_html_()).lists == {}


def test_problems_are_red_and_named(objects):
    told = checked(objects["bad report"]._repr_html_())
    assert told.lists.keys() == {"sw-problems"}
    assert "c/1/1" in told.lists["sw-problems"]
    assert "c/2/2" in told.lists["sw-problems"]
    assert objects["bad report"].problems[0].remedy in told.text
    census = checked(objects["bad census"]._repr_html_())
    assert "1 missing" in census.lists["sw-problems"]
    assert "c/1/1" in checked(objects["bad repair"]._repr_html_()).lists["sw-problems"]


def test_a_plan_that_does_not_fit_is_a_problem(objects):
    from dataclasses import replace

    plan = objects["plan"]
    small = replace(plan, resources=replace(plan.resources, memory_limit_nbytes=1000))
    assert "does not fit" in checked(small._repr_html_()).lists["sw-problems"]


def test_everything_is_escaped():
    pair = [(HOSTILE, HOSTILE)]
    card = Facts(
        title=HOSTILE,
        subject=HOSTILE,
        headline=pair,
        axes=[Axis(HOSTILE, 1, 1, 1, 1)],
        problems=pair,
        notes=pair,
        rows=pair,
    )
    page = checked(card_html(card))
    assert "".join(page.texts).count(HOSTILE) == 2 + 4 * 2 + 1
    bar = checked(bar_html(Bar(share=0.5, text=HOSTILE)))
    assert HOSTILE in bar.text
    assert page_html(HOSTILE, "").count("<script") == 0


def test_names_of_axes_and_paths_are_escaped(a, tmp_path):
    path = tmp_path / "<b>&'x'"
    x = da.from_array(a, chunks=20)
    names = ["<i>", "\"'>"]
    made = shardwrite.to_sharded_zarr(x, path, shards=16, chunks=4, dimension_names=names)
    assert str(path) in checked(made._repr_html_()).text
    for html in (
        shardwrite.open_sharded(path)._repr_html_(),
        shardwrite.plan(x, shards=16, chunks=4, dimension_names=names)._repr_html_(),
        shardwrite.census(path)._repr_html_(),
        shardwrite.verify(path)._repr_html_(),
    ):
        assert not {"i", "b>"} & set(checked(html).tags)


def themes(style):
    """Colours of each rule that sets them, by selector."""
    style = re.sub(
        r"@media \(prefers-color-scheme:dark\)\{(.*?\})\}", r"@dark \1", style, flags=re.S
    )
    found = {}
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*--sw-[^{}]*:#[^{}]*)\}", style):
        found[selector.strip()] = dict(re.findall(r"--sw-([a-z-]+):(#[0-9a-f]{6})", body))
    return found


def luminance(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_follow_the_theme_and_can_be_read(objects):
    found = themes(checked(objects["plan"]._repr_html_()).style)
    assert len(found) == 4
    light, dark = found[".shardwrite"], found["@dark .shardwrite"]
    assert light.keys() == dark.keys()
    (jupyter_light,) = (s for s in found if '[data-jp-theme-light="true"] .shardwrite' in s)
    (jupyter_dark,) = (s for s in found if '[data-jp-theme-light="false"] .shardwrite' in s)
    assert ".vscode-light .shardwrite" in jupyter_light
    assert ".vscode-dark .shardwrite" in jupyter_dark
    assert found[jupyter_light] == light
    assert found[jupyter_dark] == dark
    assert list(found).index("@dark .shardwrite") < list(found).index(jupyter_light), (
        "a light theme of the notebook wins over a dark system"
    )
    assert luminance(light["ground"]) > 0.9 > 0.1 > luminance(dark["ground"])
    for theme in (light, dark):
        for text, ground in (
            *(("text", "ground"), ("muted", "ground"), ("bad", "bad-ground")),
            *(("bad", "ground"), ("note", "note-ground")),
        ):
            assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        for shape, ground in (("bar", "soft"), ("done", "soft"), ("shard", "array")):
            assert contrast(theme[shape], theme[ground]) >= 3, (shape, ground)


def test_only_the_card_is_styled(objects):
    style = checked(objects["plan"]._repr_html_()).style
    selectors = [
        one for rule in re.findall(r"([^{}]+)\{", style) for one in re.split(r",(?![^(]*\))", rule)
    ]
    assert [one for one in selectors if ".shardwrite" not in one and "@media" not in one] == []


@pytest.mark.parametrize("state", ["running", "done", "stopped"])
def test_a_bar_says_how_far_the_run_is(state):
    page = checked(bar_html(Bar(share=0.25, text="1 of 4", state=state)))
    assert page.text == "1 of 4"
    assert ("style", "width:25.0%") in page.attributes
    assert ("aria-valuenow", "25") in page.attributes
    assert ("class", f"sw-fill sw-{state}") in page.attributes
