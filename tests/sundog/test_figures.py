"""Pictures of several runs in one axis, with daggers at runs that did not settle."""

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sundog
from sundog.library.plots import SweepPlots, cdf_of_runs
from sundog.library.questions import names_of
from sundog.sim.figures.named import Metric
from sundog.sim.figures.sweep.cells import Cell
from tests import warm

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def requests(ttft_s: "np.ndarray[Any, Any]", num_refused: int = 0) -> pa.Table:
    reasons = ["stop"] * (len(ttft_s) - num_refused) + ["refused"] * num_refused
    return pa.table({"ttft_s": ttft_s, "reason": reasons})


def lines_of(plot: Any) -> dict[str, tuple[list[float], list[float]]]:
    axes = plot.figure.axes[0]
    return {line.get_label(): tuple(map(list, line.get_data())) for line in axes.get_lines()}


def test_runs_are_lines_of_one_axis() -> None:
    """By hand: of four requests three answered after 1, 2 and 3 s, the curve ends at three quarters."""
    found = {"a": requests(np.array([3.0, 1.0, 2.0, 9.0]), 1), "b": requests(np.array([4.0, 5.0]))}
    lines = lines_of(cdf_of_runs(found, "ttft_s"))
    assert lines == {"a": ([1.0, 2.0, 3.0], [0.25, 0.5, 0.75]), "b": ([4.0, 5.0], [0.5, 1.0])}
    with pytest.raises(sundog.ConfigError, match="there is no column tftt_s"):
        cdf_of_runs(found, "tftt_s")


def test_a_run_that_did_not_settle_has_a_dagger() -> None:
    """One whose first tokens come later and later; one of equal times has none."""
    rng = np.random.default_rng(0)
    settled, rising = rng.random(200), np.arange(200.0) + rng.random(200)
    plot = cdf_of_runs({"even": requests(settled), "growing": requests(rising)}, "ttft_s")
    assert list(lines_of(plot)) == ["even", "growing †"]
    assert "† did not settle" in plot.svg()
    assert "†" not in cdf_of_runs({"even": requests(settled)}, "ttft_s").svg()


def test_points_of_a_sweep_that_did_not_settle_have_daggers() -> None:
    def cell(rate: int, unsettled: float) -> Cell:
        runs = [{"ttft_s.mean": rate / 10, "output_tokens_per_s": 9.0 * rate, "unsettled": unsettled}] * 2
        return Cell({"rate": rate}, runs)

    metrics = [Metric.parse("ttft_s.mean"), Metric.parse("output_tokens_per_s")]
    for unsettled, num_daggers in ((0.0, 0), (1.0, 1)):
        plots = SweepPlots([cell(1, 0.0), cell(2, unsettled)], metrics, 0.95, "rate")
        texts = [text.get_text() for text in plots.load_curve().figure.axes[0].texts]
        assert texts.count("†") == num_daggers
        (first, second) = (text.get_text() for text in plots.pareto().figure.axes[0].texts)
        assert (first, second) == ("1", "2 †" if unsettled else "2")
        assert ("did not settle" in plots.pareto().svg()) == bool(unsettled)


def test_points_of_several_numbers_say_which_is_which() -> None:
    """`2, 1` may be two replicas of one rank, or one of two."""

    def cell(**settings: Any) -> Cell:
        return Cell(settings, [{"ttft_s.mean": 0.1, "output_tokens_per_s": 9.0}] * 2)

    metrics = [Metric.parse("ttft_s.mean"), Metric.parse("output_tokens_per_s")]
    for settings, title in (
        ({"tensor_parallel_size": 2, "replicas": 1}, "tensor parallel size, replicas"),
        ({"policy": "fcfs", "replicas": 1}, ""),
    ):
        assert (
            SweepPlots([cell(**settings)], metrics, 0.95, None).pareto().figure.axes[0].get_title() == title
        )


def test_runs_are_named_by_what_differs() -> None:
    def run(path: str, **config: Any) -> Any:
        return SimpleNamespace(path=Path(path), config=config)

    policies = [run(f"x/{name}", policy=name, gpu="h100", seed=1) for name in ("fcfs", "mlfq")]
    assert names_of(policies) == ["policy=fcfs", "policy=mlfq"]
    assert names_of([run("x/a", gpu="h100"), run("x/b", gpu="h100")]) == ["a", "b"]
    assert names_of([run("x/a"), run("y/a")]) == ["x/a", "y/a"] and names_of([run("x/a")]) == ["a"]


@pytest.mark.parametrize("ending", [".svg", ".pdf", ".png"])
def test_a_picture_is_written_whole_or_not_at_all(ending: str, tmp_path: Path) -> None:
    """On a disk that is full, the old one stays."""
    path, plot = tmp_path / f"a{ending}", cdf_of_runs({"a": requests(np.arange(1.0, 50.0))}, "ttft_s")
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(sundog.ConfigError, match="cannot write"):
            plot.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]
    plot.save(path)
    assert path.stat().st_size > 2000


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_several_runs_are_drawn_from_a_shell(tmp_path: Path) -> None:
    """A line for each, by the option in which they differ; what is drawn of one folder is refused of two."""
    folders = []
    for name in ("fcfs", "shortest-prompt"):
        folders.append(str(tmp_path / name))
        done = warm.run("sundog", "replay", TRACE, "--limit", "40", "--policy", name, "--out", folders[-1])
        assert done.returncode == 0, done.stderr
    file = tmp_path / "both.svg"
    done = warm.run("sundog", "figure", *folders, "cdf", "--column", "e2e_s", "-o", str(file))
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert "policy=fcfs" in text and "policy=shortest-prompt" in text and "E2E (s)" in text
    assert sundog.figure(folders, "e2e_s").svg() == text
    assert "old" in sundog.figure({"old": folders[0], "new": folders[1]}).svg()
    for kind, further, reason in (
        ("timeline", (), "drawn of one folder"),
        ("cdf", ("--by", "tenant"), "--by is for one run"),
    ):
        done = warm.run("sundog", "figure", *folders, kind, *further, "-o", str(file))
        assert done.returncode == 2 and reason in done.stderr
    with pytest.raises(sundog.ConfigError, match="there is no run"):
        sundog.figure([])
