"""The server's counters equal the sums over its requests, including engine crashes."""

import logging

import pytest
import trio

from sundog.actors.api.exposition.families import COUNTERS, GAUGES, HISTOGRAMS
from sundog.actors.messages import Cancel, Generate, Refused
from sundog.actors.metrics.logs import log_request
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.totals import Histogram, one_two_five
from tests.actors.fakes import read
from tests.test_fates import ask, served, text
from tests.test_layers import ROOT


def test_a_histogram_counts_what_is_at_most_each_bound() -> None:
    """The bound itself included, as Prometheus has it."""
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 3):
        histogram.observe(value)
    histogram.observe(2, times=2)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 5), ("+Inf", 6)]
    assert histogram.sum == 10 and histogram.count == 6


def test_bounds_of_tokens_are_one_two_five() -> None:
    """Up to the context, as in vLLM."""
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)
    assert one_two_five(3) == (1, 2)


async def test_counts_and_times_are_those_of_the_requests() -> None:
    """Tokens in and out, and each time exactly once."""
    metrics = Metrics(1, 128)
    async with served({"a": text("abcd")}, listeners=[metrics]) as (_, client):
        answers = [await ask(client, name) for name in ("a", "b")]
        deltas = [await read(answer) for answer in answers]
        (engine,) = metrics.engines
        assert engine.num_blocks and engine.kv_usage == 0 and not metrics.requests
        assert (engine.num_running, engine.num_waiting, engine.blocked_by) == (0, 0, None)
    num_tokens = sum(delta.num_tokens for delta in deltas)
    assert engine.num_generation_tokens == num_tokens == 5 + 20
    assert engine.num_prompt_tokens == sum(answer.num_prompt_tokens for answer in answers)
    assert engine.ended == {"stop": 1, "length": 1}
    assert engine.ttft_s.count == engine.e2e_s.count == engine.decode_s.count == 2
    assert engine.inter_token_s.count == num_tokens - 2
    assert engine.inter_token_s.sum == pytest.approx(engine.decode_s.sum)
    assert engine.e2e_s.sum == pytest.approx(engine.queue_s.sum + engine.inference_s.sum)
    assert engine.inference_s.sum == pytest.approx(engine.prefill_s.sum + engine.decode_s.sum)
    gaps = [
        later - sooner
        for delta in deltas
        for sooner, later in zip(delta.times_s, delta.times_s[1:], strict=False)
    ]
    assert engine.inter_token_s.sum == pytest.approx(sum(gaps))


async def test_a_cached_prefix_is_a_hit_and_no_work() -> None:
    """The same prompt again computes only what must be computed."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics], block_size=4) as (_, client):
        for name in ("a", "b"):
            await read(await ask(client, name, max_tokens=2))
    (engine,) = metrics.engines
    assert engine.num_prefix_queries == engine.num_prompt_tokens
    assert engine.num_prefix_hits == engine.num_cached_tokens == 4
    assert engine.computed_prompt_tokens.sum == engine.num_prompt_tokens - 4


async def test_who_leaves_is_counted_and_not_timed() -> None:
    """Half an answer says nothing of the engine's speed."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics]) as (_, client):
        answer = await ask(client, "a", max_tokens=100)
        await anext(answer.stream)
        client.tell(Cancel("a"))
    assert metrics.engines[0].ended == {"abort": 1}
    assert metrics.engines[0].e2e_s.count == 0 and not metrics.requests


async def test_a_crash_is_a_restart_and_what_had_begun_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """What had not begun is measured where it is answered; nothing is left behind."""
    metrics = Metrics(1, 128, on_end=[log_request])
    with caplog.at_level(logging.INFO, "sundog.requests"):
        async with served(listeners=[metrics], max_num_seqs=1) as (world, client):
            begun, waiting = await ask(client, "a"), await ask(client, "b", max_tokens=3)
            await anext(begun.stream)
            world.crash()
            assert (await read(begun)).finish_reason == "error"
            assert not metrics.engines[0].is_up and metrics.engines[0].num_running == 0
            assert (await read(waiting)).finish_reason == "length"
            (engine,) = metrics.engines
            assert engine.is_up and engine.num_restarts == 1 and not metrics.requests
    assert engine.ended == {"error": 1, "length": 1}
    lines = [record for record in caplog.records if record.name == "sundog.requests"]
    fields = {record.fields["request_id"]: record.fields for record in lines}  # type: ignore[attr-defined]
    assert fields["a"]["finish_reason"] == "error" and fields["b"]["output_tokens"] == 3
    assert "5 tokens in (0 cached), 3 out" in lines[1].getMessage()


async def test_the_throughput_is_said_while_there_is_some(caplog: pytest.LogCaptureFixture) -> None:
    """Every ten seconds, once more when all is idle, and then no more."""
    metrics = Metrics(1, 128, says_throughput=True)
    with caplog.at_level(logging.INFO, "sundog.engine"):
        async with served(listeners=[metrics]) as (_, client):
            await trio.sleep(35)
            assert not caplog.records
            await read(await ask(client, "a", max_tokens=100))
            await trio.sleep(60)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and said[0].startswith("Engine 000: Avg prompt throughput: 0.5 tokens/s, ")
    assert "Avg generation throughput: 10.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs" in said[0]
    assert "generation throughput: 0.0" in said[1]


async def test_a_refused_request_leaves_nothing_behind() -> None:
    """It never was one of the engine's."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics]) as (_, client):
        assert isinstance(await client.ask(Generate("x" * 1000)), Refused)
    assert not metrics.requests and not metrics.engines[0].ended


@pytest.mark.parametrize(
    "family", [name for name in (*GAUGES, *COUNTERS, *HISTOGRAMS) if name.startswith("sundog:")]
)
def test_every_metric_of_our_own_is_documented(family: str) -> None:
    """In `docs/metrics.md`; those of vLLM are described there."""
    assert f"`{family}" in (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
