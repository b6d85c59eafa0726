"""Fleets of pools by the command line and by Python: `--pool ROLE=GPU:tpNxM`."""

import json
from pathlib import Path
from typing import Any

import pytest

import sundog
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from tests import warm

PREFILL, DECODE = "prefill=h100:tp1x2", "decode=b200:tp2x1:max_num_seqs=32"
APART = ("--pool", PREFILL, "--pool", DECODE)
WIDE = ("--model", "deepseek-v3", "--enable-expert-parallel", "--pool", "both=h200:dp8x1")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [TraceRequest(f"r{n}", 0.2 * n, 500 + 100 * n, 8) for n in range(12)]
    write_trace(path := str(tmp_path / "trace.jsonl"), rows, provenance="test")
    return path


def run(*arguments: str) -> Any:
    return warm.run("sundog", "replay", *arguments)


def test_pools_of_several_gpus_are_one_fleet(trace: str, tmp_path: Path) -> None:
    """Its figures have each pool and the transfers; its config.toml plays it again."""
    out = tmp_path / "run"
    done = run(trace, *APART, "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [pool["num_gpus"] for pool in found["fleet"]["pools"]] == [2, 2]
    assert found["fleet"]["transfers"]["num_transfers"] == found["num_finished"] == 12
    again = run("--config", str(out / "config.toml"), "--json")
    assert json.loads(again.stdout) == found
    table = run(trace, *APART).stdout
    assert "12 transfers of KV" in table and DECODE.split(":max")[0] in table


def test_a_slower_link_is_later_by_what_it_takes(trace: str) -> None:
    """128 KiB a token of this model, in whole blocks of 16 tokens, and the latency."""
    quick = json.loads(run(trace, *APART, "--json", "--limit", "1").stdout)
    slow = json.loads(
        run(
            *(trace, *APART, "--json", "--limit", "1"),
            *("--kv-transfer-gb-per-s", "1", "--kv-transfer-latency-s", "0.5"),
        ).stdout
    )
    late_s = slow["ttft_s"]["mean"] - quick["ttft_s"]["mean"]
    assert late_s == pytest.approx(0.5 + 512 * 131072 * (1 / 1e9 - 1 / 50e9), abs=1e-9)


def test_engines_on_different_gpus_share_one_router(trace: str) -> None:
    """Both do whole requests: nothing is transferred."""
    found = json.loads(run(trace, "--pool", "both=h100:x1", "--pool", "both=b200:x1", "--json").stdout)
    assert found["num_finished"] == 12 and found["fleet"]["transfers"] is None
    assert all(replica["num_requests"] == 6 for replica in found["replicas"])


def test_a_pool_of_ranks_that_share_experts_is_priced_as_they_are_without_pools(trace: str) -> None:
    """One group as a pool is the aggregated run, byte for byte; groups hand prompts over to a wider one."""
    pooled = json.loads(run(trace, *WIDE, "--json").stdout)
    plain = json.loads(run(trace, *WIDE[:3], "--gpu", "h200", "-dp", "8", "--json").stdout)
    (pool,) = pooled.pop("fleet")["pools"]
    assert (pool["replicas"], pool["num_gpus"]) == (8, 8)
    assert pooled == {name: figure for name, figure in plain.items() if name != "fleet"}
    apart = ("--pool", "prefill=h200:dp8x2", "--pool", "decode=h200:dp8tp2x1:max_num_seqs=32")
    found = json.loads(run(trace, *WIDE[:3], *apart, "--json").stdout)
    assert [pool["num_gpus"] for pool in found["fleet"]["pools"]] == [16, 16]
    assert found["fleet"]["transfers"]["num_transfers"] == found["num_finished"] == 12


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_pools_are_played_from_python_and_varied_in_sweeps(trace: str) -> None:
    """As one more option, and as values of an axis with a plus between pools."""
    result = sundog.replay(trace, pool=(PREFILL, DECODE))
    assert result.figures["fleet"]["transfers"]["num_transfers"] == 12
    apart = f"{PREFILL}+{DECODE}"
    assert sundog.replay(trace, pool=apart).figures == result.figures
    (cell,) = sundog.sweep(trace, vary={"pool": [apart]}, jobs=1, warmup_s=0).rows
    assert cell["pool"] == apart and cell["ttft_s.mean"] == result.figures["ttft_s"]["mean"]
    fleets = f"pool=both=h100:x4,{PREFILL}+{DECODE}"
    done = warm.run("sundog", "sweep", trace, "--vary", fleets, "--replications", "2")
    assert done.returncode == 0 and "pool=both=h100:x4 " in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--pool", "prefil=h100:x1"), "give ROLE=GPU:tpNxM"),
        (("--pool", "prefill=h100:x1"), "the pools are for prefill: give prefill and decode, or both alone"),
        (("--pool", "both=h100:x1", "--replicas", "2"), "--replicas cannot be combined with --pool"),
        (("--pool", "both=h100:x1", "--gpu", "b200"), "--gpu cannot be combined with --pool"),
        (("--pool", "both=h100:x0"), "at least one replica"),
        (("--pool", "both=h100:dp8epx1"), "or decode=h200:dp8x1 for data-parallel ranks"),
        (("--pool", "both=h100:tp2dp8x1"), "give ROLE=GPU:tpNxM"),
        (("--pool", "both=h100:dp2x1", "-dp", "2"), "--data-parallel-size cannot be combined with --pool"),
        ((*WIDE[:2], *WIDE[3:]), "dp8tp1x1: --data-parallel-size is 8: experts of deepseek-v3 split"),
        (
            (*WIDE, "--faults", "none.toml"),
            "ranks that share experts step together and cannot fail separately",
        ),
        (("--pool", "both=h100:x1:seed=2"), "a pool has no seed of its own"),
        ((*APART, "--journal"), "--journal: a journal has each request on one engine"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_in_one_line(
    trace: str, options: tuple[str, ...], words: str
) -> None:
    done = run(trace, *options)
    assert done.returncode == 2 and words in done.stderr


def test_a_step_planned_ahead_where_a_prompt_was_computed_counts_no_token_elsewhere(tmp_path: Path) -> None:
    """Steps of long prompts, planned before the last was handed over, end when it has long been decoding."""
    rows = [TraceRequest(f"r{n}", 0.02 * n, 300 + n * 977 % 4000, 60) for n in range(40)]
    write_trace(path := str(tmp_path / "long.jsonl"), rows, provenance="test")
    found = sundog.replay(path, pool=("prefill=h100:x1", "decode=h100:x1")).figures
    assert found["output_tokens"] == 40 * 60
    assert found["tpot_s"]["mean"] == pytest.approx(found["itl_s"]["mean"], rel=1e-6)


FAULTS = """
[[fault]]
kind = "dead-engine"
at_s = 0.5
replica = 1
down_s = 0.25

[random]
mtbf_s = 2.0
down_s = 0.1
until_s = 2.0
"""


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_faults_are_read_listed_and_compared_seed_by_seed(trace: str, tmp_path: Path) -> None:
    """The file's own crash is at its instant; others are drawn; a sweep takes the file as a value."""
    (file := tmp_path / "faults.toml").write_text(FAULTS)
    found = json.loads(run(trace, "--replicas", "2", "--faults", str(file), "--json").stdout)
    crashes = found["fleet"]["faults"]
    assert {"kind": "dead-engine", "at_s": 0.5, "replica": 1} in [
        {name: crash[name] for name in ("kind", "at_s", "replica")} for crash in crashes
    ]
    assert len(crashes) > 1
    assert "dead-engine" in run(trace, "--replicas", "2", "--faults", str(file)).stdout
    axis = f"faults=none,{file}"
    options = ("--replicas", "2", "--vary", axis, "--replications", "3", "--metric", "e2e_s.mean")
    done = warm.run("sundog", "sweep", trace, *options)
    assert done.returncode == 0 and "±" in done.stdout, done.stderr


DEAD = '[[fault]]\nkind = "dead-engine"\nat_s = 1\nreplica = 0\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[fault]]\nkind = "dead-engine"\nat_s = 1\nreplica = 7\n', "replica 7: give 0 to 1"),
        (f"{DEAD}notice_s = -1\n", "notice_s: Input should be greater than or equal to 0"),
        (f"{DEAD}notice_s = nan\n", "notice_s: Input should be a finite number"),
        (f"{DEAD}down_s = 2\nnotice_s = 3\n", "notice_s of a dead-engine is 3: give at most its down_s, 2"),
        (
            '[[fault]]\nkind = "slow-link"\nat_s = 1\nfor_s = 1\nreplica = 1\npart = 0\n',
            "give --pool prefill",
        ),
        ('[[fault]]\nkind = "lost-transfer"\nrate = 1\n', "lost-transfer applies to links between pools"),
        ('[[fault]]\nkind = "dead-engin"\n', "fault"),
        ('[[fault]]\nkind = "spike"\nat_s = 1\nfor_s = 1\nfactor = 2\nrate = 3\n', "rate"),
        ("[randon]\n", "randon"),
    ],
)
def test_a_file_of_faults_that_cannot_be_is_refused_by_its_key(
    trace: str, tmp_path: Path, text: str, words: str
) -> None:
    (file := tmp_path / "faults.toml").write_text(text)
    done = run(trace, "--replicas", "2", "--faults", str(file))
    assert done.returncode == 2 and words in done.stderr, done.stderr


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("prefill", "decode", "ttft_ms", "tpot_ms"),
    [
        ("h100:tp2", "h100:tp8x1:max_num_seqs=208", 896.281, 29.854),
        ("h200:tp2", "h200:tp4x1:max_num_seqs=136", 897.179, 28.963),
        ("b200:tp1", "b200:tp4x1:max_num_seqs=176", 762.892, 24.673),
    ],
)
def test_pools_take_what_aiconfigurator_says_where_it_assumes_the_same(
    tmp_path: Path, prefill: str, decode: str, ttft_ms: float, tpot_ms: float
) -> None:
    """TTFT of a request alone, but for its factor of 1.8 for waiting, and TPOT of a full batch; 15 %."""
    seqs = int(decode.rpartition("=")[2])
    rows = [TraceRequest(f"r{n}", 0.0, 4000, 500) for n in range(2 * seqs)]
    write_trace(path := str(tmp_path / "fixed.jsonl"), rows, provenance="test")
    options = ("--model", "llama-3.1-70b", "--max-model-len", "8192", "--json")
    pools = ("--pool", f"prefill={prefill}x16:max_num_seqs=1", "--pool", f"decode={decode}")
    alone = json.loads(run(path, *options, *pools, "--limit", "1").stdout)
    full = json.loads(run(path, *options, *pools).stdout)
    assert alone["ttft_s"]["mean"] == pytest.approx(ttft_ms / 1000 / 1.8, rel=0.15)
    assert full["tpot_s"]["p90"] == pytest.approx(tpot_ms / 1000, rel=0.15)
