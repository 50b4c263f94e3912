"""``shardwrite report``: text, JSON, HTML, and the page that is served."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite.cli.live import Watch, server_of
from shardwrite.cli.main import main

KEYWORDS = {"shards": 16, "chunks": 8, "durability": "none"}


@pytest.fixture
def path(tmp_path):
    x = da.ones((64, 64), chunks=16)
    x.to_sharded_zarr(tmp_path / "x", keep_report=True, **KEYWORDS)
    return tmp_path / "x"


def test_text_json_and_html(path, tmp_path):
    run = CliRunner().invoke
    text = run(main, ["report", str(path)])
    assert text.exit_code == 0
    assert "16 of 16 shards are done" in text.output
    assert "What to change" in text.output
    assert max(map(len, text.output.splitlines())) <= 80
    found = json.loads(run(main, ["report", str(path), "--json"]).output)
    assert (found["n_done"], found["told_by"]) == (16, "report")
    page = tmp_path / "page.html"
    assert run(main, ["report", str(path), "--html", str(page)]).exit_code == 0
    assert page.read_text().count("<svg") == 3
    assert "refresh" not in page.read_text()


def test_write_keeps_a_report(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((64, 64)))
    command = ["write", str(tmp_path / "x.npy"), str(tmp_path / "x"), "--keep-report", "--json"]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert shardwrite.report(tmp_path / "x").told_by == "report"


def test_update_and_finalize_keep_a_report(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((64, 64)))
    source, out = str(tmp_path / "x.npy"), str(tmp_path / "x")
    layout = ["--shards", "16", "--chunks", "8", "--durability", "none"]
    for command in (["init", source, out, *layout], ["write-part", source, out, "0/2"]):
        assert CliRunner().invoke(main, command).exit_code == 0
    finalize = ["finalize", out, "--parts", "2", "--keep-report"]
    assert CliRunner().invoke(main, finalize).exit_code == 85
    assert not (tmp_path / "x" / "shardwrite-report.json").exists()
    assert CliRunner().invoke(main, ["write-part", source, out, "1/2"]).exit_code == 0
    assert CliRunner().invoke(main, finalize).exit_code == 0
    kept = shardwrite.report(tmp_path / "x")
    assert (kept.told_by, kept.n_done, kept.n_shards) == ("report", 16, 16)
    np.save(tmp_path / "y.npy", np.zeros((16, 64)))
    update = ["update", str(tmp_path / "y.npy"), out, "--region", "16:32,:", "--keep-report"]
    dry = CliRunner().invoke(main, [*update, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert shardwrite.report(tmp_path / "x") == kept
    assert CliRunner().invoke(main, update).exit_code == 0
    found = shardwrite.report(tmp_path / "x")
    assert (found.told_by, found.n_done, found.n_shards) == ("report", 4, 4)


def test_mistakes(path, tmp_path):
    run = CliRunner().invoke
    missing = run(main, ["report", str(tmp_path / "y")])
    assert (missing.exit_code, "no run of shardwrite" in missing.output) == (85, True)
    both = run(main, ["report", str(path), "--live", "0", "--json"])
    assert (both.exit_code, "--live goes with neither" in both.output) == (2, True)
    server, _ = server_of(Watch(lambda: None, None, 1), 0)
    with server:
        port = str(server.server_address[1])
        taken = run(main, ["report", str(path), "--live", port])
    assert taken.exit_code == 2
    assert "--live" in taken.output
    assert "another port" in taken.output


@pytest.fixture
def served():
    """Serves a page, and returns its address."""
    servers = []

    def serve(watch):
        server, address = server_of(watch, 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return address

    yield serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def get(address):
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode(), answer.headers


def test_the_page_follows_a_run_to_its_end(tmp_path, served):
    pages, watches = [], []

    def look():
        return shardwrite.report(tmp_path / "x")

    def watch(_):
        if not watches:
            watches.append(Watch(look, look(), every=0))
            watches.append(served(watches[0]))
        pages.append(get(watches[1])[0])

    with dask.config.set(scheduler="sync"):
        x = da.ones((64, 64), chunks=16)
        x.to_sharded_zarr(tmp_path / "x", progress=watch, memory_limit="20kB", **KEYWORDS)
    numbers = [int(re.search(r"<b>(\d+)</b> <span>of 16 shards", page)[1]) for page in pages]
    assert numbers == sorted(numbers)
    assert numbers[0] < numbers[-1] == 16
    assert all('http-equiv="refresh" content="1"' in page for page in pages)
    page, headers = get(watches[1])
    assert "run, finished" in page
    assert "refresh" not in page
    assert page.count("<svg") == 3, "the timeline that was shown last is still there"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_nothing_else_is_served(path, served):
    address = served(Watch(lambda: None, shardwrite.report(path), 5))
    root = address.split("/", 3)[:3]
    for other in ("/", "/x/", "/" + address.split("/")[3], "/../../etc/passwd"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get("/".join(root) + other)
        assert caught.value.code == 404
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(address, method=method, data=b"x")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        assert caught.value.code == 501


def test_a_run_is_not_looked_at_more_often_than_told(path):
    report = shardwrite.report(path)
    looks = []

    def look():
        looks.append(1)
        raise shardwrite.StoreError("the storage is away", key="x")

    running = replace(report, state="running")
    rarely = Watch(look, running, every=3600)
    assert [rarely.page().count("<svg") for _ in range(5)] == [3] * 5
    assert looks == []
    assert "the storage is away" in Watch(look, running, every=0).page()


@pytest.mark.long
def test_the_command_ends_with_ctrl_c(path):
    code = "from shardwrite.cli.main import main; main()"
    command = [sys.executable, "-u", "-c", code, "report", str(path), "--live", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://localhost:\d+/[\w-]{20,}/", address)
        assert "16" in get(address)[0]
        assert "ssh -L" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
