"""Command line for its users: results on stdout, one clear message for a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
GOLDEN = "tests/golden/01_light.trace.json.gz"


def sundog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return warm.run("sundog", *arguments)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "nowhere.csv"], "nowhere.csv"),
        (["replay", TRACE, "--gpu", "h10"], "Did you mean h100"),
        (["replay", TRACE, "--model", "lama-3.1-8b"], "Did you mean llama-3.1-8b"),
        (["replay", TRACE, "--policy", "fcsf"], "Did you mean fcfs"),
        (["replay", TRACE, "--router", "random"], "round-robin"),
        (["replay", TRACE, "--max-num-seqs", "0"], "--max-num-seqs is 0"),
        (["replay", TRACE, "--gpu", "rtx-4090"], "--max-model-len"),
        (["replay", TRACE, "--gpu", "rtx-4090", "--model", "llama-2-70b"], "does not fit"),
        (["replay", TRACE, "--tensor-parallel-size", "3"], "tensor_parallel_size is 3"),
        (["replay", TRACE, "--dtype", "float99"], "float99"),
        (["serve", "--port", "0", "--model", "no/such/folder"], "no/such/folder"),
        (["serve", "--port", "0", "--model", "traces"], "config.json"),
        (["serve", "--port", "0", "--max-model-len", "9999999"], "lower --max-model-len"),
        (["serve", "--port", "0", "--pipeline-parallel-size", "2"], "is an option of `sundog emulate`"),
        (["replay", TRACE, "--tokenizer", "runtime/assets/sundog-tiny"], "leave out --tokenizer"),
        (["schedule", "README.md", "-o", "/dev/null"], "README.md is no trace in the golden format"),
        (["schedule", GOLDEN], "Missing option '-o'"),
        (["schedule", TRACE, "-o", "/dev/null"], "is no trace in the golden format: line 2"),
        (["schedule", GOLDEN, "-o", "/dev/null", "--max-num-seqs", "9"], "No such option '--max-num-seqs'"),
    ],
)
def test_a_mistake_is_one_clear_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    """It names what is wrong; nothing on stdout, and no traceback."""
    done = sundog(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


def test_one_request_keeps_the_engine_busy_no_longer_than_it_is_there(tmp_path: Path) -> None:
    """Nor does the step count that asynchronous scheduling runs in vain after its end."""
    trace = tmp_path / "one.jsonl"
    units = {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"}
    rows = [{"format": "sundog-trace", "version": 1, "units": units}]
    rows += [{"arrival_s": 1.0, "prompt_tokens": 40, "output_tokens": 9}]  # type: ignore[dict-item]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for option in ("--async-scheduling", "--no-async-scheduling"):
        summary = json.loads(sundog("replay", str(trace), option, "--no-host-overhead", "--json").stdout)
        assert 0.9 < summary["busy_fraction"] <= 1.0


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_load_far_beyond_the_knee_is_said_in_times(tmp_path: Path) -> None:
    """A share of some thousand percent says nothing. What arrives all at once has no rate, and no load."""
    beyond = ("replay", TRACE, "--max-num-seqs", "4", "--limit", "200", "--request-rate")
    done = sundog(*beyond, "100")
    assert "times what can be served" in done.stderr and "% of what" not in done.stderr, done.stderr
    assert "what can be served" not in sundog(*beyond, "inf").stderr


def test_a_malformed_row_is_refused_by_file_line_and_column(tmp_path: Path) -> None:
    """The third line of this trace has a negative prompt."""
    trace = tmp_path / "bad.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,-5,5\n")
    done = sundog("replay", str(trace))
    assert done.returncode == 2
    assert f"{trace}, line 3, column num_prefill_tokens" in done.stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_the_same_replay_prints_the_same_bytes(tmp_path: Path) -> None:
    """As JSON, and in the files of --out, with decode runs and without, whatever hashes strings have."""
    arguments = ["replay", TRACE, "--limit", "80", "--replicas", "2", "--json", "--out"]
    first = sundog(*arguments, str(tmp_path / "a"))
    second = warm.afresh("sundog", *arguments, tmp_path / "b", "--no-decode-runs")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["num_finished"] == 80
    for name in ("requests.parquet", "steps.parquet", "summary.json", "config.toml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_schedule_writes_the_log_that_vllm_wrote(tmp_path: Path) -> None:
    """Golden 04, through the command line."""
    log = tmp_path / "log.jsonl"
    done = sundog("schedule", "tests/golden/04_multiturn_prefix.trace.json.gz", "-o", str(log))
    assert done.returncode == 0, done.stderr
    import gzip

    golden = gzip.decompress(Path("tests/golden/04_multiturn_prefix.log.jsonl.gz").read_bytes())
    assert log.read_bytes() == golden


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_policy_of_the_users_own_file_is_used(tmp_path: Path) -> None:
    """Shortest prompt first lowers the median TTFT; a broken file is one clear message."""
    policy = tmp_path / "mine.py"
    policy.write_text(
        "from sundog.actors.core.policies import Policy\n"
        "class Mine(Policy):\n"
        "    def rank(self, request, view):\n"
        "        return request.submit.num_prompt_tokens\n"
    )
    base = ["replay", TRACE, "--limit", "60", "--json", "--max-num-seqs", "1"]
    default, mine = sundog(*base), sundog(*base, "--policy", f"{policy}:Mine")
    assert mine.returncode == 0, mine.stderr
    assert json.loads(mine.stdout)["ttft_s"]["p50"] < json.loads(default.stdout)["ttft_s"]["p50"]
    assert "no class Other" in sundog(*base, "--policy", f"{policy}:Other").stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_simulating_never_imports_torch() -> None:
    """A replay in a fresh interpreter loads neither torch nor transformers."""
    code = (
        "import sys, sundog.cli as sundog; sys.argv = ['sundog', 'replay', "
        f"{TRACE!r}, '--limit', '5']\n"
        "try: sundog.main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_simulated_server_schedules_as_the_version_of_vllm_does_by_default() -> None:
    """Asynchronously since 0.14; what the command line says goes before."""

    def replayed(*more: str) -> str:
        done = sundog("replay", TRACE, "--limit", "60", "--json", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    is_async, sync = replayed("--async-scheduling"), replayed("--no-async-scheduling")
    assert is_async != sync
    assert replayed() == replayed("--engine-version", "0.14.1") == is_async
    assert replayed("--engine-version", "0.13") == sync
    assert replayed("--engine-version", "v0.13.2", "--async-scheduling") == is_async
    done = sundog("replay", TRACE, "--engine-version", "new")
    assert done.returncode == 2 and "engine_version is 'new'" in done.stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_schedules_as_a_replay_does(tmp_path: Path) -> None:
    """Its cells equal the asynchronous ones unless the version is older."""
    spec = tmp_path / "load.toml"
    spec.write_text(
        'duration_s = 20\n[arrivals]\nkind = "poisson"\nrate_per_s = 4\n'
        '[prompt]\nkind = "fixed"\ntokens = 200\n[output]\nkind = "fixed"\ntokens = 20\n'
    )
    done = sundog(
        "sweep",
        str(spec),
        "--json",
        "--jobs",
        "1",
        "--replications",
        "2",
        "--max-replications",
        "2",
        "--vary",
        "engine_version=0.13,0.14,0.33",
    )
    assert done.returncode == 0, done.stderr
    old, new, newest = (cell["runs"] for cell in json.loads(done.stdout)["cells"])
    assert new == newest != old


@pytest.mark.long(reason="predicts every record that ships")
def test_validate_shows_the_records_that_come_with_sundog() -> None:
    """Without a folder of one's own there is one server under two loads, and something was fitted to each."""
    done = sundog("validate", "--json")
    assert done.returncode == 0, done.stderr
    stages = json.loads(done.stdout)["stages"]
    assert {stage["server"]: bool(stage["fitted"]) for stage in stages} == {
        "qwen3-14b-h100": True,
        "qwen3-14b-h100-8rps": True,
    }


@pytest.mark.long(reason="predicts every record that ships")
def test_validate_goes_on_after_a_server_it_cannot_predict(tmp_path: Path) -> None:
    """An unknown model and parallelism that does not fit are lines with their reasons; the page has them."""
    text = Path("sim/validation/servers/qwen3-14b-h100.server.toml").read_text()
    text = text.replace("duration_s = 600", "duration_s = 20")
    (tmp_path / "a.server.toml").write_text(text.replace('"qwen3-14b"', '"qwen99"'))
    (tmp_path / "b.server.toml").write_text("pipeline_parallel_size = 99\n" + text)
    (tmp_path / "c.server.toml").write_text(text.replace('"h100"', '"h100:pcie"'))
    page = tmp_path / "page.md"
    done = sundog("validate", str(tmp_path), "--json", "--page", str(page))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [stage["server"] for stage in found["stages"]][-1] == "c"
    reasons = {refusal["server"]: refusal["reason"] for refusal in found["refused"]}
    assert "unknown model 'qwen99'" in reasons["a"]
    assert "pipeline_parallel_size is 99, and qwen3-14b has 40 layers" in reasons["b"]
    assert "- a: unknown model" in page.read_text() and "| c | 2.02/s |" in page.read_text()


def test_a_link_is_given_behind_the_gpu() -> None:
    """Two ranks without peer access take longer; an unknown link is one line."""

    def tpot_s(gpu: str) -> float:
        done = sundog("replay", TRACE, "--limit", "20", "--json", "--gpu", gpu, "-tp", "2")
        assert done.returncode == 0, done.stderr
        mean: float = json.loads(done.stdout)["tpot_s"]["mean"]
        return mean

    assert tpot_s("rtx-pro-6000:pcie-p2p") < tpot_s("rtx-pro-6000:pcie") == tpot_s("rtx-pro-6000")
    done = sundog("replay", TRACE, "--gpu", "rtx-pro-6000:wire")
    assert done.returncode == 2 and "link is 'wire': known are nvlink, pcie, pcie-p2p" in done.stderr


def test_a_gpu_of_the_users_own_file_keeps_its_link_in_a_runs_config(tmp_path: Path) -> None:
    """Its path is written relative to the run, the link behind it, and the run can be had again."""
    gpu = tmp_path / "mine.toml"
    gpu.write_text(Path("sim/hardware/gpus/h100.toml").read_text())
    done = sundog(
        "replay", TRACE, "--limit", "20", "--json", "--gpu", f"{gpu}:pcie", "-o", str(tmp_path / "run")
    )
    assert done.returncode == 0, done.stderr
    config = tmp_path / "run" / "config.toml"
    assert '"../mine.toml:pcie"' in config.read_text()
    assert sundog("replay", "--config", str(config), "--json").stdout == done.stdout
