"""Pages and pictures of sweeps and plans, and progress: through the command line."""

import base64
import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sundog.sim.show.progress import runs_progress
from tests import warm

SPEC = """
duration_s = 10

[[populations]]
name = "chat"
arrivals = {kind = "poisson", rate_per_s = 4}
prompt = {kind = "fixed", tokens = 400}
output = {kind = "uniform", smallest = 10, largest = 100}
"""
RATE = "workload.populations.chat.arrivals.rate_per_s"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small sweep, and beside it its load curve and its page."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "w.toml").write_text(SPEC)
    words = ["--vary", "max_num_seqs=1,16", "--vary", f"{RATE}=2,4", "--by", RATE, "--replications", "2"]
    words += ["--metric", "ttft_s.mean", "--metric", "output_tokens_per_s", "--jobs", "1"]
    words += ["--out", str(folder / "kept"), "--figure", str(folder / "load.svg")]
    done = warm.run("sundog", "sweep", str(folder / "w.toml"), *words)
    assert done.returncode == 0, done.stderr
    done = warm.run("sundog", "report", str(folder / "kept"), "-o", str(folder / "page.html"))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long(reason="runs whole sweeps")
def test_the_page_of_a_sweep_has_its_curves_and_their_data(swept: Path) -> None:
    """A curve for each metric and a front, each with its picture and the numbers in it."""
    page = (swept / "page.html").read_text()
    links = re.findall(r'download="([^"]+)" href="data:([^;]+);base64,([^"]+)"', page)
    names = [name for name, _, _ in links]
    assert names[:2] == ["load-ttft_s.mean.svg", "load-ttft_s.mean.csv"] and "pareto.svg" in names
    assert "load-output_tokens_per_s.csv" in names
    for name, kind, packed in links:
        text = base64.b64decode(packed).decode()
        if kind == "image/svg+xml":
            assert ElementTree.fromstring(text).tag.endswith("svg")
            continue
        rows = list(csv.DictReader(io.StringIO(text)))
        assert len(rows) == 4 and {row["max_num_seqs"] for row in rows} == {"1", "16"}, name
        assert all(float(value) >= 0 for row in rows for value in row.values())
    assert 'src="http' not in page and "prefers-color-scheme: dark" in page


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_stands_alone_on_its_page(swept: Path, tmp_path: Path) -> None:
    """Two of them, or a run beside it, are refused."""
    done = warm.run("sundog", "report", *[str(swept / "kept")] * 2, "-o", str(tmp_path / "two.html"))
    assert done.returncode == 2 and "give it alone" in done.stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_command_draws_its_picture(swept: Path) -> None:
    """`sweep --figure` draws the load curves, `plan --figure` what the fleets cost."""
    assert "rate/s" in (swept / "load.svg").read_text()
    words = ["--slo", "p95(ttft)<2", "--gpu", "l40s,h100", "-tp", "1", "--jobs", "1", "--no-tune"]
    file = swept / "fleets.svg"
    done = warm.run("sundog", "plan", str(swept / "w.toml"), *words, "--figure", str(file))
    assert done.returncode == 0, done.stderr
    assert "l40s, TP 1 (1 GPU)" in file.read_text() and "at least" in file.read_text()
    done = warm.run("sundog", "plan", str(swept / "w.toml"), *words, "--figure", str(swept / "fleets.gif"))
    assert done.returncode == 2 and "name it .svg, .pdf, .png" in done.stderr


def test_a_run_with_objectives_has_a_page(tmp_path: Path) -> None:
    """Objectives of a run are no limits of a request: the page draws the latter alone."""
    trace, run = "traces/chat-poisson-2rps-5min.jsonl.gz", tmp_path / "run"
    slo = ("--slo", "p95(ttft)<1, ttft=0.5")
    assert warm.run("sundog", "replay", trace, "--limit", "20", *slo, "--out", str(run)).returncode == 0
    done = warm.run("sundog", "report", str(run), "-o", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    assert '"limits_s":{"ttft_s":[0.5]}' in (tmp_path / "page.html").read_text()


def test_progress_is_a_line_a_minute_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain text with the time left, and nothing in the first minute."""
    now_s = 0.0
    with runs_progress("trials", lambda: now_s) as say:
        for done in range(1, 200):
            now_s += 1.0
            say(done, 400)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "60 of 400 trials, about 6 min left",
        "120 of 400 trials, about 5 min left",
        "180 of 400 trials, about 4 min left",
    ]


def test_progress_is_reckoned_from_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """What was loaded before, for five minutes here, is no part of it."""
    now_s = 0.0
    with runs_progress("shapes of steps", lambda: now_s) as say:
        now_s = 300.0
        say(0, 400)
        for done in range(1, 121):
            now_s += 1.0
            say(done, 400)
    first, _ = capsys.readouterr().err.splitlines()
    assert first == "60 of 400 shapes of steps, about 6 min left"
