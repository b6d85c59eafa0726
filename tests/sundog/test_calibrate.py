"""`sundog calibrate MODEL`: the file works for replays and servers without further options."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sundog.actors.config import ConfigError
from sundog.calibration.engine import Tried, refuse_ruined
from sundog.calibration.served import LoadClients
from sundog.child import serving
from sundog.sim.cost.calibrated import Calibrated, ObservedRange
from sundog.sim.cost.profile import HostShare, read_profile
from sundog.sim.figures.fit_engine import EngineFitted, Shape
from sundog.sim.figures.fit_log import logged_works
from tests import warm
from tests.live import Stream, live
from tests.sundog.test_runs import TRACE, refused, sundog

STEPS = EngineFitted(
    Calibrated(1e-3, 1e-5, 1e-7, 1e-5, 1e-9),
    ObservedRange(1, 1, 1, 1),
    ((Shape((9,)), 0.04),),
    70,
    3,
    0.1,
    0.5,
)


@pytest.mark.parametrize(
    ("held_out", "trial", "words"),
    [
        (
            0.04,
            {"TPOT": 39.71, "E2E": 12.0},
            ("TPOT of requests at random is off by +3,971%", "90% of the cores"),
        ),
        (0.04, {"TPOT": -0.6}, ("TPOT of requests at random is off by -60%",)),
        (0.8, {}, ("errors for other step shapes: 80% (median)", "is not written")),
    ],
)
def test_a_profile_that_its_own_measurements_contradict_is_refused(
    held_out: float, trial: dict[str, float], words: tuple[str, ...]
) -> None:
    """As where a neighbour took the cores while steps were measured, and left before requests were."""
    fitted = replace(STEPS, held_out=((Shape((9,)), held_out),))
    with pytest.raises(ConfigError) as refusal:
        refuse_ruined(fitted, Tried(HostShare(), (), trial, 40), 0.9)
    assert all(word in str(refusal.value) for word in words)
    refuse_ruined(STEPS, Tried(HostShare(), (), {"TPOT": 0.3, "TTFT": -0.8}, 40), 0.9)
    refuse_ruined(STEPS, None, 0.0)


SMALL = ("--max-num-seqs", 4, "--max-num-batched-tokens", 64, "--max-model-len", 160)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, measured as briefly as can be."""
    path = tmp_path_factory.mktemp("calibrate") / "profile.toml"
    done = sundog("calibrate", "sundog-tiny", "-o", path, "--seconds", 0, "--no-http", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "other shapes are explained to" in done.stderr
    return path


@pytest.mark.long(reason="measures an engine's steps")
def test_the_file_says_what_was_measured(profile: Path) -> None:
    """The engine's limits, and evidence for people."""
    read = read_profile(profile)
    assert read is not None
    known = read.engine
    assert (known.model, known.max_num_seqs, known.max_model_len) == ("sundog-tiny", 4, 160)
    assert read.cost.measured.tokens == 64 and read.cost.measured.decodes == 4
    assert read.host == HostShare()
    for word in ("threads", "torch", "held_out_error_p90", "held_out_worst_shape", "rounds"):
        assert f"\n{word} = " in profile.read_text()


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_replay_needs_no_model_and_no_gpu(profile: Path, tmp_path: Path) -> None:
    """The limits are the engine's; others may be asked for, another engine may not.

    Four at a time are all answered sooner than one by one, since a step costs something whatever is in it.
    On a CPU on which rows cost much more, the mean answer may come later: four wait for each other's rows.
    """
    trace = tmp_path / "trace.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "0.0,60,20\n" * 12)
    short = ("replay", trace, "--cost", profile)
    shown = sundog(*short)
    assert shown.returncode == 0 and "sundog-tiny, as measured in profile.toml" in shown.stdout
    four, one = (json.loads(sundog(*short, "--json", *more).stdout) for more in ((), ("--max-num-seqs", 1)))
    assert four["num_finished"] == one["num_finished"] == 12
    assert four["num_steps"] < one["num_steps"] and four["duration_s"] < one["duration_s"]
    refused(sundog(*short, "--model", "qwen3-8b"), "--model", "sundog-tiny", "leave it out")
    refused(sundog(*short, "--dtype", "float16"), "--dtype", "leave it out")
    refused(sundog(*short, "--block-size", 32), "--block-size is 32", "with blocks of 16")
    refused(sundog(*short, "-tp", 2), "--tensor-parallel-size")


def test_measured_engines_are_put_in_pools(profile: Path, tmp_path: Path) -> None:
    """The file says how much a transfer carries: 4 layers of 2 heads of 64 numbers twice, in 2 bytes."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,64,20\n")
    pools = ("--pool", f"prefill={profile}:x1", "--pool", f"decode={profile}:x1")
    fast, slow = (
        json.loads(sundog("replay", trace, *pools, "--json", "--kv-transfer-gb-per-s", rate).stdout)
        for rate in (1, 0.001)
    )
    late_s = slow["ttft_s"]["mean"] - fast["ttft_s"]["mean"]
    assert late_s == pytest.approx(64 * 2048 * (1 / 1e6 - 1 / 1e9), abs=1e-9)
    older = tmp_path / "older.toml"
    older.write_text(profile.read_text().replace("kv_token_bytes = 2048\n", ""))
    pools = ("--pool", f"prefill={older}:x1", "--pool", f"decode={older}:x1")
    refused(sundog("replay", trace, *pools), "older.toml lacks the bytes", "calibrate again")


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_server_answers_at_the_measured_pace(profile: Path) -> None:
    """`--gpu FILE`: under the model's name, without a GPU's."""
    with live("sundog", "emulate", "--port", "0", "--gpu", str(profile)) as server:
        assert Stream(server, max_tokens=3).whole()
        assert server.stop() == 0
    refused(sundog("emulate", "--gpu", profile, "--cost", "tables"), "--cost is tables")
    refused(sundog("emulate", "--gpu", profile, "--model", "qwen3-8b"), "--model")


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no/such/model", "-o", "x.toml"), ("no/such/model is not there", "sundog-tiny")),
        (("sundog-tiny", "-o", "no/such/folder/x.toml"), ("no/such/folder/x.toml", "there is no folder")),
        (("sundog-tiny", "-o", "tests"), ("cannot write tests: it is a folder",)),
        (("sundog-tiny", "-o", "x" * 300), ("cannot write xxx", "name too long")),
        (("sundog-tiny", "-o", "x.toml", "--replicas", 2), ("--replicas is 2",)),
        (("sundog-tiny", "-o", "x.toml", "-tp", 2), ("--tensor-parallel-size is 2",)),
        (("sundog-tiny", "-o", "x.toml", "--max-model-len", 4096), ("lower --max-model-len",)),
        (("sundog-tiny", "-o", "x.toml", "--max-model-len", 8), ("max_model_len is 8", "at least 32")),
        (("sundog-tiny", "-o", "x.toml", "--num-gpu-blocks", 9), ("--num-gpu-blocks 9", "129")),
        (("n" * 300, "-o", "x.toml"), ("is not there", "sundog-tiny")),
        (("traces", "traces", "-o", "x.toml"), ("a folder is given twice",)),
        (("README.md", "-o", "x.toml", "--dtype", "float16"), ("--dtype", "a log or a URL")),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[object, ...], words: tuple[str, ...]) -> None:
    """In one line, and nothing is left."""
    refused(sundog("calibrate", *arguments), *words)
    assert not Path("x.toml").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("block_size = 16", "block_size = 0", "engine.block_size"),
        ("max_num_seqs = 4\n", "", "engine.max_num_seqs: it is missing"),
        ("[range]", "[ranges]", "the table [range] is missing"),
    ],
)
def test_a_damaged_file_is_refused_by_its_key(
    profile: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    """File and key."""
    damaged = tmp_path / "damaged.toml"
    damaged.write_text(profile.read_text().replace(old, new))
    refused(sundog("replay", TRACE, "--cost", damaged), "damaged.toml", words)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """Not the file, and nothing beside it."""
    process = warm.popen("sundog", "calibrate", "sundog-tiny", "-o", tmp_path / "x.toml", *SMALL)
    assert process.stderr is not None
    with process.stderr as lines:
        assert "measuring steps" in lines.readline()
        process.send_signal(signal.SIGINT)
        said = lines.read()
    assert process.wait() == 130 and "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_each_load_knows_its_steps(profile: Path, tmp_path: Path) -> None:
    """In a closed loop and at random: its part of the server's log has a sample for each of its tokens."""
    log = tmp_path / "steps.jsonl"
    with serving(None, tmp_path, "--gpu", str(profile), "--step-log", str(log), command="emulate") as url:
        clients = LoadClients(url, (12, 16))  # no prompt is cut into chunks
        stages = [clients.once(4, 0.2), clients.once(None, 0.5, 30.0), clients.once(1, 0.0)]
    steps = logged_works(log)
    for stage, name in zip(stages, ("4 clients", " a second", "1 clients"), strict=True):
        assert name in stage.name and 0 <= stage.others <= 1
        own = steps[stage.steps.start : stage.steps.stop]
        num_tokens = sum(row.num_output_tokens for row in stage.rows)
        assert num_tokens == stage.measured.output_tokens > 0
        assert sum(work.num_samples for work, _ in own) == num_tokens
    assert len(stages[0].rows) >= 4 and len(stages[2].rows) == 1


@pytest.mark.long(rare=True, reason="measures an engine's steps, and a server")
def test_a_server_adds_to_steps_and_requests(tmp_path: Path) -> None:
    """Measured with clients of its own, under the same options, and tried on a load of another kind."""
    path = tmp_path / "profile.toml"
    options = ["--seconds", 0, *SMALL, "--no-enable-prefix-caching"]
    command = [sys.executable, "-m", "sundog", "calibrate", "sundog-tiny", "-o", path, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and "a request's way takes" in done.stderr, done.stderr
    assert "random requests that were not fitted are predicted with TTFT" in done.stderr
    read = read_profile(path)
    assert read is not None
    host = read.host
    assert host.slowdown >= 1 and 0 <= host.step_s + host.token_s + host.chunk_s < 0.5
    assert host.slowdown > 1 or host.step_s + host.token_s + host.chunk_s > 0
    assert 0 <= host.request_s < 5
    text = path.read_text()
    for word in (
        "others",
        "trial_requests",
        "trial_error_ttft",
        "trial_error_tpot",
        "trial_error_e2e",
        "front_s",
    ):
        assert f"\n{word} = " in text
