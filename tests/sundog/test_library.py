"""Sundog's Python API: figures, options and refusals equal the command line's; tables and plots."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import pytest
import trio

import sundog
from sundog.actors.core.policies import Policy
from sundog.actors.core.policies.guard import PolicyError
from sundog.actors.core.routers import RouterPolicy
from tests import warm
from tests.patience import HANGS_S
from tests.test_layers import ROOT

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
SPEC = """
duration_s = 20
arrivals = {kind = "poisson", rate_per_s = 4}
prompt = {kind = "fixed", tokens = 400}
output = {kind = "uniform", smallest = 10, largest = 100}
"""
RATE = "workload.arrivals.rate_per_s"


class Longest(Policy):
    """The longest prompt first."""

    def rank(self, request, view):  # type: ignore[no-untyped-def]
        return -request.submit.num_prompt_tokens


class Wrong(Policy):
    """A policy that reads what there is not."""

    def rank(self, request, view):  # type: ignore[no-untyped-def]
        return request.length


class First(RouterPolicy):
    """Everything to the first replica."""

    def score(self, request, replica, fleet):  # type: ignore[no-untyped-def]
        return replica


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "w.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def swept(spec: Path) -> sundog.SweepResult:
    vary = {"max_num_seqs": [1, 16], RATE: [1, 4]}
    return sundog.sweep(
        spec, vary=vary, by=RATE, replications=2, metrics=["ttft_s.p95", "output_tokens_per_s"]
    )


def test_a_replay_gives_the_figures_of_the_command(tmp_path: Path) -> None:
    """Byte for byte, and the run that it writes is one that the other commands read."""
    options = {"limit": 60, "max_num_seqs": 4, "policy": "shortest-prompt", "slo": "p95(ttft)<1"}
    run = sundog.replay(TRACE, out=tmp_path / "run", **options)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = warm.run("sundog", "replay", TRACE, *words, "--json")
    assert run.figures == json.loads(done.stdout)
    assert run.requests.num_rows == 60 and run.steps.num_rows == run.figures["num_steps"]
    found = {row["figure"]: row["value"] for row in run.summary.to_pylist()}
    assert found["ttft_s.p99"] == run.figures["ttft_s"]["p99"]
    assert sundog.read(tmp_path / "run").requests.equals(run.requests)
    explained = warm.run("sundog", "explain", str(tmp_path / "run"))
    assert explained.returncode == 0, explained.stderr


def test_a_policy_and_a_router_are_objects_or_classes() -> None:
    """They decide; a class that is neither is refused, and one that fails says so in one line."""
    common = {"limit": 60, "max_num_seqs": 1}
    shortest = sundog.replay(TRACE, policy="shortest-prompt", **common).figures["queueing_s"]["mean"]
    for policy in (Longest, Longest()):
        assert sundog.replay(TRACE, policy=policy, **common).figures["queueing_s"]["mean"] > shortest
    run = sundog.replay(TRACE, router=First(), replicas=2, **common)
    assert {*run.requests["replica"].to_pylist()} == {0} or {*run.requests["replica"].to_pylist()} == {1}
    with pytest.raises(sundog.ConfigError, match="inherit from"):
        sundog.replay(TRACE, policy=First(), **common)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="policy Wrong: rank of r0000000"):
        sundog.replay(TRACE, policy=Wrong, **common)


def test_it_works_where_a_loop_runs_already() -> None:
    """In a notebook asyncio runs, in our own tests Trio does."""
    alone = sundog.replay(TRACE, limit=20).figures

    async def inside() -> dict[str, object]:
        return sundog.replay(TRACE, limit=20).figures

    assert asyncio.run(inside()) == alone == trio.run(inside)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_num_seq": 3}, "no option max_num_seq. Did you mean max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0: give a whole number"),
        ({"slo": "p95(ttft)"}, "objective"),
        ({"policy": "fcsf"}, "Did you mean"),
        ({"gpu": "h1000"}, "Did you mean"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, object], reason: str) -> None:
    """As on the command line."""
    with pytest.raises(sundog.ConfigError, match=reason):
        sundog.replay(TRACE, **options)  # type: ignore[arg-type]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_has_a_row_for_each_setting(swept: sundog.SweepResult, spec: Path) -> None:
    """The intervals that the command prints, ranked at each rate; every run has its figures."""
    rows = swept.table.to_pylist()
    assert [row["rank"] for row in rows if row[RATE] == 4 and row["max_num_seqs"] == 16] == [1]
    assert sorted(row["rank"] for row in rows) == [1, 1, 2, 2]
    done = warm.run(
        *("sundog", "sweep", str(spec), "--vary", "max_num_seqs=1,16", "--vary", f"{RATE}=1,4", "--by", RATE),
        *("--replications", "2", "--metric", "ttft_s.p95", "--metric", "output_tokens_per_s", "--json"),
    )
    for row, cell in zip(rows, json.loads(done.stdout)["cells"], strict=True):
        assert [row["ttft_s.p95"], row["ttft_s.p95 ±"]] == cell["intervals"]["ttft_s.p95"]
    assert swept.runs.num_rows == 8 and "tpot_s.p99" in swept.runs.column_names
    assert "best by ttft_s.p95" in repr(swept) and "<table>" in swept._repr_html_()
    for wrong in ({"vary": {"max_num_seq": [1]}}, {"vary": {}, "by": RATE}, {"vary": {}, "metrics": []}):
        with pytest.raises(sundog.ConfigError):
            sundog.sweep(spec, **wrong)  # type: ignore[arg-type]


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_plan_from_python(spec: Path) -> None:
    """The cheapest fleet, with prices as a mapping."""
    found = sundog.plan(
        spec, slo="p95(ttft)<1", gpus=["h100", "l40s"], prices={"h100": 9, "l40s": 1}, replications=2
    )
    assert found.winner is not None and found.winner["settings"]["gpu"] == "l40s"
    assert found.candidates.num_rows == 8 and "l40s" in repr(found)
    with pytest.raises(sundog.ConfigError, match="none for l40s"):
        sundog.plan(spec, slo="p95(ttft)<1", gpus=["l40s"], prices={"h100": 9})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"prices": {"h100": -1}}, "prices: h100 is -1: give the price"),
        ({"prices": {"h100": "cheap"}}, "prices: h100 is 'cheap': give the price"),
        ({"gpu": "b200"}, "name them in gpus"),
        ({"gpus": "h100,h1000"}, "Did you mean h100?"),
        ({"gpus": []}, "gpus is empty"),
        ({"confidence": 95}, "confidence is 95"),
        ({"replications": 0}, "replications is 0"),
        (
            {"vary": {"max_num_seq": [1]}},
            "vary has max_num_seq, which is no option. Did you mean max_num_seqs?",
        ),
        ({"vary": {"max_num_seqs": ["few"]}}, "max_num_seqs is 'few'"),
        ({"vary": {"max_num_seqs": []}}, "give a list of values to try"),
        ({"vary": {"max_num_seqs": 4}}, "give a list of values to try"),
        ({"vary": {"max_num_seqs": "4,8"}}, "give a list of values to try"),
        ({"vary": ["max_num_seqs=4,8"]}, "map names to values"),
        (
            {"vary": {"max_num_seqs": [4, 8]}, "max_num_seqs": 3},
            "max_num_seqs is given, and vary has it, too",
        ),
    ],
)
def test_a_question_that_a_command_would_refuse_is_refused(
    spec: Path, given: dict[str, Any], reason: str
) -> None:
    """A sweep checks what it shares with a plan by the same lines."""
    with pytest.raises(sundog.ConfigError, match=re.escape(reason)):
        sundog.plan(spec, slo="p95(ttft)<1", **given)
    if not given.keys() & {"prices", "gpu", "gpus"}:
        with pytest.raises(sundog.ConfigError, match=re.escape(reason)):
            sundog.sweep(spec, **{"vary": {"max_num_seqs": [1]}, **given})


DESCRIBED = {
    "duration_s": 10,
    "arrivals": {"kind": "gamma", "rate_per_s": 2, "cv": 0},
    "prompt": {"kind": "fixed", "tokens": 100},
    "output": {"kind": "fixed", "tokens": 20},
}
WHOLE = str(ROOT / TRACE)
PATHS: dict[str, Callable[[Any], object]] = {
    "out of replay": lambda path: sundog.replay(WHOLE, gpu="h100", limit=1, out=path),
    "out of workload": lambda path: sundog.workload(DESCRIBED, out=path),
    "out of trace": lambda path: sundog.trace(WHOLE, limit=1, out=path),
    "out of calibrate": lambda path: sundog.calibrate(WHOLE, out=path),
    "out of walk": lambda path: sundog.walk("run", "r0", out=path),
    "out of plan": lambda path: sundog.plan(WHOLE, slo="p95(ttft)<1", limit=1, out=path),
    "prices of plan": lambda path: sundog.plan(WHOLE, slo="p95(ttft)<1", prices=path),
    "source of plan": lambda path: sundog.plan(path, slo="p95(ttft)<1"),
    "source of sweep": lambda path: sundog.sweep(path, vary={"max_num_seqs": [1]}),
    "source of capacity": lambda path: sundog.capacity(path, slo="p95(ttft)<1"),
    "a trace of trace": sundog.trace,
    "a source of calibrate": lambda path: sundog.calibrate(path, out="cost.toml"),
    "spec of workload": sundog.workload,
    "folder of read": sundog.read,
    "run of explain": sundog.explain,
    "run of walk": lambda path: sundog.walk(path, "r0"),
    "first of compare": lambda path: sundog.compare(path, "run"),
    "second of compare": lambda path: sundog.compare(Path(__file__).parent, path),
    "a run of figure": lambda path: sundog.figure([path]),
}


@pytest.mark.parametrize("wrong", [5, True, "", b"run", ["run"], [{"arrival_s": 0.0}]], ids=repr)
@pytest.mark.parametrize("which", PATHS)
def test_what_is_no_path_is_refused_by_the_argument(
    which: str, wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder called `5` had been made of it, and rows had been read as the name of a file."""
    if which == "second of compare":
        sundog.replay(WHOLE, gpu="h100", limit=1, out=tmp_path / "run")
        monkeypatch.setitem(PATHS, which, lambda path: sundog.compare(tmp_path / "run", path))
    monkeypatch.chdir(tmp_path)
    before = {*Path().iterdir()}
    name = which.rpartition(" of ")[0]
    said = re.escape(f"{name} is ") + "(of type .*: give a path, as a text or a Path|empty: give a path)"
    with pytest.raises(sundog.ConfigError, match=said):
        PATHS[which](wrong)
    assert {*Path().iterdir()} == before


def test_other_arguments_are_refused_by_name(tmp_path: Path) -> None:
    sundog.replay(TRACE, gpu="h100", limit=2, out=tmp_path / "run")
    for wrong in (5, True, ["r0"]):
        with pytest.raises(sundog.ConfigError, match="request_id is .*give a request's name"):
            sundog.explain(tmp_path / "run", request_id=wrong)  # type: ignore[arg-type]
    for seed in (-1, 1.5, "high"):
        with pytest.raises(sundog.ConfigError, match="seed is "):
            sundog.workload(DESCRIBED, seed=seed)  # type: ignore[arg-type]


def test_one_run_is_drawn_as_several_are(tmp_path: Path) -> None:
    """Its folder had been read as the names of six runs."""
    pytest.importorskip("matplotlib")
    run = sundog.replay(TRACE, gpu="h100", limit=20, out=tmp_path / "folder")
    svgs = {sundog.figure(runs, "e2e_s")._repr_svg_() for runs in (run, str(run.folder), [run])}
    assert len(svgs) == 1


def test_an_error_has_no_other_before_it() -> None:
    """In a notebook each is printed with those before it: that no loop runs is none."""
    with pytest.raises(sundog.ConfigError) as raised:
        sundog.replay(TRACE, gpu="h100", policy="sjf")
    assert raised.value.__context__ is None


@pytest.mark.long(reason="draws every figure twice")
def test_pictures_are_vectors_and_the_same_each_time(swept: sundog.SweepResult, tmp_path: Path) -> None:
    """Each kind, as SVG, PDF and PNG; the axes name their units."""
    run = sundog.replay(TRACE, limit=60, max_num_seqs=2)
    plots = {
        "cdf": (run.plot.cdf("ttft_s"), "TTFT (s)"),
        "timeline": (run.plot.timeline(), "time (s)"),
        "load": (swept.plot.load_curve(), "TTFT p95 (ms)"),
        "pareto": (swept.plot.pareto(), "output tokens/s"),
    }
    for name, (plot, label) in plots.items():
        for suffix in ("svg", "pdf", "png"):
            plot.save(tmp_path / f"{name}.{suffix}")
        text = (tmp_path / f"{name}.svg").read_text()
        ElementTree.fromstring(text)
        assert label in text and plot._repr_svg_() == plot._repr_svg_()
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(sundog.ConfigError, match="name it"):
        run.plot.cdf().save(tmp_path / "x.jpeg")
    with pytest.raises(sundog.ConfigError, match="there is no column"):
        run.plot.cdf("tftt_s")
    with pytest.raises(sundog.ConfigError, match="the sweep has no"):
        swept.plot.load_curve("tpot_s.mean")


@pytest.mark.long(reason="draws every figure")
def test_figures_are_drawn_from_a_shell(spec: Path, tmp_path: Path) -> None:
    """Of a run's folder and of a sweep's, which is read back as `sundog.sweep` gives it."""
    words = ["--vary", "max_num_seqs=1,16", "--vary", f"{RATE}=1,4", "--by", RATE, "--replications", "2"]
    done = warm.run("sundog", "sweep", str(spec), *words, "--metric", "ttft_s.p95", "-o", str(tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    swept = sundog.read(tmp_path / "s")
    assert isinstance(swept, sundog.SweepResult)
    made = sundog.sweep(
        spec, vary={"max_num_seqs": [1, 16], RATE: [1, 4]}, by=RATE, replications=2, metrics=["ttft_s.p95"]
    )
    names = made.table.column_names
    assert swept.table.select(names).to_pylist() == made.table.to_pylist()
    sundog.replay(TRACE, limit=30, out=tmp_path / "r")
    for folder, kind, further in (
        ("s", "load-curve", ["--metric", "tpot_s.mean"]),
        ("s", "pareto", ["--metric", "ttft_s.p95", "--metric", "output_tokens_per_s"]),
        ("r", "cdf", ["--column", "e2e_s"]),
        ("r", "timeline", []),
    ):
        out = tmp_path / f"{kind}.svg"
        done = warm.run("sundog", "figure", str(tmp_path / folder), kind, "-o", str(out), *further)
        assert done.returncode == 0, done.stderr
        ElementTree.fromstring(out.read_text())
    refused = [("s", "cdf", "is a sweep"), ("r", "pareto", "is a run"), ("x", "cdf", "does not exist")]
    for folder, kind, reason in refused:
        done = warm.run("sundog", "figure", str(tmp_path / folder), kind, "-o", str(tmp_path / "x.svg"))
        assert done.returncode == 2 and reason in done.stderr, done.stderr
    done = warm.run("sundog", "figure", str(tmp_path / "r"), "cdf", "-o", "x.svg", "--metric", "ttft_s.p95")
    assert done.returncode == 2 and "--metric is for load-curve and pareto" in done.stderr, done.stderr


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@pytest.mark.wall_clock
def test_a_server_lasts_as_long_as_its_with() -> None:
    """An emulated one, whose URL a test asks; what is wrong is refused as the command refuses it."""
    body = json.dumps({"prompt": "Hi", "max_tokens": 3}).encode()
    with sundog.serve("llama-3.1-8b", gpu="h100", max_num_seqs=8, time_scale=0.1) as url:
        asked = Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        with urlopen(asked, timeout=HANGS_S) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3
    with pytest.raises(URLError):
        urlopen(f"{url}/health", timeout=HANGS_S)
    with pytest.raises(sundog.ConfigError, match="unknown model 'nope'"), sundog.serve("nope", gpu="h100"):
        pass
    with pytest.raises(sundog.ConfigError, match="Did you mean max_num_seqs"), sundog.serve(max_num_sqs=8):
        pass
    with pytest.raises(sundog.ConfigError, match="port cannot be set"), sundog.serve(port=1):
        pass


def test_importing_sundog_is_cheap_and_lists_its_names() -> None:
    """Commands import the package, too: nothing of the library comes with it."""
    script = "import sys, sundog; print('numpy' in sys.modules, 'trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert {"replay", "sweep", "plan", "read"} <= {*dir(sundog)}
    with pytest.raises(AttributeError):
        _ = sundog.nothing


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_script_that_is_read_by_its_own_processes_is_told_so(tmp_path: Path) -> None:
    """In one line, and by no figures that are not."""
    (file := tmp_path / "script.py").write_text(
        f"import sundog\nsundog.sweep({TRACE!r}, vary={{'policy': ['fcfs', 'vtc']}}, limit=9)\n"
    )
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1, done.stderr
    assert 'put its work below `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def test_a_sweep_knows_the_recompute_tax_of_a_run() -> None:
    """Tokens computed again, for each token of prompts and answers; a trace is one run."""
    options: dict[str, Any] = {"num_gpu_blocks": 320, "max_model_len": 5000, "step_scale": 4, "limit": 60}
    found = sundog.sweep(
        TRACE, vary={"victim": ["policy"]}, metrics=["recompute_tax"], warmup_s=0, jobs=1, **options
    )
    figures = sundog.replay(TRACE, **options).figures
    assert figures["recomputed_tokens"] > 0
    tax = figures["recomputed_tokens"] / (figures["prompt_tokens"] + figures["output_tokens"])
    assert found.rows[0]["recompute_tax"] == pytest.approx(tax)
