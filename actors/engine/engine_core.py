"""EngineCore: the nursery in which one replica's four actors start and end together."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Never

import trio

from sundog.actors.block_hash import block_hasher
from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.hop_costs import HopCosts
from sundog.actors.core.blocks.kv_events import KvChanges
from sundog.actors.core.policies import Policy
from sundog.actors.core.policies.guard import GuardedPolicy, PolicyError, guarded
from sundog.actors.core.queue.step_times import MeasuredSteps, StepTimes
from sundog.actors.core.records import dataclass
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.engine.backend import (
    Backend,
    CompilesGrammars,
    DiesUnnoticed,
    Engine,
    Listener,
    PricesSteps,
    RemoteCore,
    WatchesActors,
)
from sundog.actors.engine.compiler import Compiler
from sundog.actors.engine.executor import Executor, Runner
from sundog.actors.engine.front_queue import FrontQueue, HeadStart
from sundog.actors.engine.grammars_ahead import GrammarsAhead
from sundog.actors.engine.kv_cache_manager import KVCacheManager
from sundog.actors.engine.reports import Roster, report
from sundog.actors.engine.scheduler import Scheduler
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, Tap, answer
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import (
    Abort,
    ChangeAdapters,
    EngineRefs,
    Freeze,
    HandOver,
    KvFetched,
    Load,
    PolicyFailed,
    Pull,
    Submit,
    TakenIn,
    ToEngine,
    ToRunner,
    Withdraw,
)


@dataclass(frozen=True, slots=True)
class Arrived:
    """Message of a Hop to itself: a delayed message is due."""

    message: Submit | Abort


class Hop(Actor[ToEngine | Arrived]):
    """Actor that forwards messages after a delay."""

    def __init__(
        self, name: str, costs: HopCosts, scheduler: Ref[ToEngine], *, tap: Tap | None = None
    ) -> None:
        super().__init__(name, tap=tap)
        self._costs = costs
        self._scheduler = scheduler
        self._num_under_way = 0
        self._last_s = 0.0

    @property
    def idle(self) -> bool:
        return not self._num_under_way

    def handle(self, message: ToEngine | Arrived) -> Handled:
        match message:
            case Submit():
                self._pass_on(message, self._costs.submit + self._costs.token * message.num_prompt_tokens)
            case Abort():
                self._pass_on(message, self._costs.submit)
            case Arrived():
                self._num_under_way -= 1
                with suppress(ActorDied):
                    self._scheduler.tell(message.message)
            case KvFetched() | Withdraw() | HandOver():
                self._scheduler.tell(message)
            case Freeze():
                return answer(message, self._scheduler.request(message))
            case ChangeAdapters():
                return answer(message, self._scheduler.request(message))
            case Pull():
                return answer(message, self._scheduler.request(message))
            case _:
                self.unknown(message)
        return None

    async def closed(self) -> None:
        self._scheduler.close()

    def _pass_on(self, message: Submit | Abort, takes_s: float) -> None:
        self._last_s = max(self._last_s, self.clock.now_s() + takes_s)
        self._num_under_way += 1
        self.schedule(self._last_s, Event.ARRIVAL, Arrived(message))


log = logging.getLogger("sundog.engine")

CLOSE_S = 10.0
"""Seconds in which a backend must release its resources after the core was stopped or crashed."""


async def run_engine(
    replica: int,
    config: EngineConfig,
    listeners: Sequence[Listener],
    fallback: Policy | None,
    tap: Tap | None,
    roster: Roster,
    head_start: HeadStart | None,
    engine: Engine,
    on_up: Callable[[EngineRefs], None],
) -> None:
    """Run a replica's core to its end, here or where its `engine` is, registered in the roster meanwhile.

    `head_start` has the time that requests have spent before they reach the configured API processes.
    """
    place = f"engine-{replica}"
    started: list[Actor[Never]] = []

    def on_actors(actors: Sequence[Actor[Never]]) -> None:
        started.extend(actors)
        roster.enter(place, partial(report, started))
        if isinstance(engine, WatchesActors):
            engine.watch(actors)

    try:
        if isinstance(engine, RemoteCore):
            roster.enter(place, engine.reports)
            await engine.run_core(listeners, on_up)
        else:
            await run_engine_core(
                replica, config, listeners, fallback, tap, [engine], on_up, on_actors, head_start=head_start
            )
    finally:
        roster.leave(place)


async def run_engine_core(
    replica: int,
    config: EngineConfig,
    listeners: Sequence[Listener],
    fallback: Policy | None,
    tap: Tap | None,
    backends: Sequence[Backend],
    on_up: Callable[[EngineRefs], None],
    on_actors: Callable[[Sequence[Actor[Never]]], None] = lambda actors: None,
    elsewhere: Sequence[Ref[ToRunner]] = (),
    taken_in: Ref[TakenIn] | None = None,
    head_start: HeadStart | None = None,
) -> None:
    """Run a core to its end, and release everything that its `backends`, one per rank, allocated.

    Runners of further ranks are `elsewhere`. After a failure of a user's policy the `fallback` takes over;
    with None the core crashes. `on_actors` gets the actors as they start, the loading ones first. `taken_in`
    gets each request before a batch with it is executed.
    """
    try:
        await _run_actors(
            replica,
            config,
            listeners,
            fallback,
            tap,
            backends,
            on_up,
            on_actors,
            elsewhere,
            taken_in,
            head_start,
        )
    finally:
        with trio.move_on_after(CLOSE_S, shield=True):
            for backend in backends:
                await backend.close()


async def _run_actors(
    replica: int,
    config: EngineConfig,
    listeners: Sequence[Listener],
    fallback: Policy | None,
    tap: Tap | None,
    backends: Sequence[Backend],
    on_up: Callable[[EngineRefs], None],
    on_actors: Callable[[Sequence[Actor[Never]]], None],
    elsewhere: Sequence[Ref[ToRunner]],
    taken_in: Ref[TakenIn] | None,
    head_start: HeadStart | None,
) -> None:
    """Start the actors from the leaves, report their addresses, and end when all of them have.

    Raises ConfigError if the KV cache cannot hold one full request.
    """
    async with trio.open_nursery() as nursery:

        async def start(actor: Actor[Never]) -> None:
            await nursery.start(actor.live, name=actor.name)

        runners = [Runner(f"runner-{replica}.{rank}", each, tap=tap) for rank, each in enumerate(backends)]
        here = [runner.ref(f"executor-{replica}") for runner in runners]
        executor = Executor(f"executor-{replica}", [*here, *elsewhere], tap=tap)
        scheduler_name = f"scheduler-{replica}"
        executor_ref = executor.ref(scheduler_name)
        for actor in (*runners, executor):
            await start(actor)
        on_actors([executor, *runners])
        capacity = await executor_ref.ask(Load())
        scheduler_config = config.with_blocks(capacity.num_blocks)
        manager = _kv_cache_manager(replica, config, scheduler_config, tap)
        front = None
        # Engines that only decode are sent requests by others, which have read them.
        if config.front.delays_requests and config.roles[replica] != "decode":
            front = FrontQueue(f"front-queue-{replica}", config.front, head_start, tap=tap)
        told = [*listeners, front] if front is not None and front.follows_steps else listeners
        refs_of_listeners = [listener.ref(scheduler_name, counted=False) for listener in told]
        compilers = [each for each in backends[:1] if isinstance(each, CompilesGrammars)]  # rank 0 samples
        grammars = None
        for each in compilers:
            compiler = Compiler(f"compiler-{replica}", each, tap=tap)
            grammars = GrammarsAhead(compiler.ref(scheduler_name), each)
            await start(compiler)
        state = SchedulerState(
            scheduler_config,
            _policy(replica, config.policy, fallback, refs_of_listeners),
            manager.lend(),
            lockstep_enabled=config.lockstep,
            decode_runs=config.decode_runs,
            seed=config.seed,
            step_times=_step_times(backends),
        )
        scheduler = Scheduler(
            scheduler_name,
            replica,
            state=state,
            executor=executor_ref,
            listeners=refs_of_listeners,
            grammars=grammars,
            taken_in=taken_in,
            checks_when_idle=config.debug,
            tap=tap,
        )
        manager.connect(scheduler.ref(manager.name))
        entrance: Ref[ToEngine] = scheduler.ref("router")
        manager_ref = manager.ref("router")  # addresses before starts: an actor without callers ends
        await start(manager)
        await start(scheduler)
        if config.hops.delays_requests:
            hop = Hop(f"hop-{replica}", config.hops, entrance, tap=tap)
            entrance = hop.ref("router")
            await start(hop)
        if front is not None:
            front.connect(entrance)
            entrance = front.ref("router")
            await start(front)
        on_actors([scheduler, manager])
        on_up(EngineRefs(entrance, manager_ref, capacity, partial(_running, state, backends)))


def _running(state: SchedulerState, backends: Sequence[Backend]) -> tuple[str, ...]:
    missed = {name for each in backends if isinstance(each, DiesUnnoticed) for name in each.missed}
    return tuple([name for name in state.running if name not in missed])


def _step_times(backends: Sequence[Backend]) -> StepTimes:
    """Return the source of step durations: a backend with modelled time, or measurements."""
    return next((each for each in backends if isinstance(each, PricesSteps)), MeasuredSteps())


def _kv_cache_manager(
    replica: int, config: EngineConfig, limits: SchedulerConfig, tap: Tap | None
) -> KVCacheManager:
    """Return the owner of the pool. It records KV events if a router or publisher needs them."""
    records = config.publishes_kv_events or config.router.index == "events"
    return KVCacheManager(
        f"kv-cache-manager-{replica}",
        limits,
        block_hasher(config.prefix_caching_hash_algo),
        changes=KvChanges(config.publishes_kv_events) if records else None,
        tap=tap,
    )


def _policy(
    replica: int, policy: Policy, fallback: Policy | None, listeners: Sequence[Ref[PolicyFailed]]
) -> Policy:
    def tell(error: PolicyError) -> None:
        assert fallback is not None
        log.error("engine %d: %s; %s takes over", replica, error, type(fallback).__name__)
        for listener in listeners:
            listener.tell(PolicyFailed(replica, str(error)))

    own = guarded(policy)
    if isinstance(own, GuardedPolicy):
        own.fallback = fallback
        if fallback is not None:
            own.replace_when_slow(time.perf_counter)
        own.on_failure.append(tell)
    return own
