"""`sundog dashboard`: the page's data equal the run's files."""

import base64
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from sundog.sim.explain.load import load
from tests.sundog.test_runs import contents, refused, replay, sundog

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIGHT = ("--num-gpu-blocks", "120", "--max-model-len", "1900", "--max-num-seqs", "6")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a queue and preemptions."""
    folder = tmp_path_factory.mktemp("runs") / "tight"
    replay(folder, *TIGHT, limit=40)
    return folder


def instants(run: Path, page: Path, *options: object) -> list[Any]:
    """What is inside the page."""
    done = sundog("dashboard", run, "-o", page, *options)
    assert (done.returncode, done.stdout.strip()) == (0, str(page)), done.stderr
    packed = re.search(r'<script id="recorded" type="text/plain">([^<]+)</script>', page.read_text())
    assert packed is not None
    return [json.loads(line) for line in gzip.decompress(base64.b64decode(packed[1])).splitlines()]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_every_instant_is_the_runs(run: Path, tmp_path: Path) -> None:
    """Who waits, runs and has ended; tokens, blocks and times are those of its tables at the end.

    One request is longer than the context: no engine has heard of it.
    """
    shown = instants(run, tmp_path / "page.html", "--instants", 200)
    table = parquet.read_table(run / "requests.parquet", filters=[("reason", "!=", "refused")]).to_pydict()
    arrivals_s = table["arrival_s"]
    assert len(shown) == 200 and shown[0]["time_s"] == min(arrivals_s)
    seen: dict[str, set[str]] = {"waiting": set(), "running": set(), "lacks": set()}
    for now in shown:
        (engine,) = now["engines"]
        num_here = len(now["running"]) + len(now["waiting"]) + sum(engine["ended"].values())
        assert num_here == sum(arrival_s <= now["time_s"] for arrival_s in arrivals_s)
        assert engine["num_running"] == now["num_running"] <= 6
        held = sum(count for _, count, _ in now["blocks"][0])
        assert held == round(engine["kv_usage"] * engine["num_blocks"]) <= engine["num_blocks"] == 119
        for each in now["running"]:
            assert each["num_cached_tokens"] <= each["num_computed_tokens"]
            assert each["num_computed_tokens"] <= each["num_prompt_tokens"] + each["num_tokens"]
        for each in now["waiting"]:
            seen["lacks"].add(each["lacks"])
            assert each["forecast_ttft_s"] >= each["age_s"] or each["num_preemptions"]
        seen["waiting"] |= {each["id"] for each in now["waiting"]}
        seen["running"] |= {each["id"] for each in now["running"]}
    measured = sorted(row[1] for row in shown[-1]["measured"])
    firsts_s = zip(table["first_token_s"], arrivals_s, strict=True)
    assert measured == pytest.approx(sorted(first_s - arrival_s for first_s, arrival_s in firsts_s), rel=1e-3)
    assert all(sum(row[1] for row in now["tenants"]) == now["num_running"] for now in shown)
    last = shown[-1]["engines"][0]
    assert {"KV blocks", "max_num_seqs"} & seen["lacks"] and seen["waiting"] and len(seen["running"]) > 20
    assert last["num_generation_tokens"] == sum(table["num_output_tokens"])
    assert last["num_prompt_tokens"] == sum(table["num_prompt_tokens"])
    assert last["num_preemptions"] == sum(table["num_preemptions"]) > 0
    assert last["num_steps"] == load(run).queues[0].num_steps
    counts = [now["engines"][0]["num_generation_tokens"] for now in shown]
    assert counts == sorted(counts)


def test_a_part_of_a_run_can_be_shown_and_equal_runs_are_equal_pages(run: Path, tmp_path: Path) -> None:
    """From and to a second, by so many instants; the run itself stays as it is."""
    before = contents(run)
    part = instants(run, tmp_path / "a.html", "--from", 2, "--to", 4, "--instants", 3)
    assert [now["time_s"] for now in part] == [2, 3, 4]
    instants(run, tmp_path / "b.html", "--from", 2, "--to", 4, "--instants", 3)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert contents(run) == before
    assert not re.findall(r"https?://|src=|@import", (tmp_path / "a.html").read_text().split("recorded")[0])


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("options", "words"),
    [(("--from", 9, "--to", 3), "before 9"), (("-o", "/no/such/folder/page.html"), "cannot write")],
)
def test_what_cannot_be_shown_is_refused(run: Path, options: tuple[object, ...], words: str) -> None:
    """In one line."""
    refused(sundog("dashboard", run, *options), words)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """By its name."""
    refused(sundog("dashboard", tmp_path / "nothing"), "nothing does not exist")
    refused(sundog("dashboard", tmp_path), "has no journal")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_every_part_of_the_page(run: Path, tmp_path: Path) -> None:
    """Its figures with the scales of their lines, its lists and its blocks, from the first instant on."""
    page = tmp_path / "page.html"
    instants(run, page, "--instants", 50)
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'home'}",
    ]
    done = subprocess.run(
        [*command, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    drawn = done.stdout.partition("<script>")[0]
    tiles = re.findall(r'<div class="tile"><span class="dim">([^<]+)</span><b[^>]*>([^<]*)</b>', drawn)
    assert len(tiles) == 12 and all(figure for _, figure in tiles), tiles
    assert {name for name, _ in tiles} >= {"requests", "refusals", "errors", "within the SLO"}
    scales = re.findall(r'<div class="spark"[^>]*><span>([^<]*)</span>', drawn)
    assert len(scales) == 12 and sum(map(bool, scales)) >= 8
    assert drawn.count("<tr data-id=") > 5 and "held" in drawn
