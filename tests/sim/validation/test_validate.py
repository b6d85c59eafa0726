"""Validation: a simulated server is predicted without error, and records are read strictly."""

import gzip
import itertools
import json
import shutil
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sundog.actors.config.front_costs import FrontCosts
from sundog.sim.cost.overhead import NO_OVERHEAD, HostOverhead
from sundog.sim.figures.server_log import MeasuredError
from sundog.sim.show.validation_table import ShownRefusal, accuracy_page, print_validation, to_json
from sundog.sim.validation.errors import ValidationRow, summary
from sundog.sim.validation.measured import THROUGHPUT, MeasuredServer, exact_poisson
from sundog.sim.validation.predict import predict
from sundog.sim.validation.records import find_servers

OWN = Path("sim/validation/servers")
WRITTEN = """
source = "a test"
model = "llama-3.1-8b"
gpu = "h100"
max_num_seqs = {seqs}
max_num_batched_tokens = 2048
num_gpu_blocks = 9000
async_scheduling = false

[load]
rate_per_s = {rate}
duration_s = 20
prompt_tokens = 300
output_tokens = 60

[measured_ms]
ttft = {{ mean = 10.0, p99 = 20.0 }}
tpot = {{ mean = 8.0 }}
"""


def server(folder: Path, rate: float = 5.0, seqs: int = 64) -> MeasuredServer:
    (folder / "one.server.toml").write_text(WRITTEN.format(rate=rate, seqs=seqs))
    (found,) = find_servers(folder)
    return found


def test_a_server_that_is_the_simulator_is_predicted_without_error(tmp_path: Path) -> None:
    """What it measured is what is predicted, figure by figure."""
    real = server(tmp_path)
    (first,) = predict(real, NO_OVERHEAD, "roofline")
    figures = {name: value * 1e3 for name, value in first.figures.items()}
    text = WRITTEN.format(rate=5.0, seqs=64).partition("[measured_ms]")[0] + "[measured_ms]\n"
    for metric in ("ttft", "tpot", "e2e"):
        kinds = (f"{k} = {figures[f'{metric} {k}']!r}" for k in ("mean", "p50", "p90", "p99"))
        text += f"{metric} = {{ {', '.join(kinds)} }}\n"
    (tmp_path / "one.server.toml").write_text(text)
    (real,) = find_servers(tmp_path)
    row = ValidationRow(real, real.stages[0], predict(real, NO_OVERHEAD, "roofline")[0])
    assert len(real.stages[0].figures) == 12
    for name in real.stages[0].figures:
        assert row.error(name) == pytest.approx(0, abs=1e-12)


BURSTS = """
source = "test"
model = "llama-3.1-8b"
gpu = "h100"
max_num_seqs = 64
max_num_batched_tokens = 2048

[load]
rate_per_s = 10
duration_s = 1.6
prompt_tokens = 64
output_tokens = 4
at_once = 4
warm_requests = 6

[measured_ms]
ttft = { p50 = 30.0 }
"""


def test_a_burst_comes_when_the_one_before_has_ended(tmp_path: Path) -> None:
    """Sixteen requests, four at once, of which six warm the server: 4 + 2, then 4 + 4 + 2 that count.

    With 50 ms a request, longer than a step, the kth of four waits k x 50 ms more, and shares no step.
    """
    (tmp_path / "one.server.toml").write_text(BURSTS)
    (real,) = find_servers(tmp_path)
    sizes = [len(list(group)) for _, group in groupby(real.requests, key=lambda each: each.after)]
    assert sizes == [4, 2, 4, 4, 2] and real.stages[0].first == 6
    assert real.requests[4].after == ("0", "1", "2", "3") and real.requests[6].after == ("4", "5")
    without, with_it = (
        predict(real, HostOverhead(front=FrontCosts(request=seconds)), "auto")[0].figures
        for seconds in (0.0, 0.05)
    )
    shifts_s = sorted([0.05, 0.1, 0.15, 0.2] * 2 + [0.05, 0.1])
    assert with_it["ttft mean"] - without["ttft mean"] == pytest.approx(sum(shifts_s) / 10, abs=0.01)
    (tmp_path / "one.server.toml").write_text(BURSTS.replace("warm_requests = 6", "warm_requests = 16"))
    with pytest.raises(MeasuredError, match="warm_requests: no request of 16 is left"):
        list(find_servers(tmp_path))


def test_the_front_end_is_seen_by_a_client_and_by_nobody_else(tmp_path: Path) -> None:
    """TTFT and E2E are later by it, TPOT is the same."""
    real = server(tmp_path)
    (without,) = predict(real, NO_OVERHEAD, "auto")
    # As many processes as requests: none waits for another.
    front = FrontCosts(request=0.25, processes=len(real.requests))
    (with_it,) = predict(real, HostOverhead(front=front), "auto")
    for name, value in without.figures.items():
        shift = 0.25 if name.startswith(("ttft", "e2e")) else 0.0
        if name != THROUGHPUT:
            assert with_it.figures[name] == pytest.approx(value + shift)


@pytest.mark.long(reason="predicts a record at several loads")
def test_a_range_is_told_and_is_wider_the_nearer_the_knee(tmp_path: Path) -> None:
    """Faster steps at its low end, slower ones at its high end, the prediction within."""
    (calm,) = predict(server(tmp_path), NO_OVERHEAD, "auto")
    (full,) = predict(server(tmp_path, rate=200.0, seqs=8), NO_OVERHEAD, "auto")
    assert (calm.regime, full.regime) == ("below the knee", "beyond the knee")
    assert not calm.is_beyond_knee and full.is_beyond_knee
    for prediction in (calm, full):
        for name, value in prediction.figures.items():
            assert prediction.low[name] <= value <= prediction.high[name]
    assert full.high["ttft mean"] - full.low["ttft mean"] > 10 * calm.high["ttft mean"]


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_clients_with_a_cap_never_have_more_requests_unfinished(tmp_path: Path) -> None:
    """What would queue at the server then waits at the client, and is not in TTFT."""
    text = WRITTEN.format(rate=200.0, seqs=8).replace("duration_s = 20", "duration_s = 4")
    (tmp_path / "a.server.toml").write_text(text)
    (tmp_path / "b.server.toml").write_text(
        text.replace("[measured_ms]", "max_concurrency = 8\n[measured_ms]")
    )
    (open_loop, *_), (capped, *_) = (predict(s, NO_OVERHEAD, "auto") for s in find_servers(tmp_path))
    assert capped.figures["ttft mean"] < 0.1 < open_loop.figures["ttft mean"]
    assert capped.figures[THROUGHPUT] == pytest.approx(open_loop.figures[THROUGHPUT], rel=0.1)


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_clients_that_give_up_are_no_part_of_the_figures(tmp_path: Path) -> None:
    """An overloaded server whose clients leave after a second answers the others as fast as it can."""
    text = WRITTEN.format(rate=200.0, seqs=8).replace("duration_s = 20", "duration_s = 4")
    (tmp_path / "a.server.toml").write_text(text)
    (tmp_path / "b.server.toml").write_text(text.replace("[measured_ms]", "timeout_s = 1.0\n[measured_ms]"))
    (patient, *_), (hasty, *_) = (predict(s, NO_OVERHEAD, "auto") for s in find_servers(tmp_path))
    assert hasty.figures["e2e mean"] <= 1.0 < patient.figures["e2e mean"]


def test_prompts_that_come_round_hit_the_prefix_cache(tmp_path: Path) -> None:
    """Written down by hand, as in a summary."""
    text = WRITTEN.format(rate=5.0, seqs=64)
    (tmp_path / "a.server.toml").write_text(text)
    (tmp_path / "b.server.toml").write_text(
        text.replace("[measured_ms]", "prompts = 10\nprompt_groups = 2\nshared_tokens = 64\n[measured_ms]")
    )
    unique, shared = find_servers(tmp_path)
    assert shared.requests[0].hash_ids == shared.requests[10].hash_ids != shared.requests[1].hash_ids
    (slow,), (fast,) = predict(unique, NO_OVERHEAD, "auto"), predict(shared, NO_OVERHEAD, "auto")
    assert fast.figures["ttft mean"] < 0.8 * slow.figures["ttft mean"]


def test_a_model_is_read_from_a_config_beside_the_record(tmp_path: Path) -> None:
    """Its path is relative to the record and keeps all its parts."""
    (tmp_path / "mine").mkdir()
    shutil.copy("sim/hardware/models/llama-3.1-8b.json", tmp_path / "mine" / "config.json")
    text = WRITTEN.format(rate=5.0, seqs=64)
    (tmp_path / "a.server.toml").write_text(text)
    (tmp_path / "b.server.toml").write_text(text.replace('"llama-3.1-8b"', '"./mine"'))
    by_name, by_path = find_servers(tmp_path)
    by_path = replace(by_path, requests=by_name.requests)
    assert (
        predict(by_name, NO_OVERHEAD, "auto")[0].figures == predict(by_path, NO_OVERHEAD, "auto")[0].figures
    )


def test_arrivals_take_exactly_as_long_as_the_rate_says() -> None:
    """And gaps are exponential: as much spread as mean."""
    times = np.array(exact_poisson(4.0, 8000, 1, "test"))
    assert times[-1] == pytest.approx(2000.0)
    gaps = np.diff(times)
    assert gaps.min() > 0 and gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)


@pytest.mark.long(reason="predicts every record that ships")
def test_the_records_that_come_with_sundog_are_predicted_within_three_percent() -> None:
    """Mean latencies of the load that the host's share was fitted to, and of a heavier one."""
    from sundog.sim.cost.overhead import host_overhead

    heavy, light = (
        ValidationRow(real, real.stages[0], predict(real, host_overhead(True), "auto")[0])
        for real in find_servers(OWN)
    )
    most = {"ttft mean": 0.035, "tpot mean": 0.01, "e2e mean": 0.01, "e2e p99": 0.06, "ttft p99": 0.1}
    for row, name in itertools.product((heavy, light), most):
        error = row.error(name)
        assert error is not None and abs(error) < most[name], (row.server.name, name, error)
    text = to_json([heavy, light], [])
    assert [stage["server"] for stage in json.loads(text)["stages"]] == [
        "qwen3-14b-h100-8rps",
        "qwen3-14b-h100",
    ]
    assert summary([heavy, light])["below the knee, fitted"]["stages"] == 2


def test_the_table_shows_real_predicted_and_error(tmp_path: Path) -> None:
    """In one cell each."""
    real = server(tmp_path)
    row = ValidationRow(real, real.stages[0], predict(real, NO_OVERHEAD, "auto")[0])
    with (tmp_path / "out").open("w+") as file:
        print_validation([row], [ShownRefusal("other", "why")], Console(file=file, width=110))
        file.seek(0)
        text = file.read()
    error = row.error("ttft mean")
    assert (
        f"{error:+.1%}" in text and "10.00" in text and "held out" in text and "other: refused: why" in text
    )


def test_a_log_of_requests_is_read_with_its_own_arrivals(tmp_path: Path) -> None:
    """Sorted by arrival, counted from the first, latencies from the instants."""
    folder = tmp_path / "H100_Llama-3.1-8B"
    folder.mkdir()
    meta = {
        "model": "m",
        "vllm_version": "0.19.0",
        "kv_cache": {"num_gpu_blocks": 500},
        "engine_kwargs": {
            "model": "meta-llama/Llama-3.1-8B",
            "tensor_parallel_size": 1,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 512,
            "max_model_len": 4096,
        },
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    rows = [
        {
            "input_toks": 20,
            "output_toks": 5,
            "queued_ts": 101.0,
            "first_token_ts": 101.5,
            "last_token_ts": 102.5,
        },
        {
            "input_toks": 10,
            "output_toks": 1,
            "queued_ts": 100.0,
            "first_token_ts": 100.25,
            "last_token_ts": 100.25,
        },
    ]
    text = "\n".join(map(json.dumps, rows))
    (folder / "requests.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (real,) = find_servers(tmp_path)
    assert [r.arrival_s for r in real.requests] == [0.0, 1.0]
    assert real.model == "llama-3.1-8b" and real.async_scheduling and not real.at_client
    assert real.stages[0].figures["tpot mean"] == 0.25
    assert real.stages[0].figures["ttft mean"] == pytest.approx((0.25 + 0.5) / 2)


def test_prompts_of_a_summary_come_round_and_share_what_their_groups_share(tmp_path: Path) -> None:
    """Two groups of two prompts, the first block in common."""
    header = (
        "experiment,model,tp,mbt,max_seqs,stage,rate,duration,groups,prompts_per_group,system_len,"
        "output_len_requested,prompt_len_mean,ttft_mean_ms,ttft_median_ms,ttft_p90_ms,ttft_p99_ms,"
        "e2e_mean_ms,e2e_median_ms,e2e_p90_ms,e2e_p99_ms,tpot_true_mean_ms"
    )
    row = "x,meta-llama/Llama-2-7b-hf,1,2048,128,{},2.0,3.0,2,2,20,9,40.4" + ",5" * 9
    (tmp_path / "summary.csv").write_text(f"{header}\n{row.format(0)}\n{row.format(-1)}\n")
    (real,) = find_servers(tmp_path)
    assert len(real.stages) == 1 and len(real.requests) == 6
    ids = [request.hash_ids for request in real.requests]
    assert ids[0] == ids[4] and ids[0] is not None and ids[1] is not None and ids[2] is not None
    assert ids[0][0] == ids[1][0] and ids[0][1] != ids[1][1] and ids[0][0] != ids[2][0]
    assert real.requests[0].num_prompt_tokens == 40


BAD: list[tuple[str, str, str]] = [
    ("a.server.toml", "source = 3", "source: Input should be a valid string"),
    ("a.server.toml", "= nonsense", "a.server.toml"),
    ("a.server.toml", WRITTEN.format(rate=-1, seqs=8), "load.rate_per_s: Input should be greater"),
    ("a.server.toml", "polcy = 1\n" + WRITTEN.format(rate=1, seqs=8), "polcy: there is no such key"),
    ("summary.csv", "experiment,stage\nx,0\n", "line 2: 'rate'"),
    ("meta.json", "[]", "is not a JSON object"),
    ("meta.json", "{", "meta.json"),
]


@pytest.mark.parametrize(("name", "text", "reason"), BAD, ids=[name for name, _, _ in BAD])
def test_a_record_that_is_damaged_is_one_clear_error(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    """It names the file and the place."""
    (tmp_path / name).write_text(text)
    with pytest.raises(MeasuredError, match=reason.replace("(", r"\(")):
        list(find_servers(tmp_path))


def test_a_summary_of_something_else_is_passed_over(tmp_path: Path) -> None:
    """Only one with experiments is of a server, and the others beside it are still found."""
    (tmp_path / "summary.csv").write_text("load,ttft_mean_ms\n2rps,66.9\n")
    (tmp_path / "one.server.toml").write_text(WRITTEN.format(rate=5.0, seqs=64))
    assert [found.name for found in find_servers(tmp_path)] == ["one"]


def test_a_directory_without_records_says_what_it_looked_for(tmp_path: Path) -> None:
    """And one that is not there says so."""
    with pytest.raises(MeasuredError, match="has no record of a server"):
        list(find_servers(tmp_path))
    with pytest.raises(MeasuredError, match="is not a directory"):
        list(find_servers(tmp_path / "nowhere"))


def test_the_page_in_the_documentation_is_one_that_validate_writes() -> None:
    """Its words are those of today; its figures are of the records that were there."""
    page = Path("docs/accuracy.md").read_text()
    words = [part for part in accuracy_page([], []).split("\n\n") if part and not part.startswith("|")]
    assert len(words) > 10 and all(part in page for part in words)
    for group in ("below the knee, held out", "below the knee, fitted", "near and beyond the knee"):
        assert f"| {group} |" in page
