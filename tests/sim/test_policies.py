"""Policies in simulation: fields of a trace, predictions, refusals."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.config import ConfigError
from sundog.actors.core.policies import POLICIES, has_urgency
from sundog.actors.core.request import Submit
from sundog.actors.messages import Capacity
from sundog.actors.policy_file import find_policy
from sundog.sim.figures.metrics import summarize
from sundog.sim.oracle import PREDICTORS, ClassMean, Noisy, find_predictor
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import counting_tokens, replay
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError, TraceRequest
from tests.core.policies.world import DOCS, EXAMPLES
from tests.sim.test_replay import COST, digest, random_trace

RATE_LIMIT = f"{DOCS / 'rate_limit.py'}:RateLimit:per_minute=400"
NAMES = [*(name for name in POLICIES if name != "decode-first"), *EXAMPLES]
LIMITS = SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=256, max_model_len=280)
CAPACITY = Capacity(40, 16)


def tenants(seed: int) -> Iterator[TraceRequest]:
    """A random trace of three tenants, with targets."""
    for number, row in enumerate(random_trace(seed)):
        tenant = ("chat", "chat", "batch")[number % 3]
        yield row._replace(tenant=tenant, slo_ttft_s=0.1 + number % 5)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", NAMES)
def test_every_policy_replays_and_decode_runs_change_no_byte(name: str) -> None:
    """Every request gets its tokens, and one event for many steps gives the same record."""
    policy = find_policy(name)
    limits = replace(LIMITS, preempt_for_priority=has_urgency(policy), max_overtakes=2)
    config = EngineConfig(limits, policy)
    records: list[Recorder] = []
    for decode_runs in (True, False):
        records.append(
            replay(
                tenants(5),
                replace(config, decode_runs=decode_runs),
                COST,
                CAPACITY,
                predictor=find_predictor("noisy"),
            )
        )
    assert digest(records[0]) == digest(records[1])
    columns = records[0].columns
    wanted = {row.request_id: row.num_output_tokens for row in tenants(5)}
    assert dict(zip(columns.request_id, columns.num_output_tokens, strict=True)) == wanted
    assert sum(columns.num_preemptions) > 0


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_who_is_refused_is_told_in_the_same_step_with_runs_or_without(is_async: bool) -> None:
    """Not at the end of a run that begins as it is refused."""
    config = EngineConfig(replace(LIMITS, max_num_seqs=2, async_scheduling=is_async), find_policy(RATE_LIMIT))
    runs, alone = (
        replay(tenants(5), replace(config, decode_runs=decode_runs), COST, CAPACITY)
        for decode_runs in (True, False)
    )
    assert digest(runs) == digest(alone)
    assert 3 < summarize(runs).num_refused < len(list(tenants(5))) - 3


def test_what_policies_look_at_survives_writing_and_reading(tmp_path: Path) -> None:
    """Priority, tenant and target are columns of our own format."""
    path, rows = str(tmp_path / "trace.jsonl"), list(tenants(1))
    write_trace(path, rows, provenance="test", hash_block_tokens=16)
    known = [row._replace(hash_block_tokens=16) for row in rows]
    assert list(read_trace(path)) == known


@pytest.mark.parametrize("wrong", ["0", "-1", "true", '"soon"', "1e300"])
def test_a_target_that_is_no_time_is_refused(tmp_path: Path, wrong: str) -> None:
    """By file, line and column."""
    path = tmp_path / "trace.jsonl"
    units = {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"}
    header = json.dumps({"format": "sundog-trace", "version": 1, "units": units})
    row = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "slo_ttft_s": %s}'
    path.write_text(f"{header}\n{row % wrong}\n")
    with pytest.raises(TraceError, match=r"line 2, column slo_ttft_s"):
        list(read_trace(str(path)))


def test_a_wish_carries_a_guess_only_if_somebody_guesses() -> None:
    """The scheduler's side of the wire never names the true length."""
    row = next(tenants(0))
    assert counting_tokens(16)(row).predicted_tokens is None
    assert counting_tokens(16, find_predictor("oracle"))(row).predicted_tokens == row.num_output_tokens
    assert counting_tokens(16)(row).slo_ttft_s == row.slo_ttft_s
    assert "num_output_tokens" not in {field.name for field in fields(Submit)}


def test_a_prediction_ends_no_request() -> None:
    """Under a policy that ignores it, any predictor gives the same bytes."""
    config = EngineConfig(LIMITS)
    guessers = [None, *map(find_predictor, PREDICTORS)]
    runs = {digest(replay(tenants(2), config, COST, CAPACITY, predictor=g)) for g in guessers}
    assert len(runs) == 1


def test_the_class_mean_knows_only_earlier_requests_of_the_tenant() -> None:
    """Then everybody's, then nothing."""
    rows = [("a", 10), ("a", 20), ("b", 90), ("a", 7), ("b", 7)]
    requests = [TraceRequest("r", 0.0, 1, n, tenant=tenant) for tenant, n in rows]
    predictor = ClassMean()
    assert [predictor.predict(request) for request in requests] == [None, 10, 15, 15, 90]


def test_noisy_guesses_come_from_the_seed() -> None:
    """Same seed, same guesses; another seed, others; never below one token."""
    row = TraceRequest("r", 0.0, 1, 3)
    guesses = [[p.predict(row) for _ in range(50)] for p in (Noisy(1), Noisy(1), Noisy(2))]
    assert guesses[0] == guesses[1] != guesses[2]
    assert min(guesses[0]) >= 1 and len(set(guesses[0])) > 3


def test_an_unknown_predictor_is_an_error_that_names_the_known() -> None:
    """For the command line."""
    with pytest.raises(ConfigError, match="oracle, class-mean, noisy"):
        find_predictor("crystal-ball")


def test_foresight_shortens_the_mean_wait_under_load() -> None:
    """What shortest-remaining is for; the worse the guess, the smaller the gain."""
    rows = [row._replace(arrival_s=0.0, hash_ids=None, hash_block_tokens=0) for row in tenants(3)]
    means = {}
    for name, predictor in (("fcfs", None), ("shortest-remaining", find_predictor("oracle"))):
        limits = replace(LIMITS, max_num_seqs=4)
        config = EngineConfig(limits, find_policy(name))
        columns = replay(rows, config, COST, Capacity(200, 16), predictor=predictor).columns
        means[name] = sum(columns.finish_s) / len(columns.finish_s)
    assert means["shortest-remaining"] < 0.8 * means["fcfs"]


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    """With the option; without it the engine does not start, as the pool is below the context."""
    rows = [TraceRequest("large", 0.0, 170, 5), TraceRequest("small", 0.1, 20, 200)]
    pool = Capacity(11, 16)
    with pytest.raises(ExceptionGroup) as failure:
        replay(rows, EngineConfig(LIMITS), COST, pool)
    assert failure.group_contains(ConfigError, match="max_model_len")
    recorder = replay(rows, EngineConfig(LIMITS, refuse_never_fit=True), COST, pool)
    summary = summarize(recorder)
    assert (summary.num_refused, summary.num_finished) == (1, 1)
    assert list(recorder.columns.num_output_tokens) == [0, 140], "the answer ends where the cache does"
