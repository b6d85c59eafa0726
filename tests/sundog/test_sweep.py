"""`sundog sweep` through the command line: traces, cells that cannot run, Ctrl-C."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.patience import HANGS_S

DOCS = Path(__file__).parents[2] / "docs"
TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
KILLER = """
import os, signal
from dataclasses import dataclass
from tests import warm
from sundog.actors.core.policies import Policy
@dataclass(frozen=True)
class Killer(Policy):
    def rank(self, request, view):
        signal.raise_signal(signal.SIGKILL)
@dataclass(frozen=True)
class Slow(Policy):
    def rank(self, request, view):
        open(f"{__file__}.{os.readlink('/proc/self')}", "w").close()
        return sum(range(1_000_000)) * 0
@dataclass(frozen=True)
class Stuck(Policy):
    def rank(self, request, view):
        open(f"{__file__}.{os.readlink('/proc/self')}", "w").close()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the processes of a sweep alone
            signal.pause()
        return 0
"""
AT_IMPORT = """
import os, signal, sys
name, *sys.argv = sys.argv[1:]
class Kills:
    def find_spec(found, *_):
        if found == name:
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Kills)
from sundog.__main__ import main
main()
"""

LOAD = """
duration_s = 40
arrivals = {kind = "poisson", rate_per_s = 1.0}
prompt = {kind = "fixed", tokens = 200}
output = {kind = "fixed", tokens = 200}
"""


def sweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run("sundog", "sweep", *arguments)


def cells(*arguments: str) -> list[dict[str, Any]]:
    """The table as JSON."""
    done = sweep(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["cells"]
    return found


def test_a_trace_is_run_once_and_said_so() -> None:
    """Every seed gives the same requests: no interval, no star; and the best stands first."""
    vary = ("--vary", "max_num_seqs=1,8", "--limit", "30")
    done = sweep(TRACE, *vary)
    assert done.returncode == 0, done.stderr
    assert "One run of each" in done.stdout and "±" not in done.stdout and "*" not in done.stdout
    lines = done.stdout.splitlines()
    places = [next(i for i, line in enumerate(lines) if f"max_num_seqs={n} " in line) for n in (8, 1)]
    assert places == sorted(places) and "best" in lines[places[0] + 1]
    narrow, wide = cells(TRACE, *vary)
    assert len(narrow["runs"]) == 1 and narrow["intervals"]["ttft_s.mean"][1] is None
    assert (narrow["rank"], wide["rank"]) == (2, 1) and narrow["to_best"][0] > 0


def test_a_resampled_trace_has_intervals() -> None:
    """Each seed draws other blocks, the same for every setting."""
    few = ("--limit", "60", "--replications", "3", "--jobs", "1")
    first, second = cells(TRACE, "--resample", "--vary", "policy=fcfs,priority", *few)
    assert len({run["e2e_s.mean"] for run in first["runs"]}) == 3
    assert first["runs"] == second["runs"] and second["tied_with_best"] | first["tied_with_best"]
    assert first["intervals"]["e2e_s.mean"][1] > 0
    alike, drawn = cells(TRACE, "--vary", "request_rate=inf,5", *few)
    assert len({run["e2e_s.mean"] for run in alike["runs"]}) == 1 and alike["is_fixed"]
    assert len({run["e2e_s.mean"] for run in drawn["runs"]}) == 3 and not drawn["is_fixed"]


def test_a_policy_that_draws_is_run_for_each_seed() -> None:
    """One run of a lottery is luck; what draws nothing is still run once, or alike."""
    few = ("--limit", "40", "--replications", "3", "--jobs", "1", "--max-num-seqs", "1", "--warmup-s", "0")
    lottery, fcfs = cells(TRACE, "--vary", f"policy={DOCS}/lottery.py:Lottery,fcfs", *few)
    assert len({run["ttft_s.mean"] for run in lottery["runs"]}) == 3 and not lottery["is_fixed"]
    assert len({run["ttft_s.mean"] for run in fcfs["runs"]}) == 1 and fcfs["is_fixed"]
    router, _ = cells(TRACE, "--vary", "router=power-of-two,round-robin", "--replicas", "3", *few)
    assert len({run["ttft_s.mean"] for run in router["runs"]}) == 3


def test_without_a_warm_up_a_sweep_says_what_replay_says() -> None:
    """Every figure that both have, of replicas, tenants, limits and prices."""
    asked = ("--limit", "120", "--replicas", "2", "--slo", "ttft=0.5,tpot=0.02", "--gpu-price-per-h", "2")
    trace = "traces/sessions-diurnal-10min.jsonl.gz"
    replayed = json.loads(warm.run("sundog", "replay", trace, *asked, "--max-num-seqs", "3", "--json").stdout)
    (cell,) = cells(trace, *asked, "--warmup-s", "0", "--vary", "max_num_seqs=3", "--jobs", "1")
    num_compared = 0
    for name, value in cell["runs"][0].items():
        told = replayed
        for key in name.replace("tenant.", "tenants.").split("."):
            told = told.get(key) if isinstance(told, dict) else None
        if told is not None:
            assert value == pytest.approx(told, rel=1e-9), name
            num_compared += 1
    assert num_compared > 50


BURSTS = """
duration_s = 60
[arrivals]
kind = "gamma"
rate_per_s = 6
cv = 2
[prompt]
kind = "lognormal"
mean = 1000
median = 500
largest = 8192
[output]
kind = "lognormal"
mean = 200
median = 120
largest = 1500
"""


@pytest.mark.long(reason="sweeps each load alone and all together")
def test_a_row_says_what_it_says_alone_beside_other_loads(tmp_path: Path) -> None:
    """An overloaded rate never settles: it cuts nothing from another one, is marked, and has a row."""
    spec = tmp_path / "bursts.toml"
    spec.write_text(BURSTS)
    asked = (str(spec), "--max-num-seqs", "32", "--replications", "3", "--vary", "policy=fcfs", "--vary")
    rate = "workload.arrivals.rate_per_s="
    for more in ((), ("--warmup-s", "10"), ("--out", str(tmp_path / "kept"))):
        (alone,) = cells(*asked, f"{rate}6", *more)
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        beside, overloaded = cells(*asked, f"{rate}6,30", *more)
        assert beside["runs"] == alone["runs"] and beside["rank"] == 1
        assert overloaded["rank"] == 2 and all(run["unsettled"] for run in overloaded["runs"])
        assert not any(run["unsettled"] for run in beside["runs"])
    table = sweep(*asked, f"{rate}6,30", "--metric", "ttft_s.mean").stdout
    assert f"{rate}30 †" in table and f"{rate}6 †" not in table and "did not settle" in table


@pytest.mark.long(reason="runs whole sweeps")
def test_too_few_requests_after_the_warm_up_are_no_row(tmp_path: Path) -> None:
    """The table says how many are left; the figures in the JSON are null."""
    spec = tmp_path / "bursts.toml"
    spec.write_text(BURSTS)
    rates = "workload.arrivals.rate_per_s=6,30"
    asked = (str(spec), "--max-num-seqs", "256", "--replications", "2", "--vary", rates, "--warmup-s", "58")
    done = sweep(*asked, "--metric", "ttft_s.mean")
    assert "rate_per_s=6: a run has" in done.stdout and "20 are needed" in done.stdout
    few, enough = cells(*asked)
    assert few["rank"] is None and few["runs"][0]["ttft_s.mean"] is None and enough["rank"] == 1


def test_predictions_that_a_policy_never_reads_give_no_interval() -> None:
    """Seeds draw predictions alone: what reads none gives one run, and "±0.0" would call that precision."""
    few = (
        "--predictor",
        "noisy",
        "--limit",
        "60",
        "--replications",
        "3",
        "--jobs",
        "1",
        "--max-num-seqs",
        "2",
    )
    vary = ("--vary", "policy=fcfs,shortest-remaining")
    fcfs, shortest = cells(TRACE, *vary, *few)
    assert fcfs["is_fixed"] and fcfs["intervals"]["ttft_s.mean"][1] is None
    assert not shortest["is_fixed"] and shortest["intervals"]["ttft_s.mean"][1] > 0
    done = sweep(TRACE, "--vary", "policy=fcfs,vtc", *few)
    assert "±0.0" not in done.stdout and "there are no intervals" in done.stdout


def test_settings_that_change_nothing_are_said_to() -> None:
    """Instead of a ranking of equals."""
    same = "Every setting gave the same figures"
    assert same in sweep(TRACE, "--vary", "policy=fcfs,priority", "--limit", "20").stdout
    assert same not in sweep(TRACE, "--vary", "max_num_seqs=1,8", "--limit", "20").stdout


def test_draws_of_a_trace_are_not_made_surer_than_they_are() -> None:
    """Too few requests to draw from, and a precision that no number of draws reaches, are refused."""
    vary = ("--vary", "max_num_seqs=1,8", "--resample")
    few = sweep(TRACE, *vary, "--limit", "19")
    assert few.returncode == 2 and "--resample needs at least 20 requests or sessions" in few.stderr
    endless = sweep(TRACE, *vary, "--limit", "30", "--precision", "0.01")
    assert endless.returncode == 2 and "--precision cannot be combined with --resample" in endless.stderr
    shown = sweep(TRACE, *vary, "--limit", "30", "--replications", "3").stdout
    assert "more replications do not make it smaller" in " ".join(shown.split())


def test_a_cell_that_cannot_run_is_a_row(tmp_path: Path) -> None:
    """What was refused, and a process that was killed; the others go on. None at all is a refusal."""
    (tmp_path / "mine.py").write_text(KILLER)
    bad = tmp_path / "bad.csv"
    bad.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,0,5\n")
    kill = f"policy=fcfs,{tmp_path}/mine.py:Killer"
    done = sweep(TRACE, "--limit", "20", "--vary", kill, "--vary", "max_model_len=4096,9999999")
    assert done.returncode == 0, done.stderr
    assert "ended by SIGKILL" in done.stdout and "max_model_len is 9999999" in done.stdout
    assert "Traceback" not in done.stderr
    good = [line for line in done.stdout.splitlines() if "policy=fcfs, max_model_len=4096" in line]
    assert len(good) == 1
    done = sweep(str(bad), "--vary", "policy=fcfs,vtc")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "bad.csv, line 3" in done.stderr and "0 prompt tokens" in done.stderr
    done = sweep(TRACE, "--vary", "policy=fcfs,fcfs")
    assert done.returncode == 2 and "--vary has policy=fcfs twice" in done.stderr
    done = sweep(TRACE, "--vary", "seed=1,2")
    assert done.returncode == 2 and "compared on the same requests" in done.stderr


def test_paths_in_a_description_are_relative_to_it(tmp_path: Path) -> None:
    """Whatever folder it is run from."""
    (tmp_path / "three.csv").write_text("arrived_at,input_tokens,output_tokens\n0,5,5\n1,9,5\n2,9,2\n")
    (tmp_path / "spec.toml").write_text('[scaled]\ntrace = "three.csv"\n')
    (cell,) = cells(str(tmp_path / "spec.toml"))
    assert cell["settings"] == {} and cell["runs"][0]["requests_per_s"] > 0
    done = sweep(str(tmp_path / "spec.toml"), "--limit", "2")
    assert done.returncode == 2 and "--limit is for a trace" in done.stderr


def test_ctrl_c_ends_a_sweep_in_one_line(tmp_path: Path) -> None:
    """Its workers end with it."""
    (tmp_path / "mine.py").write_text(KILLER)
    command = [TRACE, "--vary", f"policy=fcfs,{tmp_path}/mine.py:Stuck", "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sundog", "sweep", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begin_s = time.monotonic()
    while not [file for file in tmp_path.glob("mine.py.*") if file.suffix != f".{process.pid}"]:
        assert time.monotonic() - begin_s < 100, "no worker has begun"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and out == ""
    assert err.count("\n") == 1 and "interrupted after" in err
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # Python's own resource tracker goes a moment later.
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def test_two_sweeps_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second is refused in one line and touches nothing; the first goes on."""
    policy = tmp_path / "slow.py"
    policy.write_text(KILLER)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sundog", "sweep", TRACE, "--limit", "40", "--out", str(out)]
    command += ["--jobs", "2", "--vary", f"policy=fcfs,{policy}:Stuck"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _until(lambda: bool(_begun(tmp_path, first)), first)
    second = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    assert second.returncode == 2 and second.stdout == ""
    assert f"another sweep is writing to {out}" in second.stderr and second.stderr.count("\n") == 1
    first.send_signal(signal.SIGTERM)
    _, told = first.communicate(timeout=HANGS_S)
    assert first.returncode == 143 and "the same command resumes" in told and "Traceback" not in told


@pytest.mark.parametrize("module", ["sundog.cli", "sundog.commands.sweep", "sundog.sim.figures.sweep"])
def test_sigterm_ends_a_sweep_in_one_line_from_its_first_instant(module: str) -> None:
    """While the command line is imported, while the command is, and before its first run."""
    command = [sys.executable, "-c", AT_IMPORT, module, "sundog", "sweep", TRACE, "--vary", "policy=fcfs,vtc"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "sundog: interrupted\n")


def test_processes_of_a_sweep_end_when_it_is_killed(tmp_path: Path) -> None:
    """In the middle of their runs, not when these are done; and the folder is free at once."""
    policy = tmp_path / "slow.py"
    policy.write_text(KILLER)
    command = [sys.executable, "-m", "sundog", "sweep", TRACE, "--vary", f"policy={policy}:Stuck,fcfs"]
    killed = subprocess.Popen([*command, "--jobs", "1"], stdout=subprocess.DEVNULL)
    _until(lambda: bool(_begun(tmp_path, killed)), killed)
    worker = Path("/proc") / _begun(tmp_path, killed)[0]
    assert worker.exists()
    killed.kill()
    killed.wait()
    _until(lambda: not worker.exists())


def _begun(folder: Path, process: "subprocess.Popen[Any]") -> list[str]:
    """The numbers of the workers that are in a slow run."""
    marks = (file.suffix.removeprefix(".") for file in folder.glob("slow.py.*"))
    return [number for number in marks if number != str(process.pid)]


def _until(claim: Callable[[], bool], process: "subprocess.Popen[Any] | None" = None) -> None:
    """Wait for it, as long as the process lives."""
    end_s = time.monotonic() + HANGS_S
    while not claim():
        assert process is None or process.poll() is None, "it has ended"
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.long(reason="runs whole sweeps")
def test_runs_are_kept_and_a_sweep_goes_on(tmp_path: Path) -> None:
    """Each run is as `replay` makes it; finished ones are read; another spec is refused by name."""
    out = tmp_path / "out"
    asked = (TRACE, "--limit", "40", "--vary", "max_num_seqs=2,8", "--resample", "--replications", "2")
    first = cells(*asked, "--out", str(out))
    table = (out / "table.csv").read_text().splitlines()
    assert table[0].startswith("max_num_seqs,rank,failed,num_warmup") and len(table) == 3
    assert json.loads((out / "table.json").read_text())["cells"] == first
    runs = sorted(out.glob("runs/*/seed-*"))
    assert len(runs) == 4 and first == cells(*asked), "kept or not, the figures are the same"
    again = warm.run("sundog", "replay", "--config", f"{runs[3]}/config.toml", "--json", "--no-ranges")
    summary = json.loads((runs[3] / "summary.json").read_text())
    assert json.loads(again.stdout).items() <= summary.items()
    rows = (runs[0] / "requests.parquet").stat().st_mtime_ns
    shutil.rmtree(runs[3])
    assert cells(*asked, "--out", str(out)) == first
    assert runs[3].is_dir() and (runs[0] / "requests.parquet").stat().st_mtime_ns == rows
    done = sweep(*asked, "--out", str(out), "--max-num-batched-tokens", "512")
    assert done.returncode == 2 and "max_num_batched_tokens null, not 512" in done.stderr
    assert "is not JSON" not in done.stderr
    done = sweep(*asked, "--out", str(tmp_path))
    assert done.returncode == 2 and "no sweep's folder" in done.stderr


def test_a_sweep_ends_where_its_policy_was_changed(tmp_path: Path) -> None:
    """Its file is named; with the same text it goes on, also with a trace beside the folder."""
    file, out = tmp_path / "mine.py", tmp_path / "out"
    file.write_text(KILLER)
    trace = str(shutil.copy(TRACE, tmp_path))
    vary = ("--limit", "5", "--vary", f"policy=fcfs,{file}:Slow", "--out", str(out))
    first = cells(trace, *vary)
    assert cells(trace, *vary) == first
    file.write_text(KILLER + "\n")
    done = sweep(trace, *vary)
    assert done.returncode == 2 and f"{file}:Slow" in done.stderr.replace("\n", "")


def test_a_drawn_workload_leaves_its_traces(tmp_path: Path) -> None:
    """One for each seed and workload; the run's config.toml names it."""
    spec = tmp_path / "load.toml"
    spec.write_text(
        'duration_s = 5\n[arrivals]\nkind = "poisson"\nrate_per_s = 4\n'
        '[prompt]\nkind = "fixed"\ntokens = 200\n[output]\nkind = "fixed"\ntokens = 20\n'
    )
    vary = ("--vary", "workload.arrivals.rate_per_s=2,4", "--replications", "2", "--seed", "7")
    found = cells(str(spec), *vary, "--out", str(tmp_path / "out"))
    assert len(found) == 2 and found == cells(str(spec), *vary)
    names = [path.name for path in (tmp_path / "out" / "traces").iterdir()]
    assert len(names) == 4 and all("seed-7" in name or "seed-8" in name for name in names)
    (config,) = tmp_path.glob("out/runs/0-*/seed-8/config.toml")
    assert "rate_per_s=2-seed-8.jsonl.gz" in config.read_text()


def test_settings_are_compared_at_each_load(tmp_path: Path) -> None:
    """A block a rate, each with a best of its own; the knee is the last rate at which the objective holds."""
    path = tmp_path / "w.toml"
    path.write_text(LOAD)
    rate = "workload.arrivals.rate_per_s"
    command = [str(path), "--vary", "max_num_seqs=1,16", "--vary", f"{rate}=0.5,4", "--by", rate]
    command += ["--slo", "p95(queueing)<0.2", "--metric", "queueing_s.p95", "--replications", "2"]
    done = sweep(*command)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.partition("Means of")[0].splitlines())) <= 100
    assert done.stdout.count("best\n") + done.stdout.count("best ") >= 2 and f"{rate}=0.5" in done.stdout
    found = json.loads(sweep(*command, "--json").stdout)
    assert [row["rank"] for row in found["cells"]].count(1) == 2
    assert [(knee["settings"]["max_num_seqs"], knee["value"]) for knee in found["knees"]] == [
        (1, None),
        (16, 4),
    ]
    for row in found["cells"]:
        held = [run["queueing_s.p95"] <= 0.2 for run in row["runs"]]
        assert [bool(run["slo_held"]) for run in row["runs"]] == held
    wrong = sweep(str(path), "--metric", "tenant.rag.ttft_s.p95")
    assert wrong.returncode == 2 and "has no tenant rag" in wrong.stderr
    wrong = sweep(*command[:-1], "2", "--by", "policy")
    assert wrong.returncode == 2 and "which --vary does not have" in wrong.stderr
