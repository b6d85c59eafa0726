"""The graph of actors, the same in every world. Worlds differ in backends, clock and fates."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Never

import trio

from sundog.actors.block_hash import block_hasher
from sundog.actors.config import EngineConfig
from sundog.actors.core.policies import Fcfs, Policy
from sundog.actors.core.routers import RoundRobin
from sundog.actors.engine.backend import Engine
from sundog.actors.engine.crash import summary
from sundog.actors.engine.engine_core import run_engine
from sundog.actors.engine.reports import Roster, report
from sundog.actors.engine.supervisor import EngineSupervisor, Supervision
from sundog.actors.fates import Fate
from sundog.actors.front.async_llm import AsyncLLM, FromClients, News
from sundog.actors.front.codec import TextCodec, Vocabulary
from sundog.actors.front.front_end import FrontEnd
from sundog.actors.front.intake import Intake, PromptReader
from sundog.actors.kernel.actor import Actor, Ref, Tap
from sundog.actors.messages import CeaseFetch, EngineRefs, EngineUp, FetchKv, Heard, PolicyFailed, StepOutput
from sundog.actors.router.router import Router

log = logging.getLogger("sundog")


@asynccontextmanager
async def open_graph(
    config: EngineConfig,
    backends: Sequence[Engine],
    *,
    codec: TextCodec | None = None,
    vocabulary: Vocabulary | None = None,
    listeners: Sequence[Actor[Heard]] = (),
    tap: Tap | None = None,
    supervision: Supervision | None = None,
    front_end: FrontEnd | None = None,
    roster: Roster | None = None,
    links: Actor[FetchKv | CeaseFetch] | None = None,
    without_routes: Sequence[Actor[Heard]] = (),
) -> AsyncIterator[Ref[FromClients]]:
    """Open the graph over one engine per backend, from the leaves, and yield the address of AsyncLLM.

    Leaving the block hangs up: accepted requests are finished, then the actors end from the root, the
    listeners last.

    Args:
        config: Configuration of the deployment.
        backends: Backend of each replica.
        codec: Tokenizer; None if prompts are token ids or counts.
        vocabulary: Size and special tokens of the model's vocabulary.
        listeners: Actors that receive every Submit, StepOutput, EngineUp, EngineDown and PolicyFailed.
        tap: Hook that sees every message.
        supervision: What follows a crash; by default a crash ends the run and is raised.
        front_end: Actor that delays steps on their way to AsyncLLM.
        roster: Record of all actors.
        links: Actor that copies KV blocks from engine to engine.
        without_routes: Listeners that are not sent the Router's choices (Routed), because they ignore them.
    """
    roster = Roster() if roster is None else roster
    supervision = supervision or Supervision()
    fallback = Fcfs() if supervision.fates.policy is Fate.REPLACED else None
    behind: list[Actor[News]] = [*listeners, *([] if front_end is None else [front_end])]
    async with trio.open_nursery() as listening:
        holds = [actor.ref("graph") for actor in behind]
        await _begin_listening(listening, listeners, front_end, supervision.fates.listener)
        async with trio.open_nursery() as nursery:
            routed_to = [listener for listener in listeners if listener not in without_routes]
            router = _router(config, fallback, routed_to, links, tap)
            if links is not None:
                await nursery.start(links.live, name=links.name)
            intake = _intake(config, codec, vocabulary or Vocabulary())
            readers = _readers(intake, tap)
            async_llm = _async_llm(config, router, intake, readers, behind, tap)
            router.report_to(async_llm.ref("router", counted=False))
            client = async_llm.ref("client")
            head_start = None if front_end is None else front_end.head_start
            supervisors, heard_by = [], _heard_by(router, async_llm, listeners, front_end)
            for replica, (backend, role) in enumerate(zip(backends, config.roles, strict=True)):
                own = config.of_replica(replica)
                run_core = partial(run_engine, replica, own, heard_by, fallback, tap, roster, head_start)
                router_ref = router.ref(name := f"supervisor-{replica}", counted=False)
                supervisor = EngineSupervisor(
                    replica, supervision, run_core=run_core, router=router_ref, has_served=router.has_served
                )
                engine: EngineRefs = await nursery.start(supervisor.run, backend, name=name)
                supervisors.append(supervisor)
                router.connect(engine, role)
                _tell(holds, EngineUp(replica, engine))
                intake.connect(engine.capacity)
            async with trio.open_nursery() as front:
                actors: list[Actor[Never]] = [*readers, router, async_llm]
                roster.enter("front", partial(report, [async_llm, router, *readers]))
                roster.enter("listeners", partial(report, behind))
                for actor in actors:
                    await front.start(actor.live, name=actor.name)
                try:
                    yield client
                finally:
                    client.close()
            for supervisor in supervisors:
                supervisor.stop()
        _hang_up(holds)


def _intake(config: EngineConfig, codec: TextCodec | None, vocabulary: Vocabulary) -> Intake:
    return Intake(config, codec, vocabulary, block_hasher(config.prefix_caching_hash_algo))


def _tell(holds: Sequence[Ref[News]], news: EngineUp) -> None:
    for hold in holds:
        hold.tell(news)


def _hang_up(holds: Sequence[Ref[News]]) -> None:
    for hold in holds:
        hold.close()


def _readers(intake: Intake, tap: Tap | None) -> tuple[PromptReader, PromptReader]:
    return PromptReader("prompt-reader-long", intake, tap=tap), PromptReader(
        "prompt-reader-longest", intake, tap=tap
    )


def _async_llm(
    config: EngineConfig,
    router: Router,
    intake: Intake,
    readers: tuple[PromptReader, PromptReader],
    behind: Sequence[Actor[News]],
    tap: Tap | None,
) -> AsyncLLM:
    name = "async-llm"
    refs = (readers[0].ref(name), readers[1].ref(name))
    listeners = [actor.ref(name, counted=False) for actor in behind]
    return AsyncLLM(
        name, config, router=router.ref(name), intake=intake, readers=refs, listeners=listeners, tap=tap
    )


def _router(
    config: EngineConfig,
    fallback: Policy | None,
    listeners: Sequence[Actor[Heard]],
    links: Actor[FetchKv | CeaseFetch] | None,
    tap: Tap | None,
) -> Router:
    """Return the Router; if failing policies are to be replaced, with round-robin as the fallback."""
    return Router(
        "router",
        config.router,
        seed=config.seed,
        fallback=None if fallback is None else RoundRobin(),
        listeners=[listener.ref("router", counted=False) for listener in listeners],
        links=None if links is None else links.ref("router"),
        hands_over=config.hands_over,
        num_routers=config.router_replicas,
        tap=tap,
    )


def _heard_by(
    router: Router, async_llm: AsyncLLM, listeners: Sequence[Actor[Heard]], front_end: FrontEnd | None
) -> list[Actor[StepOutput | PolicyFailed]]:
    """Return the actors that receive StepOutputs: the Router first, if its policy needs them."""
    first: Actor[StepOutput | PolicyFailed] = async_llm
    if front_end is not None:
        front_end.connect(async_llm.ref(front_end.name, counted=False))
        first = front_end
    always: list[Actor[StepOutput | PolicyFailed]] = [first, *listeners]
    return [router, *always] if router.follows_steps else always


class _Opening:
    """Task status that records whether an actor has opened."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status
        self.is_done = False

    def started(self, value: None = None) -> None:
        self.is_done = True
        self._task_status.started()


async def _begin_listening(
    nursery: trio.Nursery, listeners: Sequence[Actor[Heard]], front_end: FrontEnd | None, fate: Fate
) -> None:
    """Start the actors that receive StepOutputs, except AsyncLLM."""
    for listener in listeners:
        await nursery.start(_listen, listener, fate, name=listener.name)
    if front_end is not None:
        await nursery.start(front_end.live, name=front_end.name)


async def _listen(
    listener: Actor[Heard], fate: Fate, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a listener; whether its crash ends the run depends on `fate`."""
    opening = _Opening(task_status)
    try:
        await listener.live(task_status=opening)
    except Exception as error:
        if fate is not Fate.ENDS_ALONE or not opening.is_done:
            raise
        log.warning("%s has ended, and the server goes on without it: %s", listener.name, summary(error))
