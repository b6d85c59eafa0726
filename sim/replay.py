"""Replay of a trace: simulated clients in front of the graph, on a virtual clock."""

import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from functools import partial

import trio

from sundog.actors.config import EngineConfig
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.records import dataclass
from sundog.actors.engine.backend import Backend
from sundog.actors.engine.supervisor import Supervision
from sundog.actors.front.async_llm import FromClients
from sundog.actors.front.codec import Vocabulary
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Actor, Ref, Tap
from sundog.actors.messages import Capacity, CeaseFetch, FetchKv, Generate, Heard
from sundog.sim.backend import Pace, TokenSource
from sundog.sim.client import Client, Progress, Recording
from sundog.sim.clock import run_virtual
from sundog.sim.cost.work import CostModel
from sundog.sim.in_step import RankBackend, waves_of
from sundog.sim.interrupt import Interrupted, ctrl_c, is_stopping
from sundog.sim.oracle import Oracle, Predictor
from sundog.sim.pipelined import cost_backend
from sundog.sim.record.columns import Columns, MovedColumns
from sundog.sim.record.recorder import HostHits, Recorder, RunAccount
from sundog.sim.record.sink import Sink
from sundog.sim.speculated import AcceptanceModel, Lengths, Speculated
from sundog.sim.trace.record import TraceRequest


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Surroundings of a run besides plain engines and clients.

    The `links` move keys and values between prefilling and decoding engines; `supervision` handles an
    engine's crash; `drivers` act on the fleet until the last request has ended. `own_blocks` has the KV
    blocks of each replica if they are not equal. The Recorder updates the `ledger`. `retries` is an argument
    of the Client, and `reshape` changes the rows of the trace.
    """

    links: Actor[FetchKv | CeaseFetch] | None = None
    supervision: Supervision | None = None
    drivers: Sequence[Callable[[Ref[FromClients], Client], Awaitable[None]]] = ()
    own_blocks: Sequence[int] = ()
    ledger: RunAccount | None = None
    listeners: Sequence[Actor[Heard]] = ()
    retries: tuple[int, float] | None = None
    reshape: Callable[[Iterable[TraceRequest]], Iterable[TraceRequest]] = iter

    def graph(
        self,
        config: EngineConfig,
        backends: Sequence[Backend],
        vocabulary: Vocabulary | None,
        recording: Actor[Heard],
        listeners: Sequence[Actor[Heard]],
        tap: Tap | None,
    ) -> AbstractAsyncContextManager[Ref[FromClients]]:
        """Open the graph of the run, with the listener of the clients first."""
        return open_graph(
            config,
            backends,
            vocabulary=vocabulary,
            listeners=[recording, *listeners, *self.listeners],
            without_routes=[recording],
            tap=tap,
            supervision=self.supervision,
            links=self.links,
        )

    async def play(self, llm: Ref[FromClients], client: Client) -> None:
        """Run the clients, with the drivers acting on the fleet meanwhile."""
        async with trio.open_nursery() as beside:
            for driver in self.drivers:
                beside.start_soon(driver, llm, client)
            await client.live()
            beside.cancel_scope.cancel()


Furnish = Callable[[Callable[[], TokenSource]], tuple[Sequence[Backend], Surroundings]]
"""Function that makes the backends and surroundings of a run; its argument makes their source of tokens."""
NOTHING_ELSE = Surroundings()


SELDOM = 10_000_000
"""Number of new objects after which Python looks for reference cycles: more than a run of 256 engines has at
once. A search takes 4 % of the time, and finds nothing.
"""


ROWS_AT_ONCE = 64
"""Number of rows that a Recorder adds to its columns at once: a call costs more than many rows."""


@contextmanager
def _few_collections() -> Iterator[None]:
    """Make Python look for reference cycles rarely, because messages and requests form none.

    Objects from before, mostly modules, are not searched. The run leaves one cycle, the graph and everything
    that its actors refer to; `gc.collect(1)` frees it once the run has returned.
    """
    usual = gc.get_threshold()
    gc.set_threshold(SELDOM, 50, 50)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


@_few_collections()
def replay(
    trace: Iterable[TraceRequest],
    config: EngineConfig,
    cost: CostModel,
    capacity: Capacity,
    *,
    predictor: Predictor | None = None,
    front_end_s: float = 0.0,
    max_concurrency: int | None = None,
    client_timeout_s: float | None = None,
    sink: Sink | None = None,
    on_progress: Progress | None = None,
    listeners: Sequence[Actor[Heard]] = (),
    tap: Tap | None = None,
    stop_when: Callable[[Recorder], bool] | None = None,
    furnish: Furnish | None = None,
) -> Recorder:
    """Run the trace through `config.replicas` engines of the given cost and capacity.

    `predictor` predicts the length of each answer at its arrival, for policies that use it; `front_end_s` is
    added to each client's latencies, beside the wait for the API processes of `config.front`; clients have at
    most `max_concurrency` requests unfinished, and give up a request after `client_timeout_s`. A `sink` gets
    rows once they are complete, and the rest at the end. `stop_when` is called at every arrival and end, and
    may end the run. Unequal engines come from `furnish`. Same input, same record, byte for byte. Raises
    ConfigError for limits that cannot work, TraceError at the first malformed row, and at Ctrl-C Interrupted
    with the record so far.
    """
    future: dict[str, int] = {}
    drafts = None if config.speculation is None else AcceptanceModel.of(config.speculation, config.seed)

    def source() -> TokenSource:
        if drafts is None:
            return Oracle(future, forgets=not config.moves)
        return Speculated(Lengths(future, forgets=not config.moves), drafts)

    make = furnish or partial(_equal_engines, cost, config.replicas, capacity)
    backends, surroundings = make(source)
    streams = config.front.output_token > 0
    if streams or any(isinstance(backend, RankBackend) for backend in backends):
        config = replace(config, decode_runs=False)

    def before_arrival(request: TraceRequest) -> None:
        future[request.request_id] = request.num_output_tokens

    return replay_on(
        trace,
        config,
        backends,
        capacity,
        generate_for=counting_tokens(config.scheduler.block_size, predictor),
        before_arrival=before_arrival,
        front_end_s=front_end_s,
        max_concurrency=max_concurrency,
        client_timeout_s=client_timeout_s,
        sink=sink,
        on_progress=on_progress,
        listeners=listeners,
        tap=tap,
        stop_when=stop_when,
        surroundings=surroundings,
    )


def _equal_engines(
    cost: CostModel, replicas: int, capacity: Capacity, source: Callable[[], TokenSource]
) -> tuple[Sequence[Backend], Surroundings]:
    """Return the engines of a uniform fleet; those that share experts run in step."""
    backends: list[Backend] = [
        cost_backend(Pace(cost, f"runner-{replica}"), source(), capacity)
        if wave is None
        else RankBackend(wave, replica, source(), capacity)
        for replica, wave in enumerate(waves_of([cost] * replicas))
    ]
    return backends, NOTHING_ELSE


def replay_on(
    trace: Iterable[TraceRequest],
    config: EngineConfig,
    backends: Sequence[Backend],
    capacity: Capacity,
    *,
    generate_for: Callable[[TraceRequest], Generate] | None = None,
    before_arrival: Callable[[TraceRequest], None] = lambda request: None,
    vocabulary: Vocabulary | None = None,
    front_end_s: float = 0.0,
    max_concurrency: int | None = None,
    client_timeout_s: float | None = None,
    sink: Sink | None = None,
    on_progress: Progress | None = None,
    listeners: Sequence[Actor[Heard]] = (),
    tap: Tap | None = None,
    stop_when: Callable[[Recorder], bool] | None = None,
    surroundings: Surroundings = NOTHING_ELSE,
) -> Recorder:
    """Replay on backends of any kind; `generate_for` converts a row of the trace to a message.

    `before_arrival` is called with each row just before it arrives, so that backends can store its future.
    """
    recorder = Recorder(
        capacity.num_blocks,
        config.replicas,
        front_end_s=front_end_s,
        sink=sink,
        own_blocks=surroundings.own_blocks,
        ledger=surroundings.ledger,
        host_hits=HostHits() if config.has_host_memory else None,
        columns=MovedColumns(ROWS_AT_ONCE) if config.moves else Columns(ROWS_AT_ONCE),
    )
    generate = generate_for or counting_tokens(config.scheduler.block_size)

    def ask_for(request: TraceRequest) -> Generate:
        before_arrival(request)
        return generate(request)

    # `stop_when` may count its calls.
    recording, was_stopped = Recording(recorder, tells_of_handovers=stop_when is not None), False

    async def play(is_interrupted: Callable[[], bool]) -> None:
        def shall_stop() -> bool:
            nonlocal was_stopped
            was_stopped = stop_when is not None and stop_when(recorder)
            return was_stopped or is_interrupted()

        graph = surroundings.graph(
            config, backends, vocabulary, recording=recording, listeners=listeners, tap=tap
        )
        async with graph as llm:
            client = Client(
                surroundings.reshape(trace),
                llm,
                generate_for=ask_for,
                recorder=recorder,
                on_progress=on_progress,
                max_concurrency=max_concurrency,
                shall_stop=is_interrupted if stop_when is None else shall_stop,
                timeout_s=client_timeout_s,
                stays=stop_when is not None or bool(surroundings.drivers),
                retries=surroundings.retries,
            )
            recording.client = client.ref(recording.name, counted=False)
            await surroundings.play(llm, client)
            recording.shall_stop = is_interrupted

    with ctrl_c() as shall_stop:
        try:
            run_virtual(play, shall_stop)
        except Exception as error:
            if not is_stopping(error):
                raise
            recorder.spill()
            if not was_stopped:
                raise Interrupted(recorder) from None
            return recorder
    recorder.spill()
    if shall_stop():  # Ctrl-C after the last request had ended
        raise Interrupted(recorder)
    return recorder


def counting_tokens(
    block_size: int, predictor: Predictor | None = None
) -> Callable[[TraceRequest], Generate]:
    """Return the function that converts a recorded request to one where tokens are only counted.

    Its output is only limited by the context: the length is the oracle's secret. A prediction of its length
    is included if there is a predictor, or the trace has one.
    """

    sampling = Sampling()

    def generate_for(request: TraceRequest) -> Generate:
        return Generate(
            prompt=request.num_prompt_tokens,
            sampling=sampling,
            request_id=request.request_id,
            priority=request.priority,
            block_hashes=None if request.hash_ids is None else request.block_hashes(block_size),
            tenant=request.tenant,
            slo_ttft_s=request.slo_ttft_s,
            predicted_tokens=request.predicted_tokens if predictor is None else predictor.predict(request),
            slo_tpot_s=request.slo_tpot_s,
            slo_e2e_s=request.slo_e2e_s,
            session=request.session,
        )

    return generate_for
