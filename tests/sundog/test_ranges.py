"""Prediction ranges: their width, the effect of an error of steps, and no unfounded confidence."""

import json
import shutil
from pathlib import Path

import pytest

import sundog as library
from sundog.sim.validation.records import find_servers
from tests.sundog.test_runs import sundog

SHAPES = Path("sim/hardware/models")


POOLS = ("--pool", "prefill=h100:x1", "--pool", "decode=h200:x1")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """64 requests of 1,000 tokens, 20 a second."""
    rows = [f"{number / 20},1000,64" for number in range(64)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]))
    return path


def told(*args: object) -> dict[str, object]:
    done = sundog("replay", *args, "--json", "--ranges")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("fleet", [(), POOLS, ("--replicas", "2", "--scaler", "keda:target=4")])
def test_figures_lie_within_their_ranges(trace: Path, fleet: tuple[str, ...]) -> None:
    """Of one engine, of pools of two GPUs, and of a fleet that grows."""
    found = told(trace, *fleet)
    ranges = found["ranges_s"]
    assert isinstance(ranges, dict)
    for name in ("ttft", "tpot", "e2e"):
        figures = found[f"{name}_s"]
        assert isinstance(figures, dict)
        for kind in ("mean", "p99"):
            low, high = (ranges[side][f"{name} {kind}"] for side in ("low", "high"))
            assert low < figures[kind] < high


def test_ranges_stand_in_every_place_that_has_the_figures(trace: Path, tmp_path: Path) -> None:
    """In the JSON, in summary.json and from Python without being asked for, and nowhere where not wanted."""
    done = sundog("replay", trace, "--json", "--out", tmp_path / "run")
    printed = json.loads(done.stdout)
    assert 0.03 <= printed["step_doubt"] < 0.05 and printed["ranges_s"] == told(trace)["ranges_s"]
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert kept["ranges_s"] == printed["ranges_s"] and kept["step_doubt"] == printed["step_doubt"]
    assert library.read(tmp_path / "run").figures["ranges_s"] == printed["ranges_s"]  # type: ignore[union-attr]
    assert library.replay(trace).figures["ranges_s"] == printed["ranges_s"]
    assert "ranges_s" not in library.replay(trace, ranges=False).figures
    assert "ranges_s" not in json.loads(sundog("replay", trace, "--json", "--no-ranges").stdout)
    kept["ranges_s"]["low"]["ttft mean"] = "soon"
    (tmp_path / "run" / "summary.json").write_text(json.dumps(kept))
    assert "is no time nor a distribution" in sundog("compare", tmp_path / "run", tmp_path / "run").stderr


@pytest.mark.long(reason="replays 500 requests many times", moderate=True)
def test_long_replays_have_ranges_if_they_are_wanted(trace: Path) -> None:
    """More than 500, or 5,000 of a table: two more replays take twice as long as the first."""
    rows = [f"{number / 20},20,1" for number in range(501)]
    trace.write_text("\n".join([trace.read_text().partition("\n")[0], *rows]))
    assert not {"ranges_s", "step_doubt"} & library.replay(trace).figures.keys()
    assert {"ranges_s", "step_doubt"} <= library.replay(trace, limit=500).figures.keys()
    assert "ranges_s" in library.replay(trace, ranges=True).figures
    assert "ranges_s" not in json.loads(sundog("replay", trace, "--json").stdout)
    assert "milliseconds may be" in sundog("replay", trace).stdout


def test_replay_tells_what_one_percent_of_a_step_does(trace: Path) -> None:
    """A longer step weighs more where there is more to wait for."""
    ranges = told(trace)["ranges_s"]
    heavy = told(trace, "--max-num-seqs", 10)
    assert isinstance(ranges, dict)
    other = heavy["ranges_s"]
    assert isinstance(other, dict)
    assert 0.8 < ranges["amplification"] < other["amplification"]
    text = sundog("replay", trace).stdout
    assert "milliseconds may be" in text
    assert f"if steps were 1 % slower, E2E would be {ranges['amplification']:.1f} % longer" in text
    assert "milliseconds may be" not in sundog("replay", trace, "--no-ranges").stdout


def test_a_load_that_piles_up_is_beyond_the_knee_however_many_slots_are_free(trace: Path) -> None:
    """70B on eight H100 without NVLink: 64 of 1,024 slots are taken, and TTFT grows from second to second."""
    done = sundog(
        "replay", trace, "--model", "llama-3.1-70b", "--gpu", "h100:pcie", "--tensor-parallel-size", 8
    )
    assert done.returncode == 0, done.stderr
    assert "beyond the knee" in done.stdout and "below the knee" not in done.stdout
    assert "below the knee" in sundog("replay", trace).stdout


def test_ranks_of_two_machines_are_no_three_percent(trace: Path) -> None:
    """They are priced by one machine's link, and the range says what that is worth."""
    done = sundog("replay", trace, "--model", "llama-3.1-70b", "--tensor-parallel-size", 16)
    assert done.returncode == 0, done.stderr
    assert "16 ranks are assumed to share one machine's link" in done.stderr
    assert "steps may take 0.5 to 2.0 times as long" in done.stdout


def test_weights_in_32_bits_are_priced_as_vllm_runs_them(trace: Path, tmp_path: Path) -> None:
    """In bfloat16 under --dtype auto, which a line says, and in float32 where that is asked for."""
    shape = json.loads((SHAPES / "llama-3.2-1b.json").read_text())
    for dtype in ("bfloat16", "float32"):
        (tmp_path / dtype).mkdir()
        (tmp_path / dtype / "config.json").write_text(json.dumps({**shape, "torch_dtype": dtype}))
    plain, cast = (told(trace, "--model", tmp_path / dtype) for dtype in ("bfloat16", "float32"))
    assert cast["tpot_s"] == plain["tpot_s"]
    assert "float32 are cast to bfloat16" in sundog("replay", trace, "--model", tmp_path / "float32").stderr
    asked = told(trace, "--model", tmp_path / "float32", "--dtype", "float32")
    assert isinstance(asked["tpot_s"], dict) and isinstance(cast["tpot_s"], dict)
    assert asked["tpot_s"]["mean"] > 1.5 * cast["tpot_s"]["mean"]


@pytest.mark.long(reason="predicts a range by many replays")
def test_the_model_of_a_summary_may_be_a_folder_beside_it(tmp_path: Path) -> None:
    """With a dot in front or without; a name of the hub stays one."""
    (tmp_path / "shapes" / "mine").mkdir(parents=True)
    shutil.copy(SHAPES / "llama-3.2-1b.json", tmp_path / "shapes" / "mine" / "config.json")
    columns = (
        "experiment,model,tp,mbt,max_seqs,stage,rate,duration,groups,prompts_per_group,system_len,"
        "output_len_requested,prompt_len_mean,ttft_mean_ms,ttft_median_ms,ttft_p90_ms,ttft_p99_ms,"
        "e2e_mean_ms,e2e_median_ms,e2e_p90_ms,e2e_p99_ms,tpot_true_mean_ms"
    )
    names = ("shapes/mine", "./shapes/mine", "meta-llama/Llama-3.2-1B")
    rows = [
        f"x{number},{name},1,2048,128,0,2.0,3.0,2,2,20,9,40.4" + ",5" * 9 for number, name in enumerate(names)
    ]
    (tmp_path / "summary.csv").write_text("\n".join([columns, *rows]))
    first, second, third = (found.model for found in find_servers(tmp_path))
    assert Path(first).samefile(second) and Path(first).is_dir() and third == "llama-3.2-1b"
    done = sundog("validate", tmp_path, "--json", "--no-host-overhead")
    assert {"x0", "x1", "x2"} < {stage["server"] for stage in json.loads(done.stdout)["stages"]}
