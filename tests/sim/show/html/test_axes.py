"""Ends of the axes of the report's charts, as a browser draws them. Skipped without Chromium."""

import json
import math
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from sundog.actors.config import EngineConfig
from sundog.sim.cost.roofline import Roofline
from sundog.sim.figures.metrics import summarize
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.record.run_directory import open_run
from sundog.sim.replay import replay
from sundog.sim.show.html.page import render, series
from sundog.sim.trace.record import TraceRequest
from tests.sim.record.runs import write_run
from tests.sim.show.html.test_page import CAPACITY, LIMITS, recorded

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TELL = """<script>addEventListener("load", () => setTimeout(() => {
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify(charts.filter(([, e]) => e.dataset.cdf).map(([p, e]) =>
    [e.dataset.cdf, p.scales.x.min, p.scales.x.max, p.axes[0]._splits]));
  document.body.append(told);
}, 50));</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def drawn(page: str, folder: Path) -> dict[str, tuple[float, float, list[float]]]:
    """The ends of each distribution's axis and its marks, as the browser has them."""
    file = folder / "page.html"
    file.write_text(page.replace("</body>", TELL + "</body>"))
    assert CHROMIUM is not None and TELL in file.read_text()
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'home'}"]
    dom = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    told = re.search(r'<pre id="told">(.*?)</pre>', dom)
    assert told is not None, dom[-2000:]
    return {name: (low, high, marks) for name, low, high, marks in json.loads(told[1])}


def test_distributions_fill_their_charts(tmp_path: Path) -> None:
    """An axis ends where its slowest request does, and not at the next power of ten."""
    run = recorded(tmp_path / "run")
    cdfs = series(run).cdfs
    for name, (low, high, marks) in drawn(render([run]), tmp_path).items():
        cdf = cdfs[name]
        assert cdf is not None
        assert high == pytest.approx(max(cdf[-1], 1e-4) * 1.05, rel=0.01)
        assert low == pytest.approx(max(cdf[0] / 1.05, 1e-4), rel=0.01)
        assert 2 <= len(marks) <= 12 and low <= min(marks) and max(marks) <= high


def test_one_request_and_a_far_limit_have_axes_too(tmp_path: Path) -> None:
    """A single value has marks around it; a limit that all requests meet by far is still drawn."""
    recorder = replay(
        [TraceRequest("r0", 0.0, 50, 8)],
        EngineConfig(scheduler=LIMITS),
        Roofline(load_model("llama-3.1-8b"), load_gpu("h100")),
        CAPACITY,
    )
    write_run(tmp_path / "one", recorder, summarize(recorder), {"slo": "ttft=7"})
    axes = drawn(render([open_run(tmp_path / "one")]), tmp_path)
    assert axes["ttft_s"][1] > 7.0
    for low, high, marks in axes.values():
        assert math.isfinite(low) and low < high
        assert len(set(marks)) == len(marks) >= 2 and low <= min(marks) and max(marks) <= high
        if high < 4 * low:
            steps = [after - before for before, after in pairwise(marks)]
            assert f"{steps[0]:.0e}"[0] in "125", "round steps"
            assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-3)
