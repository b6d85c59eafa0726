"""The API processes of a simulated server: by closed forms, and beside a loop of turns."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
import trio

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.front_costs import NO_FRONT, FrontCosts, parse_front_costs
from sundog.actors.engine.front_queue import FrontQueue, HeadStart
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Abort, Batch, Capacity, Chunk, StepOutput, Submit, ToEngine
from sundog.sim.clock import run_virtual
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest

EXACT_S = 1e-9


class Engine(Actor[ToEngine]):
    """Notes when what came: a request by its id, an abort by that with a minus."""

    def __init__(self) -> None:
        super().__init__("engine")
        self.came_s: dict[str, float] = {}

    def handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self.came_s[message.request_id] = self.clock.now_s()
            case Abort():
                self.came_s |= {f"-{name}": self.clock.now_s() for name in message.request_ids}
            case _:
                raise AssertionError(message)


def submit(name: str, num_prompt_tokens: int = 100, prompt: tuple[int, ...] | None = None) -> Submit:
    return Submit(name, 0.0, num_prompt_tokens, 10, prompt_token_ids=prompt)


def step(end_s: float, num_decodes: int, num_first: int = 0) -> StepOutput:
    """A step in which so many requests got a token, some of them their first."""
    chunks = tuple([Chunk(f"c{number}", 5, samples=True) for number in range(num_first)])
    return StepOutput(
        replica=0,
        batch=Batch(0, chunks=chunks, num_decodes=num_decodes),
        start_s=end_s,
        end_times_s=(end_s,),
        tokens=None,
        finished=(),
        num_running=0,
        num_waiting=0,
        num_free_blocks=0,
    )


Sent = tuple[float, Submit | Abort | StepOutput]


def through(costs: FrontCosts, sent: Sequence[Sent], head_start: HeadStart | None = None) -> dict[str, float]:
    """The times at which messages that are sent at some times come out of the queue."""
    engine, queue = Engine(), FrontQueue("front-queue", costs, head_start)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            queue.connect(engine.ref("front-queue"))  # addresses before starts: who has no callers ends
            router = queue.ref("router")
            await nursery.start(engine.live)
            await nursery.start(queue.live)
            for time_s, message in sent:
                if time_s > trio.current_time():
                    await trio.sleep_until(time_s)
                router.tell(message)
            router.close()

    run_virtual(main)
    return engine.came_s


def test_the_kth_of_requests_at_once_is_with_the_engine_after_k_services() -> None:
    """With a response behind each, k - 1 of these as well."""
    at_once = [(0.0, submit(f"r{k}")) for k in range(1, 9)]
    came_s = through(FrontCosts(request=0.01), at_once)
    assert came_s == pytest.approx({f"r{k}": k * 0.01 for k in range(1, 9)}, abs=EXACT_S)
    came_s = through(FrontCosts(request=0.01, response=0.004), at_once)
    assert came_s == pytest.approx({f"r{k}": k * 0.01 + (k - 1) * 0.004 for k in range(1, 9)}, abs=EXACT_S)


def test_of_requests_at_once_each_waits_for_all_stages_but_the_last_of_the_others() -> None:
    """In s stages of 1/s of a service the kth of n is with the engine after ((s - 1) n + k) / s services."""
    at_once = [(0.0, submit(f"r{k}")) for k in range(1, 9)]
    for stages in (2, 3, 10):
        came_s = through(FrontCosts(request=0.01, stages=stages), at_once)
        services = {f"r{k}": ((stages - 1) * 8 + k) / stages for k in range(1, 9)}
        assert came_s == pytest.approx(
            {name: 0.01 * number for name, number in services.items()}, abs=EXACT_S
        )


def test_a_request_that_comes_meanwhile_takes_its_turns() -> None:
    """Stages of 4 ms: a a | b a b b, as b comes at 6 ms; c comes in the last stage of b, and is alone."""
    sent: list[Sent] = [(0.0, submit("a")), (0.006, submit("b")), (0.021, submit("c"))]
    came_s = through(FrontCosts(request=0.012, stages=3), sent)
    assert came_s == pytest.approx({"a": 0.016, "b": 0.024, "c": 0.036}, abs=EXACT_S)


def turns(arrivals_s: Sequence[float], costs: FrontCosts) -> list[float]:
    """When an event loop has done the stages of each request, first ready first."""
    ends_s, ready = [0.0] * len(arrivals_s), deque[tuple[int, int]]()
    time_s, number = 0.0, 0
    while ready or number < len(arrivals_s):
        if not ready:
            time_s = max(time_s, arrivals_s[number])
            ready.append((number, costs.stages))
            number += 1
        (first, left), time_s = ready.popleft(), time_s + costs.request / costs.stages
        while number < len(arrivals_s) and arrivals_s[number] <= time_s:
            ready.append((number, costs.stages))
            number += 1
        if left > 1:
            ready.append((first, left - 1))
        else:
            ends_s[first] = time_s
            time_s += costs.response
    return ends_s


@pytest.mark.parametrize("seed", range(20))
def test_any_arrivals_leave_as_from_an_event_loop(seed: int) -> None:
    """Singly and in groups, from idle to overloaded; two processes are two loops with every other request."""
    rng = np.random.default_rng(seed)
    stages, response_s = int(rng.integers(1, 6)), float(rng.choice([0.0, 0.003]))
    costs = FrontCosts(request=0.01, response=response_s, processes=int(rng.integers(1, 4)), stages=stages)
    gaps_s = rng.exponential(0.01 / rng.uniform(0.2, 3.0), 300) * (rng.random(300) < 0.7)
    arrivals_s = gaps_s.cumsum().tolist()
    came_s = through(costs, [(time_s, submit(str(k))) for k, time_s in enumerate(arrivals_s)])
    for process in range(costs.processes):
        names = range(process, 300, costs.processes)
        expected_s = turns([arrivals_s[k] for k in names], costs)
        assert [came_s[str(k)] for k in names] == pytest.approx(expected_s, abs=1e-7)


def test_two_processes_halve_the_wait_of_a_burst() -> None:
    """Each has every other request: the kth comes after as many services as its process has had."""
    at_once = [(0.0, submit(f"r{k}")) for k in range(1, 9)]
    came_s = through(FrontCosts(request=0.01, processes=2), at_once)
    assert came_s == pytest.approx({f"r{k}": (k + 1) // 2 * 0.01 for k in range(1, 9)}, abs=EXACT_S)


def test_service_takes_longer_by_each_token_of_the_prompt() -> None:
    costs = FrontCosts(request=0.01, prompt_token=1e-5)
    came_s = through(costs, [(0.0, submit("short", 100)), (0.0, submit("long", 4_000))])
    assert came_s == pytest.approx({"short": 0.011, "long": 0.011 + 0.05}, abs=EXACT_S)


def test_a_free_process_begins_at_once() -> None:
    came_s = through(FrontCosts(request=0.01), [(1.0, submit("a")), (1.5, submit("b"))])
    assert came_s == pytest.approx({"a": 1.01, "b": 1.51}, abs=EXACT_S)


def test_poisson_arrivals_wait_as_pollaczek_and_khinchine_say() -> None:
    """M/D/1: the mean wait is load x service / (2 (1 - load)), within 3 %."""
    service_s, load, count = 0.01, 0.5, 40_000
    arrivals_s = np.random.default_rng(3).exponential(service_s / load, count).cumsum()
    names = [f"r{number}" for number in range(count)]
    rows = zip(arrivals_s.tolist(), names, strict=True)
    came_s = through(FrontCosts(request=service_s), [(time_s, submit(name)) for time_s, name in rows])
    waits_s = np.array([came_s[name] for name in names]) - arrivals_s - service_s
    assert waits_s.min() > -EXACT_S
    assert waits_s.mean() == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.03)


def test_streaming_delays_the_requests_behind_it_and_no_other() -> None:
    """Forty tokens, of which three are first ones, take a process 40 ms; requests go behind them."""
    costs = FrontCosts(request=0.01, output_token=0.001)
    sent: list[Sent] = [(0.0, submit("before")), (0.0, step(0.0, 37, 3)), (0.0, submit("behind"))]
    came_s = through(costs, [*sent, (1.0, submit("later"))])
    assert came_s == pytest.approx({"before": 0.01, "behind": 0.06, "later": 1.01}, abs=EXACT_S)


def test_an_abort_does_not_overtake_its_request() -> None:
    """It ends what waits at once; the others come when they would have."""
    sent: list[Sent] = [(0.0, submit("a")), (0.0, submit("b")), (0.0, submit("c"))]
    came_s = through(FrontCosts(request=0.01), [*sent, (0.005, Abort(("b",)))])
    assert came_s == pytest.approx({"b": 0.005, "-b": 0.005, "a": 0.01, "c": 0.03}, abs=EXACT_S)
    assert list(came_s) == ["b", "-b", "a", "c"]


def test_an_id_that_is_used_again_waits_its_own_time() -> None:
    sent: list[Sent] = [(0.0, submit("a")), (0.001, Abort(("a",))), (0.002, submit("a"))]
    assert through(FrontCosts(request=0.01), sent)["a"] == pytest.approx(0.02, abs=EXACT_S)


def test_choices_of_one_prompt_are_read_once() -> None:
    prompt = tuple(range(50))
    sent: list[Sent] = [(0.0, submit(f"r-{choice}", 50, prompt)) for choice in range(3)]
    came_s = through(FrontCosts(request=0.01), [*sent, (0.0, submit("other", 50, tuple(range(50, 100))))])
    assert came_s == pytest.approx({"r-0": 0.01, "r-1": 0.01, "r-2": 0.01, "other": 0.02}, abs=EXACT_S)


def test_what_a_server_has_done_before_counts() -> None:
    """It takes 4 ms until a request is here: of 10 ms the first waits 6 more, and those behind it 10 each."""
    sent: list[Sent] = [(0.004, submit("a")), (0.008, submit("b")), (0.012, submit("c"))]
    came_s = through(FrontCosts(request=0.01), sent, HeadStart(lead_s=0.004))
    assert came_s == pytest.approx({"a": 0.01, "b": 0.02, "c": 0.03}, abs=EXACT_S)


COST = Calibrated(0.01, 0.0, 0.0, 0.0, 0.0)
CONFIG = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=64, max_model_len=4096), decode_runs=True)


def replayed(front: FrontCosts, replicas: int = 1, num_tokens: int = 1) -> Recorder:
    """Eight requests at once, whose steps take 10 ms each."""
    rows = [TraceRequest(str(k), 0.0, 10, num_tokens) for k in range(8)]
    config = EngineConfig(CONFIG.scheduler, replicas=replicas, decode_runs=True, front=front)
    return replay(rows, config, COST, Capacity(1000, 16))


def test_a_request_has_arrived_before_it_was_served() -> None:
    """TTFT counts from its arrival: the kth of a burst has its token a step after k services."""
    found = replayed(FrontCosts(request=0.01)).columns
    assert list(found.arrival_s) == [0.0] * 8
    # Steps of 10 ms begin with each request: the first at 10 ms, and it ends when the second comes.
    assert list(found.first_token_s) == pytest.approx([0.02 + 0.01 * k for k in range(8)], abs=1e-6)


def test_each_server_behind_a_router_has_processes_of_its_own() -> None:
    found = replayed(FrontCosts(request=0.01), replicas=4).columns
    assert sorted(found.first_token_s) == pytest.approx([0.02] * 4 + [0.03] * 4, abs=1e-6)


def test_no_costs_are_no_actor() -> None:
    """The same messages, of the same actors, as without a front end."""
    senders: list[set[str]] = []
    for front in (NO_FRONT, FrontCosts(processes=4), FrontCosts(request=0.01)):
        seen: set[str] = set()
        config = EngineConfig(CONFIG.scheduler, decode_runs=True, front=front)

        def tap(time_s: float, sender: str, receiver: str, message: object, seen: set[str] = seen) -> None:
            seen.add(receiver)

        replay([TraceRequest("a", 0.0, 10, 5)], config, COST, Capacity(1000, 16), tap=tap)
        senders.append(seen)
    assert senders[0] == senders[1] == senders[2] - {"front-queue-0"}
    assert "front-queue-0" in senders[2]


@pytest.mark.parametrize(
    ("token_s", "scheduled_s"),
    [
        (0.002, 0.11),  # the token of 100 ms was streamed by 102: it is free, and the next step begins at 110
        (0.0145, 0.16),  # ten tokens since 10 ms: it is free at 10 + 145
        (0.0205, 0.22),  # at 10 + 205
    ],
)
def test_tokens_that_are_streamed_are_counted_step_by_step(token_s: float, scheduled_s: float) -> None:
    """A request that comes in the middle of what would be a decode run waits for the tokens before it."""
    rows = [TraceRequest("a", 0.0, 10, 50), TraceRequest("b", 0.1095, 10, 1)]
    config = EngineConfig(CONFIG.scheduler, decode_runs=True, front=FrontCosts(output_token=token_s))
    found = replay(rows, config, COST, Capacity(1000, 16)).columns
    assert found.first_scheduled_s[1] == pytest.approx(scheduled_s, abs=1e-6)


def test_costs_that_are_not_given_stay() -> None:
    known = FrontCosts(request=0.007, response=0.003)
    assert parse_front_costs("processes=2", known) == FrontCosts(0.007, 0.003, processes=2)
    assert parse_front_costs("stages=3", known) == FrontCosts(0.007, 0.003, stages=3)
    assert parse_front_costs("request=0,prompt_token=1e-6", known) == FrontCosts(0.0, 0.003, 1e-6)
