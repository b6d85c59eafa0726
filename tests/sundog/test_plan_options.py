"""`sundog plan`: options, output and kept files, through the command line."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.planning.trial import FleetTrial, TrialRunner
from sundog.sim.show.words import steps_within
from sundog.sweeps.cell import Plan
from sundog.sweeps.source import workload_of
from tests import warm
from tests.patience import HANGS_S

SPEC = """
duration_s = 40
arrivals = {kind = "on-off", on_rate_per_s = 120, mean_on_s = 5, mean_off_s = 15}
prompt = {kind = "fixed", tokens = 1000}
output = {kind = "fixed", tokens = 60}
"""
SLO = "p90(ttft)<0.3"
FEW = ("--gpu", "l40s", "-tp", "1", "--max-gpus", "16", "--slo", SLO, "--replications", "1", "--jobs", "1")
FEW += ("--no-pools", "--judge-s", "0")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "bursts.toml"
    path.write_text(SPEC)
    return path


def plan(*arguments: object) -> subprocess.CompletedProcess[str]:
    return warm.run("sundog", "plan", *map(str, arguments))


def runner(spec: Path, **target: str) -> TrialRunner:
    options = TargetOptions(**target), LoadOptions(), TermsOptions(slo=SLO)
    return TrialRunner(Plan(workload_of(str(spec), ReadingOptions()), str(spec), EngineOptions(), *options))


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_a_fleet_that_is_asked_for_is_the_only_one_that_is_tried(spec: Path) -> None:
    """`-tp 1` is the default of a server, and asked for all the same; its commands name what was asked."""
    done = plan(spec, *FEW, "--max-num-seqs", "32", "--max-model-len", "8000", "--no-tune", "--json")
    found = json.loads(done.stdout)
    assert {each["settings"]["tensor_parallel_size"] for each in found["candidates"]} == {1}
    shown = plan(spec, *FEW, "--max-num-seqs", "32", "--max-model-len", "8000", "--no-tune").stdout
    lines = [line.strip() for line in shown.splitlines()]
    (again,) = (shlex.split(line) for line in lines if line.startswith("sundog "))
    (served,) = (line.partition("  #")[0] for line in lines if line.startswith("vllm serve"))
    for words in (again, shlex.split(served)):
        assert words[words.index("--max-num-seqs") + 1] == "32"
        assert words[words.index("--max-model-len") + 1] == "8000"
    figures = json.loads(warm.run(*again, "--replications", "2", "--warmup-s", "0", "--json").stdout)
    assert figures["cells"][0]["runs"][0]["slo_held"] == 1


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_a_fleet_that_survives_holds_without_the_replicas_that_may_be_lost(spec: Path) -> None:
    """It has one more than the fleet that holds, and its commands simulate that."""
    one = json.loads(plan(spec, *FEW, "--no-tune", "--json").stdout)["winner"]
    done = plan(spec, *FEW, "--no-tune", "--survive", "1", "--json")
    found = json.loads(done.stdout)
    assert found["spare_replicas"] == 1 and found["winner"]["replicas"] == one["replicas"] + 1
    assert found["winner"]["cost_per_h"] == found["winner"]["gpus"] == one["gpus"] + 1
    table = plan(spec, *FEW, "--no-tune", "--survive", "1").stdout
    assert f"Buy {one['replicas'] + 1} x l40s" in table and f"--replicas {one['replicas'] + 1}" in table
    assert "It meets the objectives with 1 of these replicas down" in table


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("-tp", "8", "--max-gpus", "8", "--survive", "1"), "takes more GPUs for 2 replicas"),
        (("--gpu", "h1000,l40s"), "Did you mean h100?"),
        (("--gpu", "h100,"), "names an empty GPU"),
        (("--vary", "workload.duration_s=1,2"), "a plan has one workload"),
        (("-tp", "8", "--max-gpus", "4"), "--max-gpus is 4"),
        (("--prices", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("--on", "here"), "--on is here"),
        (("--gpu", "h100", "--vary", "gpu=b200"), "--gpu is given, and --vary has gpu, too"),
        (("--vary", "seed=1,2"), "compared on the same requests"),
    ],
)
def test_what_is_wrong_is_said_before_any_trial(spec: Path, words: tuple[str, ...], reason: str) -> None:
    """In one line, whatever else stands beside it."""
    done = plan(spec, "--slo", SLO, *words)
    assert done.returncode == 2 and reason in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SPEC.replace("duration_s = 40", "duration_s = 0"), "duration_s is 0.0: it must be above 0"),
        (SPEC.replace("on_rate_per_s", "rate"), "there is no such key"),
        (SPEC.replace("= 120", "= 0.00001"), "gives no request with seed 0"),
    ],
)
def test_traffic_that_cannot_be_is_refused(spec: Path, text: str, reason: str) -> None:
    """It is no property of a machine, and no plan."""
    spec.write_text(text)
    for command in ("plan", "capacity"):
        done = warm.run("sundog", command, str(spec), "--slo", SLO, "--jobs", "1")
        assert done.returncode == 2 and reason in done.stderr and not done.stdout, done.stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_request_that_every_fleet_refuses_is_named(tmp_path: Path) -> None:
    """It misses no limit: its prompt is longer than the model's context."""
    trace = tmp_path / "long.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1,1000000,10\n")
    reason = "1 request refused: This model's maximum context length is 131072"
    assert f"no number works: {reason}" in " ".join(plan(trace, *FEW[2:], "--gpu", "h100").stdout.split())
    done = warm.run("sundog", "capacity", str(trace), "--slo", SLO)
    assert done.returncode == 2 and f"no load holds: {reason}" in done.stderr


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_a_load_that_was_not_reached_is_no_limit(tmp_path: Path) -> None:
    """The search ends at 64 times the load, and says so; one instant is no load."""
    trace = tmp_path / "few.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1,100,10\n")
    words = ("--slo", SLO, "--jobs", "1")
    assert "even at 64.00 times this load" in plan(trace, *words, "-tp", "1").stdout
    done = warm.run("sundog", "capacity", str(trace), *words)
    assert "met even at 128 requests/s, 64 times this load" in done.stdout
    assert json.loads(warm.run("sundog", "capacity", str(trace), *words, "--json").stdout)["is_most_tried"]
    trace.write_text(trace.read_text().replace("\n1,", "\n0,"))
    assert "Headroom" not in plan(trace, *words, "-tp", "1").stdout
    done = warm.run("sundog", "capacity", str(trace), *words)
    assert done.returncode == 2 and "the load cannot be raised" in done.stderr


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_context_that_does_not_fit_is_that_of_the_traffic(spec: Path) -> None:
    """An L4 lacks the memory for the model's whole context: it is given what requests need, in 1024s."""
    found = json.loads(plan(spec, *FEW[2:], "--gpu", "l4", "--no-tune", "--json").stdout)
    assert found["candidates"][0]["settings"]["max_model_len"] == 2048
    assert found["candidates"][0]["refused"] is None


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_no_number_of_replicas_helps_a_request_that_is_too_slow_alone(spec: Path) -> None:
    """It is known after two trials, and said."""
    done = plan(spec, *FEW, "--slo", "p90(ttft)<0.01")
    assert "no number works: even a request alone misses p90(ttft)<0.01" in " ".join(done.stdout.split())
    found = json.loads(plan(spec, *FEW, "--slo", "p90(ttft)<0.01", "--json").stdout)
    assert found["winner"] is None and found["candidates"][0]["is_hopeless"]
    assert found["candidates"][0]["trials"] == 1


def test_a_lost_trial_ends_when_only_its_queue_is_left(tmp_path: Path) -> None:
    """All requests arrive at once: what is lost is known after the last arrival, long before the last end."""
    path = tmp_path / "flood.toml"
    path.write_text(SPEC.replace("120, mean_on_s", "4000, mean_on_s").replace("= 40\n", "= 1\n"))
    run = runner(path, gpu="l40s")
    early, whole = (run.trial(FleetTrial({}, 1, to_the_end=end)) for end in (False, True))
    assert not early.is_held and not whole.is_held
    assert early.share < 0.9 and whole.share == 1


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_an_autoscaler_is_bounded_by_its_windows(spec: Path) -> None:
    """Windows of bursts need more replicas than windows without; none needs more than the whole fleet."""
    found = json.loads(plan(spec, *FEW, "--resize-s", "5", "--no-tune", "--json").stdout)
    bound, winner = found["autoscaler"], found["winner"]
    assert len(bound["replicas"]) == 7 and max(bound["replicas"]) <= winner["replicas"]
    assert min(bound["replicas"]) == 0 < max(bound["replicas"])
    assert 0 < bound["gpu_hours"] < bound["gpu_hours_of_winner"]
    assert "A perfect autoscaler" in plan(spec, *FEW, "--resize-s", "5", "--no-tune").stdout
    assert json.loads(plan(spec, *FEW, "--no-tune", "--json").stdout)["autoscaler"] is None


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_settings_are_tuned_where_that_saves_a_replica(spec: Path) -> None:
    """Unless the question names them; the JSON says what was tried."""
    found = json.loads(plan(spec, *FEW, "--max-num-seqs", "32", "--json").stdout)
    assert list(found["tuned"]) == ["max_num_batched_tokens", "router"]
    assert json.loads(plan(spec, *FEW, "--no-tune", "--json").stdout)["tuned"] == {}


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_manifests_say_what_the_plan_says(spec: Path, tmp_path: Path) -> None:
    """In all formats: replicas, ranks, GPUs and the options of vLLM."""
    import yaml

    files = tmp_path / "k8s.yaml", tmp_path / "llmd.yaml"
    words = ("--manifest", files[0], "--llm-d", files[1], "--max-num-seqs", "32", "--policy", "priority")
    words += ("--kustomize", tmp_path / "llm-d" / "base", "--dynamo", tmp_path / "graph.yaml")
    done = plan(spec, *FEW, "--no-tune", *words, "--json")
    winner = json.loads(done.stdout)["winner"]
    deployment, service = yaml.safe_load_all(files[0].read_text())
    values = yaml.safe_load(files[1].read_text())
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert deployment["spec"]["replicas"] == values["decode"]["replicas"] == winner["replicas"]
    asked = "--max-num-seqs 32 --tensor-parallel-size 1 --scheduling-policy priority"
    assert container["args"][1:] == asked.split()
    assert values["decode"]["parallelism"] == {"tensor": 1} and not values["prefill"]["create"]
    assert values["decode"]["containers"][0]["args"] == [
        each for each in container["args"][1:] if each not in ("--tensor-parallel-size", "1")
    ]
    kustomization = yaml.safe_load((tmp_path / "llm-d" / "base" / "kustomization.yaml").read_text())
    patch = yaml.safe_load(kustomization["patches"][0]["patch"])
    _, worker = yaml.safe_load((tmp_path / "graph.yaml").read_text())["spec"]["components"]
    assert patch["spec"]["replicas"] == worker["replicas"] == winner["replicas"]
    patched = patch["spec"]["template"]["spec"]["containers"][0]["args"]
    assert patched == container["args"] == worker["podTemplate"]["spec"]["containers"][0]["args"][1:]
    done = plan(spec, *FEW, "--figure", tmp_path / "costs.bmp")
    assert done.returncode == 2 and "name it .svg" in done.stderr and not done.stdout


def test_a_plan_says_how_well_each_machine_is_known(tmp_path: Path) -> None:
    """As `replay` does of the same traffic: an MI300X is known by its data sheet alone, an L40S by tables."""
    path = tmp_path / "few.toml"
    path.write_text(SPEC.replace("120", "20"))
    common = ("--slo", "p90(ttft)<5", "-tp", "1", "--max-gpus", "2", "--replications", "1", "--jobs", "1")
    common += ("--no-pools", "--no-tune")
    doubts = {}
    for gpu in ("mi300x", "l40s"):
        (found,) = json.loads(plan(path, "--gpu", gpu, *common, "--json").stdout)["candidates"]
        doubts[gpu] = found["step_doubt"]
    assert 0 < doubts["l40s"] < 0.2 and doubts["mi300x"] >= 0.25
    told = plan(path, "--gpu", "mi300x", *common)
    assert f"The model's own range: {steps_within(doubts['mi300x'])}." in told.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "none.toml", "--slo", SLO, "--figure"),
        ("plan", "none.toml", "--slo", SLO, "--manifest"),
        ("plan", "none.toml", "--slo", SLO, "--llm-d"),
        ("plan", "none.toml", "--slo", SLO, "--dynamo"),
        ("sweep", "none.toml", "--vary", "replicas=1,2", "--figure"),
        ("validate", "--page"),
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_written_is_refused_before_any_run(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Its folder is not there, or it is one."""
    folder = tmp_path / "away"
    assert f"cannot write {folder}/f.svg: there is no folder {folder}" in told(*words, folder / "f.svg")
    (tmp_path / "f.svg").mkdir()
    assert f"cannot write {tmp_path}/f.svg: it is a folder" in told(*words, tmp_path / "f.svg")


@pytest.mark.parametrize("file", ["/dev/stdout", "/proc/self/fd/1", "/dev/null"])
def test_a_pipe_or_a_device_can_be_written(file: str) -> None:
    """What is refused is the workload, which is not there; no file can be made beside a descriptor."""
    assert "none.toml" in told("plan", "none.toml", "--slo", SLO, "--manifest", file)


def test_a_folder_that_cannot_be_made_is_refused_before_any_run(tmp_path: Path) -> None:
    """Folders above it are made, too; a file is none."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "base" / "llm-d"):
        said = told("plan", "none.toml", "--slo", SLO, "--kustomize", folder)
        assert f"cannot make the folder {folder}: {tmp_path}/file is a file" in said


def told(*words: str | Path) -> str:
    """What a refused command says."""
    done = warm.run("sundog", *map(str, words))
    assert done.returncode == 2 and not done.stdout
    return done.stderr


@pytest.mark.parametrize("words", [("plan", "--slo", SLO), ("sweep", "--vary", "replicas=1,2")])
def test_a_figure_without_matplotlib_is_refused_before_any_run(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Before the workload is read even: this one is not there."""
    command = (words[0], str(tmp_path / "none.toml"), *words[1:], "--figure", str(tmp_path / "costs.svg"))
    begin = "import sys; sys.modules['matplotlib'] = None; from sundog.__main__ import main; "
    code = f"{begin}sys.argv = {['sundog', *command]!r}; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 2 and not done.stdout
    assert "--figure needs matplotlib: pip install 'sundog[plot]'" in done.stderr


@pytest.mark.long(reason="searches fleets by whole replays; test_plan.py plans one")
def test_a_plan_goes_on_where_it_was_broken_off(spec: Path, tmp_path: Path) -> None:
    """The trials of a killed command are not made again; another question is refused by name."""
    out, words = tmp_path / "kept", (spec, *FEW, "--json")
    whole = plan(*words).stdout
    begun = subprocess.Popen(
        [sys.executable, "-m", "sundog", "plan", *map(str, words), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    trials, deadline_s = out / "trials.jsonl", time.monotonic() + HANGS_S
    while not (trials.exists() and trials.read_text()) and begun.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    begun.send_signal(signal.SIGINT)
    said = begun.communicate(timeout=HANGS_S)[1]
    assert begun.returncode in (0, 130) and (begun.returncode == 0 or "the same command resumes" in said)
    kept = trials.read_text()
    assert plan(*words, "--out", out).stdout == whole
    assert trials.read_text().startswith(kept)
    complete = trials.read_text()
    assert plan(*words, "--out", out).stdout == whole and trials.read_text() == complete
    refused = plan(*words, "--out", out, "--max-num-seqs", "7")
    assert refused.returncode == 2 and "holds another plan (max_num_seqs null, not 7)" in refused.stderr
    trials.write_text("{}\n")
    assert "is damaged" in plan(*words, "--out", out).stderr


def test_a_plan_without_a_fleet_says_what_to_change(spec: Path) -> None:
    """A larger fleet helps neither a request that is too slow alone, nor a model that does not fit."""
    few = ("-tp", "1", "--max-gpus", "1", "--no-pools", "--judge-s", "0", "--replications", "1")
    slow = plan(spec, *few, "--max-gpus", "4", "--gpu", "h100", "--slo", "p95(ttft)<0.001").stdout
    assert "however large: on each machine even a request alone misses them. Loosen them" in slow
    large = plan(spec, *few, "--model", "llama-3.1-405b", "--gpu", "h100", "--slo", "p95(ttft)<1").stdout
    assert "No fleet can run: the table has the reason for each." in large and "does not fit" in large
    small = plan(spec, *few, "--gpu", "l40s", "--slo", "p95(e2e)<3").stdout
    assert "No fleet meets the objectives: allow a larger one (--max-gpus)" in small
    for text in (slow, large, small):
        assert "Buy" not in text and text.count("No fleet") == 1


def test_a_graph_for_gpus_that_dynamo_has_no_image_for_is_refused_before_any_trial(spec: Path) -> None:
    done = plan(spec, "--gpu", "mi300x", "--slo", "p95(ttft)<1", "--dynamo", spec.parent / "graph.yaml")
    assert done.returncode == 2 and not done.stdout
    assert "--dynamo: Dynamo's image of vLLM is for NVIDIA GPUs, and this fleet has mi300x" in done.stderr


def test_gpus_without_prices_are_said_to_be_counted(spec: Path, tmp_path: Path) -> None:
    """And a fleet that needs as many is not said to cost more."""
    (prices := tmp_path / "prices.toml").write_text("h100 = 2.5\nl40s = 2.0\n")
    words = (
        "-tp",
        "1",
        "--slo",
        "p95(ttft)<9",
        "--max-gpus",
        "4",
        "--no-pools",
        "--no-tune",
        "--judge-s",
        "0",
    )
    words += ("--replications", "1", "--jobs", "1")
    counted = "GPUs are counted as if all cost the same: --prices FILE compares them by price."
    both = plan(spec, "--gpu", "h100,l40s", *words).stdout
    assert counted in both and "not tried: it costs no less" in both
    assert counted not in plan(spec, "--gpu", "h100", *words).stdout
    assert counted not in plan(spec, "--gpu", "h100,l40s", "--prices", prices, *words).stdout


def test_capacity_takes_one_gpu_and_says_when_no_load_is_small_enough(spec: Path) -> None:
    """The former before any run."""
    words = ("--slo", "p95(ttft)<0.001", "--replications", "1", "--judge-s", "0", "--jobs", "1")
    done = warm.run("sundog", "capacity", spec, "--gpu", "h100,l40s", *words)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == (
        "sundog: --gpu is h100,l40s: give one GPU, or use `sundog plan`, which takes several\n"
    )
    done = warm.run("sundog", "capacity", spec, "--gpu", "h100", *words)
    assert "even alone. Loosen them, or try another GPU (--gpu) or more ranks (-tp)." in done.stdout
