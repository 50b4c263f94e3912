"""The site is built, and a browser opens every page of it.

Screenshots and the list of external links are left in ``build/site-report``.
"""

from __future__ import annotations

import functools
import http.server
import json
import runpy
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import shardwrite

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "build" / "site-report"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
SECONDS = 60  # for what the browser does by itself
LINKS = "return [...document.querySelectorAll('a[href]')].map(one => one.href)"
NAMES = "return [...document.querySelectorAll('[id], a[name]')].map(one => one.id || one.name)"
# The search draws what it finds into a shadow tree.
FOUND = """
const host = [...document.querySelectorAll('*')].find(one => one.shadowRoot);
if (!host) return [];
return [...host.shadowRoot.querySelectorAll('ol a[href]')].map(one => one.href);
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site() -> Path:
    pytest.importorskip("zensical")
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "site"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    if BROWSER is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root may not have one
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1200,900",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(SECONDS)
    REPORT.mkdir(parents=True, exist_ok=True)
    yield driver
    driver.quit()


def requested(browser) -> list[str]:
    """Addresses that the browser has asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def foreign(browser, address: str) -> list[str]:
    """Requests to other hosts since the last call."""
    inside = (address, "data:", "blob:")
    return [url for url in requested(browser) if not url.startswith(inside)]


def errors(browser) -> list[str]:
    """What the console has complained of since the last call."""
    return [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


def test_the_site_is_built_and_describes_every_public_name(site):
    for name in ("index", "quickstart", "reference/api", "reference/commands", "howto/files"):
        assert (site / f"{name}.html").is_file()
    api = (site / "reference" / "api.html").read_text()
    for name in set(shardwrite.__all__) - {"__version__"}:
        public = getattr(shardwrite, name)
        assert f'id="{public.__module__}.{public.__qualname__}"' in api, name
    assert ":func:" not in api


def test_a_reader_can_open_every_page_and_follow_every_link(site, address, browser):
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    assert len(pages) > 20
    names: dict[str, set[str]] = {}
    links: dict[str, set[str]] = {}
    for page in pages:
        browser.get(address + page)
        assert browser.title.endswith("shardwrite"), page
        names[address + page] = set(browser.execute_script(NAMES))
        links[page] = set(browser.execute_script(LINKS))
        assert errors(browser) == [], page
        assert foreign(browser, address) == [], page
    dead, external = [], set()
    for page, found in links.items():
        for link in found:
            target, fragment = urldefrag(link)
            if not target.startswith(address):
                external.add(link)
                continue
            target = target + "index.html" if target.endswith("/") else target
            path = site / unquote(urlsplit(target).path).lstrip("/")
            is_there = path.is_file() and (not target.endswith(".html") or target in names)
            anchors = names.get(target, set())
            if not is_there or (fragment and target in names and unquote(fragment) not in anchors):
                dead.append(f"{page} -> {link}")
    assert dead == []
    (REPORT / "external-links.txt").write_text("".join(f"{link}\n" for link in sorted(external)))
    listed = runpy.run_path(str(ROOT / "docs" / "links.py"))["external"](site)
    assert {link.rstrip("/") for link in external} <= {link.rstrip("/") for link in listed}


def test_the_search_finds_a_word_and_leads_to_it(address, browser):
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(browser, SECONDS)
    browser.get(f"{address}index.html")
    browser.find_element("css selector", ".md-search__button").click()
    wait.until(lambda b: b.execute_script("return document.activeElement.shadowRoot != null"))
    browser.switch_to.active_element.send_keys("quarantine")
    found = wait.until(lambda b: b.execute_script(FOUND))
    assert any("reliability.html" in link or "guide.html" in link for link in found), found
    browser.save_screenshot(str(REPORT / "search.png"))
    browser.get(found[0])
    assert "quarantine" in browser.find_element("tag name", "body").text.lower()
    assert errors(browser) == []
    assert foreign(browser, address) == []


def test_the_committed_quick_start_is_that_of_today(site, tmp_path):
    pytest.importorskip("PIL")
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"), run_name="pictures")
    if pictures["chromium"]() is None:
        pytest.skip("chromium is not installed")
    again = "take the screenshots again: make docs && python docs/pictures.py --screens"
    for path in pictures["take_pages"](site, tmp_path):
        committed = ROOT / "docs" / "pictures" / path.name
        assert pictures["words_in"](committed) == pictures["words_in"](path), again
        assert pictures["difference"](committed, path) < pictures["ALIKE"], again


@pytest.mark.parametrize("page", ["quickstart", "gallery"])
def test_pages_follow_the_mode_of_the_browser(page, address, browser):
    backgrounds, sizes = {}, {}
    for mode in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get(f"{address}{page}.html")
        browser.execute_script("localStorage.clear(); sessionStorage.clear()")  # of the last mode
        browser.refresh()
        shot = REPORT / f"{page}-{mode}.png"
        browser.save_screenshot(str(shot))
        sizes[mode] = struct.unpack(">II", shot.read_bytes()[16:24])
        colour = "return getComputedStyle(document.body).backgroundColor"
        red, green, blue, *_ = browser.execute_script(colour)[4:].strip("()").split(",")
        backgrounds[mode] = sum(map(int, (red, green, blue)))
        hidden = "return [...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
        assert browser.execute_script(hidden) == []
    assert backgrounds["light"] > 600 > 200 > backgrounds["dark"]
    assert min(sizes["light"]) > 500
    assert sizes["light"] == sizes["dark"]
