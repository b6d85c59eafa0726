"""The live page's snapshot matches the engine's state, in the scheduler's order, each block once."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio

from sundog.actors.api.live import Live
from sundog.actors.core.policies import ShortestPrompt
from sundog.actors.engine.reports import Roster
from sundog.actors.messages import Cancel, Generate, Sampling
from sundog.actors.metrics.forecast import FirstToken, Known
from sundog.actors.metrics.measured import percentiles
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.snapshot import actors_shown, snapshot, waiting_in_order
from tests.actors.fakes import read
from tests.test_fates import BACKOFF, ask, served


def test_percentiles_count_how_often() -> None:
    """The smallest value with at least that share at or below it."""
    assert percentiles([]) == ()
    assert percentiles([(1.0, 90), (2.0, 9), (3.0, 1)]) == (1.0, 2.0, 2.0)
    assert percentiles([(5.0, 1)]) == (5.0, 5.0, 5.0)


async def test_blocks_are_those_of_the_running_requests() -> None:
    """Disjoint spans, as many blocks as are held; a shared prefix is nobody's alone."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics], block_size=4, max_num_seqs=2) as (_, client):
        answers = [await ask(client, name, max_tokens=60) for name in ("a", "b", "c")]
        for answer in answers[:2]:
            await anext(answer.stream)
        shown = snapshot(metrics, metrics.clock.now_s(), {"c": FirstToken(2.0, 1.0, 4.0)})
        engine = metrics.engines[0]
        (spans,) = shown["blocks"]  # type: ignore[misc]
        held = [block for first, count, _ in spans for block in range(first, first + count)]
        assert len(held) == len(set(held)) == engine.num_blocks - engine.num_free_blocks
        assert {holder for _, _, holder in spans} == {-1, 0, 1}
        (waiting,) = shown["waiting"]  # type: ignore[misc]
        assert waiting["id"] == "c" and waiting["lacks"] == "max_num_seqs" and waiting["behind"] is None
        assert waiting["forecast_ttft_s"] == waiting["age_s"] + 2.0
        assert waiting["forecast_range_s"] == (waiting["age_s"] + 1.0, waiting["age_s"] + 4.0)
        assert [each["id"] for each in shown["running"]] == ["a", "b"]  # type: ignore[attr-defined]
        for answer in answers:
            await read(answer)
    shown = snapshot(metrics, 0.0, {})
    assert shown["blocks"] == [[]] and not shown["running"] and len(shown["ended"]) == 3  # type: ignore[arg-type]


async def test_who_waits_is_listed_in_the_policys_order() -> None:
    """The next one first, whenever it came."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics], max_num_seqs=1, policy=ShortestPrompt()) as (_, client):
        first = await ask(client, "first", max_tokens=30)
        await anext(first.stream)
        for name, prompt in (("long", "x" * 50), ("short", "x"), ("middle", "x" * 20)):
            await client.ask(Generate(prompt, Sampling(max_tokens=2), request_id=name))
        await anext(first.stream)
        await anext(first.stream)
        order = [request.request_id for request in waiting_in_order(metrics)]
    assert order == ["short", "middle", "long"]


async def test_while_no_engine_is_up_the_page_says_why_and_who_waits() -> None:
    """When it is started again, and nobody whose client has left."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics], max_num_seqs=1) as (world, client):
        begun, *waiting = [await ask(client, name) for name in ("begun", "waits", "leaves")]
        await anext(begun.stream)
        world.crash()
        await read(begun)
        await trio.sleep(0.25)
        shown: Any = snapshot(metrics, metrics.clock.now_s(), {})
        (engine,) = shown["engines"]
        assert not engine["is_up"] and "execute of replica 0" in engine["why_down"]
        assert 0.0 < engine["next_start_in_s"] <= 0.75
        assert [each["id"] for each in shown["waiting"]] == ["waits", "leaves"] and not shown["running"]
        assert [each["num_losses"] for each in shown["waiting"]] == [1, 1]
        client.tell(Cancel("leaves"))
        await trio.sleep(0.25)
        shown = snapshot(metrics, metrics.clock.now_s(), {})
        assert not shown["engines"][0]["is_up"] and [each["id"] for each in shown["waiting"]] == ["waits"]
        assert [(each["id"], each["reason"]) for each in shown["ended"]] == [
            ("leaves", "abort"),
            ("begun", "error"),
        ]
        for answer in waiting:
            await read(answer)
    shown = snapshot(metrics, 0.0, {})
    (engine,) = shown["engines"]
    assert engine["is_up"] and engine["why_down"] is None and engine["next_start_in_s"] is None


async def test_actors_say_what_they_have_handled_while_they_live() -> None:
    """All of a graph by where they are; those of a core that is lost are not there until the next is up."""
    roster = Roster()
    async with served(roster=roster) as (world, client):
        first = {(each["place"], each["name"]): each for each in actors_shown(roster.reports())}
        assert {place for place, _ in first} == {"front", "engine-0", "listeners"}
        assert {"async-llm", "router", "scheduler-0", "executor-0", "runner-0.0"} <= {
            name for _, name in first
        }
        await read(await ask(client, "a", max_tokens=5))
        then = {(each["place"], each["name"]): each for each in actors_shown(roster.reports())}
        steps = {name: then[key]["num_handled"] for key in then if (name := key[1]).startswith("runner")}
        assert steps == {"runner-0.0": 6}, "Load, and a batch for each token"
        assert all(then[key]["at_s"] > first[key]["at_s"] for key in first)  # type: ignore[operator]
        world.crash()
        begun = await ask(client, "b")
        await trio.sleep(0.5)
        assert {place for place, _ in roster.reports()} == {"front", "listeners"}
        await read(begun)
        await trio.sleep(BACKOFF.first_s)
        assert {place for place, _ in roster.reports()} == {"front", "engine-0", "listeners"}


class Failing:
    """A forecast in which a user's policy raises."""

    def first_tokens_s(
        self, replica: int, running: Sequence[Known], waiting: Sequence[Known]
    ) -> Mapping[str, float]:
        raise ValueError("a policy of mine")


async def test_a_forecast_that_fails_is_given_up_and_the_page_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With one warning; what is known is shown."""
    metrics = Metrics(1, 128)
    async with served(listeners=[metrics], max_num_seqs=1) as (_, client), trio.open_nursery() as nursery:
        live = Live(metrics, {}, nursery, Roster(), Failing())
        answers = [await ask(client, name, max_tokens=60) for name in "ab"]
        await anext(answers[0].stream)
        for _ in range(2):
            event = await live.event()
            shown = json.loads(event.removeprefix(b"data: "))
            assert shown["num_waiting"] == 1 and shown["waiting"][0]["forecast_ttft_s"] is None
            await trio.sleep(0.6)
            live._forecast_s = -math.inf
    assert [record.message for record in caplog.records].count("the forecast failed and is switched off") == 1
