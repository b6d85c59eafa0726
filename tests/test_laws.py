"""Invariants of the composed graph, on random workloads larger than their tiny pools.

Requests, blocks and time are conserved, and the same seed gives the same bytes however Trio shuffles.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import pytest
import trio

from sundog.actors.core.policies import Fcfs, Priority
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.rules import LeastRequests
from sundog.actors.front.codec import Vocabulary
from sundog.actors.graph import open_graph
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.actors.kernel.stream import Delta
from sundog.actors.messages import (
    Abort,
    Accepted,
    Batch,
    Cancel,
    Finish,
    Generate,
    Load,
    Released,
    Sampling,
    StepOutput,
    StepResult,
)
from sundog.sim.clock import run_virtual
from tests.actors.fakes import EOS, FILLER, FakeBackend, Listener, engine_config
from tests.core.traces import num_cases

BLOCK_SIZE = 4
MAX_MODEL_LEN = 64
NUM_BLOCKS = 26
SEEDS = range(num_cases(6))


@dataclass(frozen=True)
class Asked:
    """One client: when it comes, what it asks, what it will get, and when it loses patience."""

    name: str
    arrival_s: float
    prompt: tuple[int, ...]
    max_tokens: int
    outputs: tuple[int, ...]
    priority: int
    patience_s: float | None

    @property
    def expected(self) -> tuple[int, ...]:
        """The tokens it gets if nobody cancels it."""
        limit = min(self.max_tokens, MAX_MODEL_LEN - len(self.prompt))
        return (*self.outputs, *(FILLER,) * limit)[: min(len(self.outputs) or limit, limit)]


@dataclass
class Run:
    """Everything that was seen of one run."""

    asked: list[Asked]
    messages: list[tuple[float, str, str, Any]] = field(default_factory=list)
    submits: list[Submit] = field(default_factory=list)
    outputs: list[StepOutput] = field(default_factory=list)
    answers: dict[str, tuple[float, Delta]] = field(default_factory=dict)

    def of_replica(self) -> dict[int, list[StepOutput]]:
        replicas = defaultdict(list)
        for output in self.outputs:
            replicas[output.replica].append(output)
        return replicas

    @property
    def finishes(self) -> list[tuple[float, Finish]]:
        return [(o.end_times_s[-1], finish) for o in self.outputs for finish in o.finished]


def asked(seed: int, num_requests: int = 24) -> list[Asked]:
    rng = random.Random(seed)
    stems = [tuple(rng.randrange(1, 200) for _ in range(40)) for _ in range(2)]
    arrival_s, rows = 0.0, []
    for number in range(num_requests):
        arrival_s += rng.choice([0, 1, 1, 8, 40]) / 256
        own = tuple(rng.randrange(1, 200) for _ in range(rng.randint(1, 12)))
        prompt = rng.choice(stems)[: rng.choice([0, 0, 8, 24, 40])] + own
        max_tokens = rng.randint(1, MAX_MODEL_LEN - len(prompt))
        length = rng.randint(1, max_tokens)
        tokens = tuple(rng.randrange(1, 200) for _ in range(length - 1))
        rows.append(
            Asked(
                name=f"r{number}",
                arrival_s=arrival_s,
                prompt=prompt,
                max_tokens=max_tokens,
                outputs=(*tokens, EOS) if rng.random() < 0.7 else (),
                priority=rng.randrange(3),
                patience_s=rng.choice([0, 1, 30, 90]) / 256 if rng.random() < 0.25 else None,
            )
        )
    return rows


def run(
    rows: list[Asked], *, counts: bool = False, outputs: dict[str, Any] | None = None, **config: Any
) -> Run:
    """The requests through the composed graph on the virtual clock."""
    seen = Run(rows)
    told = {row.name: row.outputs for row in rows} if outputs is None else outputs
    settings = engine_config(max_model_len=MAX_MODEL_LEN, max_num_seqs=6, max_num_batched_tokens=24, **config)
    backends = [
        FakeBackend(told, num_blocks=NUM_BLOCKS, counts=counts, key=f"backend-{replica}")
        for replica in range(settings.replicas)
    ]
    listener = Listener()
    seen.submits, seen.outputs = listener.submits, listener.outputs

    async def main() -> None:
        vocabulary = Vocabulary(eos_token_id=EOS)

        def tap(time_s: float, sender: str, receiver: str, message: Any) -> None:
            seen.messages.append((time_s, sender, receiver, message))

        async with (
            open_graph(settings, backends, vocabulary=vocabulary, listeners=[listener], tap=tap) as client,
            trio.open_nursery() as clients,
        ):
            for row in rows:
                clients.start_soon(visit, client, row, counts, seen)

    run_virtual(main)
    return seen


async def visit(client: Any, one: Asked, counts: bool, seen: Run) -> None:
    """One client's life."""
    await sleep_until(one.arrival_s, Event.ARRIVAL, one.name)
    prompt = len(one.prompt) if counts else one.prompt
    sampling = Sampling(max_tokens=one.max_tokens)
    generate = Generate(prompt, sampling, request_id=one.name, priority=one.priority)
    accepted = await client.ask(generate)
    assert isinstance(accepted, Accepted)
    whole = Delta()
    async with trio.open_nursery() as nursery:
        if one.patience_s is not None:
            nursery.start_soon(lose_patience, client, one)
        async for delta in accepted.stream:
            assert whole.finish_reason is None, "something came after the last delta"
            whole = whole.merged(delta)
        seen.answers[one.name] = (now_s(), whole)
        nursery.cancel_scope.cancel()


async def lose_patience(client: Any, one: Asked) -> None:
    assert one.patience_s is not None
    await sleep_until(one.arrival_s + one.patience_s, Event.ARRIVAL, one.name)
    client.tell(Cancel(one.name))


WORLDS = {
    "plain": {},
    "counts": {"counts": True},
    "async": {"async_scheduling": True},
    "async-counts": {"async_scheduling": True, "counts": True},
    "priority": {"policy": Priority()},
    "three-replicas": {"replicas": 3, "router": LeastRequests()},
    "no-cache": {"enable_prefix_caching": False, "lockstep": False},
}


@pytest.fixture(scope="module", params=WORLDS, ids=str)
def world(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[Run]]:
    """A world's settings, and a run of every seed in it."""
    settings: dict[str, Any] = WORLDS[request.param]
    return settings, [run(asked(seed), **settings) for seed in SEEDS]


def tokens_by_request(seen: Run) -> Counter[str]:
    """Sampled tokens of each request, folded from the batches as `core/batch.py` says."""
    num_tokens: Counter[str] = Counter()
    for outputs in seen.of_replica().values():
        decoding: set[str] = set()
        for output in outputs:
            batch = output.batch
            decoding -= {*batch.finished, *batch.preempted}
            num_tokens.update(decoding - set(batch.idle))
            sampling = [chunk.request_id for chunk in batch.chunks if chunk.samples]
            num_tokens.update(sampling)
            decoding.update(sampling)
    return num_tokens


def test_the_workloads_are_mean_enough(world: tuple[dict[str, Any], list[Run]]) -> None:
    """Requests are preempted, cancelled, and end by the end token and by length."""
    settings, runs = world
    if settings.get("replicas", 1) == 1:
        assert sum(len(output.batch.preempted) for seen in runs for output in seen.outputs) > 0
    reasons = {finish.reason for seen in runs for _, finish in seen.finishes}
    assert reasons == {"stop", "length", "abort"}


def test_requests_are_conserved(world: tuple[dict[str, Any], list[Run]]) -> None:
    """Whoever is submitted ends exactly once, for its reader and for the listeners."""
    for seen in world[1]:
        names = sorted(row.name for row in seen.asked)
        assert sorted(submit.request_id for submit in seen.submits) == names
        assert sorted(finish.request_id for _, finish in seen.finishes) == names
        assert sorted(seen.answers) == names
        assert all(delta.finish_reason for _, delta in seen.answers.values())


def test_blocks_are_conserved(world: tuple[dict[str, Any], list[Run]]) -> None:
    """Never more than there are, and all are free in the end."""
    for seen in world[1]:
        for outputs in seen.of_replica().values():
            assert all(0 <= output.num_free_blocks < NUM_BLOCKS for output in outputs)
            assert outputs[-1].num_free_blocks == NUM_BLOCKS - 1


def test_no_block_is_written_by_two_requests(world: tuple[dict[str, Any], list[Run]]) -> None:
    """Tables share blocks only below the computed tokens of those who hit them."""
    for seen in world[1]:
        for outputs in seen.of_replica().values():
            for tables in folded_tables(outputs):
                written = Counter(
                    block for blocks, num_shared in tables.values() for block in blocks[num_shared:]
                )
                assert not any(count > 1 for count in written.values())


def folded_tables(outputs: list[StepOutput]) -> Iterator[dict[str, tuple[list[int], int]]]:
    """Block tables after each batch, with how many blocks of each were a prefix hit."""
    tables: dict[str, tuple[list[int], int]] = {}
    for output in outputs:
        batch = output.batch
        for name in (*batch.finished, *batch.preempted):
            tables.pop(name, None)
        for each in batch.admitted:
            shared = each.num_computed_tokens // BLOCK_SIZE
            tables[each.request_id] = (list(each.block_ids), shared)
        for name, blocks in batch.new_blocks:
            tables[name][0].extend(blocks)
        yield tables


def test_time_never_goes_back(world: tuple[dict[str, Any], list[Run]]) -> None:
    """On no wire, and from no step to the next."""
    for seen in world[1]:
        times = [time_s for time_s, *_ in seen.messages]
        assert times == sorted(times)
        for outputs in seen.of_replica().values():
            ends = [end_s for output in outputs for end_s in output.end_times_s]
            assert ends == sorted(ends)
            assert all(output.start_s <= output.end_times_s[0] for output in outputs)


def test_arrival_first_scheduled_first_token_finish_come_in_this_order(
    world: tuple[dict[str, Any], list[Run]],
) -> None:
    """For every request that gets so far."""
    for seen in world[1]:
        scheduled: dict[str, float] = {}
        first_token: dict[str, float] = {}
        for output in seen.outputs:
            for admission in output.batch.admitted:
                scheduled.setdefault(admission.request_id, output.start_s)
            for chunk in output.batch.chunks:
                if chunk.samples:
                    first_token.setdefault(chunk.request_id, output.end_times_s[0])
        ends = {finish.request_id: end_s for end_s, finish in seen.finishes}
        for submit in seen.submits:
            name = submit.request_id
            times = [submit.arrival_s, scheduled.get(name), first_token.get(name)]
            known = [time_s for time_s in times if time_s is not None]
            assert known == sorted(known)
            if name in scheduled and seen.answers[name][1].finish_reason != "abort":
                assert known[-1] <= ends[name] == seen.answers[name][0]


def test_the_engine_is_never_idle_with_runnable_work(world: tuple[dict[str, Any], list[Run]]) -> None:
    """While anything waits or runs, a step begins the instant one ends; else with an arrival."""
    _, runs = world
    for seen in runs:
        arrivals = {submit.arrival_s for submit in seen.submits}
        for outputs in seen.of_replica().values():
            assert outputs[0].start_s in arrivals
            for last, output in pairwise(outputs):
                end_s = last.end_times_s[-1]
                if last.num_running or last.num_waiting:
                    assert output.start_s == end_s
                else:
                    assert output.start_s in {*arrivals, end_s}


@pytest.mark.parametrize("seed", SEEDS)
def test_under_async_scheduling_a_step_is_planned_before_the_last_has_ended(seed: int) -> None:
    """That is the whole point of it."""
    seen = run(asked(seed), async_scheduling=True)
    planned_s = {m.step: time_s for time_s, *_, m in seen.messages if isinstance(m, Batch)}
    before = [planned_s[output.step] < output.start_s for output in seen.outputs]
    assert sum(before) > len(before) / 2


def test_every_finished_request_got_exactly_its_tokens(world: tuple[dict[str, Any], list[Run]]) -> None:
    """In their order; a cancelled one got the first of them."""
    settings, runs = world
    for seen in runs:
        num_tokens = tokens_by_request(seen)
        for one in seen.asked:
            delta = seen.answers[one.name][1]
            if settings.get("counts"):
                if delta.finish_reason != "abort" and not settings.get("async_scheduling"):
                    assert num_tokens[one.name] == len(one.expected)
            elif delta.finish_reason == "abort":
                assert delta.token_ids == one.expected[: delta.num_tokens]
            else:
                assert delta.token_ids == one.expected
            if delta.finish_reason != "abort":
                ends_itself = one.expected[-1] == EOS
                assert delta.finish_reason == ("stop" if ends_itself else "length")


@pytest.mark.parametrize("seed", SEEDS)
def test_under_fcfs_requests_are_first_admitted_in_order_of_arrival(seed: int) -> None:
    """So nobody waits forever: whoever is next stays next."""
    seen = run([*asked(seed)], policy=Fcfs())
    first = [a.request_id for o in seen.outputs for a in o.batch.admitted if not a.resumed]
    arrivals = [submit.request_id for submit in seen.submits if submit.request_id in first]
    assert first == arrivals
    reasons = Counter(delta.finish_reason for _, delta in seen.answers.values())
    impatient = sum(one.patience_s is not None for one in seen.asked)
    assert reasons["abort"] <= impatient


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", WORLDS)
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    """Every wire carries the same messages at the same times, however Trio shuffles."""

    def wires() -> dict[tuple[str, str], bytes]:
        wires: dict[tuple[str, str], list[str]] = defaultdict(list)
        for time_s, sender, receiver, message in run(asked(3), **WORLDS[name]).messages:
            wires[sender, receiver].append(f"{time_s!r} {message!r}")
        return {wire: "\n".join(messages).encode() for wire, messages in wires.items()}

    first = wires()
    for _ in range(6):
        assert wires() == first


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_decode_runs_change_no_instant_and_no_end(seed: int, replicas: int) -> None:
    """Every step ends when it did, everyone is admitted and ends when they did; in fewer events."""

    def story(seen: Run) -> list[object]:
        return [
            [
                [end_s for output in outputs for end_s in output.end_times_s],
                [(o.start_s, a) for o in outputs for a in o.batch.admitted],
                [(o.end_times_s[-1], finish) for o in outputs for finish in o.finished],
            ]
            for _, outputs in sorted(seen.of_replica().items())
        ]

    stepwise = run(asked(seed), counts=True, replicas=replicas)
    in_runs = run(asked(seed), counts=True, replicas=replicas, decode_runs=True)
    assert story(in_runs) == story(stepwise)
    assert in_runs.answers == stepwise.answers
    assert len(in_runs.outputs) < len(stepwise.outputs)


def test_the_scheduler_cannot_see_output_lengths() -> None:
    """A Submit has no such field; `predicted_tokens` is a client's guess, `begun` what was sampled before."""
    assert {each.name for each in fields(Submit)} <= {
        "request_id",
        "arrival_s",
        "num_prompt_tokens",
        "max_tokens",
        "prompt_token_ids",
        "block_hashes",
        "sampling",
        "eos_token_id",
        "priority",
        "cache_salt",
        "tenant",
        "slo_ttft_s",
        "slo_tpot_s",
        "slo_e2e_s",
        "session",
        "predicted_tokens",
        "adapter",
        "has_remote_kv",
        "refused",
        "retry_after_s",
        "reached_s",
        "hands_over",
        "begun",
        "trace_headers",
    }


@pytest.mark.parametrize("counts", [False, True], ids=["tokens", "counts"])
def test_another_future_changes_nothing_before_it(counts: bool) -> None:
    """Until the first request ends differently, the batches are the same."""
    rows = asked(1)
    changed = {row.name: (*row.outputs[:-1], 7, 7, EOS) for row in rows}
    here, there = run(rows, counts=counts), run(rows, counts=counts, outputs=changed)
    num_equal = 0
    for mine, other in zip(here.outputs, there.outputs, strict=False):
        assert mine.batch == other.batch
        num_equal += 1
        if mine.finished != other.finished:
            break
    assert num_equal > 3


def test_messages_are_counted_by_step_and_request_and_never_by_token(
    world: tuple[dict[str, Any], list[Run]],
) -> None:
    """Three a step and one for each further listener; a handful for a request's whole life."""
    settings, runs = world
    for seen in runs:
        kinds = Counter(type(message) for *_, message in seen.messages)
        num_steps, num_requests = len(seen.outputs), len(seen.asked)
        assert kinds.pop(Batch) == 2 * num_steps, "Scheduler to Executor to Runner"
        assert kinds.pop(StepResult) == num_steps, "the Executor's answer"
        assert kinds.pop(StepOutput) <= num_steps, "to AsyncLLM while it lives; others have no tap"
        assert kinds.pop(Generate) == num_requests
        assert kinds.pop(Submit) == 2 * num_requests, "AsyncLLM to Router to Scheduler"
        assert kinds.pop(Released) <= num_requests, "while AsyncLLM lives"
        assert kinds.pop(Load) == 2 * settings.get("replicas", 1)
        num_cancels = kinds.pop(Cancel)
        assert kinds.pop(Abort) <= 2 * num_cancels
        assert not kinds
        assert len(seen.messages) < 10 * num_requests + 4 * num_steps + 10
