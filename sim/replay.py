"""Replay a trace: clients of the past in front of the graph, on a virtual clock."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from actors.config import EngineConfig
from actors.core.params.sampling import Sampling
from actors.engine.backend import Backend
from actors.front.codec import Vocabulary
from actors.graph import open_graph
from actors.kernel.actor import Actor, Tap
from actors.messages import Capacity, Generate, Heard
from sim.backend import Pace, TokenSource
from sim.client import Client, Progress, Recording
from sim.clock import run_virtual
from sim.cost.composed import InStep
from sim.cost.work import CostModel
from sim.in_step import ranks_in_step
from sim.interrupt import Interrupted, ctrl_c, is_stopping
from sim.oracle import Oracle, Predictor
from sim.pipelined import cost_backend
from sim.record.recorder import Recorder
from sim.record.sink import Sink
from sim.speculated import AcceptanceModel, Lengths, Speculated
from sim.trace.record import TraceRequest


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
) -> Recorder:
    """Run the trace through `config.replicas` engines of the given cost and capacity.

    `predictor` guesses the length of each answer as it arrives, for policies that use it;
    `front_end_s` is added to what each client sees; clients have at most `max_concurrency`
    requests unfinished, and give up a request after `client_timeout_s`. A `sink` is given rows once they
    are complete, and the rest at the end. `stop_when` is asked at every arrival and end, and ends the run.
    Same input, same record, byte for byte. Raises ConfigError for limits that cannot work,
    TraceError at the first malformed row, and at Ctrl-C Interrupted with what was recorded.
    """
    future: dict[str, int] = {}
    drafts = None if config.speculation is None else AcceptanceModel.of(config.speculation, config.seed)

    def source() -> TokenSource:
        return Oracle(future) if drafts is None else Speculated(Lengths(future), drafts)

    backends: Sequence[Backend]
    if isinstance(cost, InStep):
        config = replace(config, decode_runs=False)
        backends = ranks_in_step(cost, [source() for _ in range(config.replicas)], capacity)
    else:
        backends = [
            cost_backend(Pace(cost, f"runner-{replica}"), source(), capacity)
            for replica in range(config.replicas)
        ]

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
    )


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
) -> Recorder:
    """Replay on backends of any kind; `generate_for` makes a row of the trace into a message.

    `before_arrival` is called with each row just before it arrives, for backends to know its future.
    """
    recorder = Recorder(capacity.num_blocks, config.replicas, front_end_s, sink)
    generate = generate_for or counting_tokens(config.scheduler.block_size)

    def ask_for(request: TraceRequest) -> Generate:
        before_arrival(request)
        return generate(request)

    recording = Recording(recorder)

    was_stopped = False

    async def play(is_interrupted: Callable[[], bool]) -> None:
        def shall_stop() -> bool:
            nonlocal was_stopped
            was_stopped = stop_when is not None and stop_when(recorder)
            return was_stopped or is_interrupted()

        async with open_graph(
            config, backends, vocabulary=vocabulary, listeners=[recording, *listeners], tap=tap
        ) as llm:
            asked = trace, llm, ask_for, recorder, on_progress, max_concurrency, shall_stop
            client = Client(*asked, client_timeout_s, stays=stop_when is not None)
            recording.client = client.ref(recording.name, counted=False)
            await client.live()

    with _few_collections(), ctrl_c() as shall_stop:
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
    return recorder


SELDOM = 1_000_000
"""More objects than a run has at once: to look at those of 100,000 requests takes 2 %, and finds none."""


@contextmanager
def _few_collections() -> Iterator[None]:
    """Have Python look for reference cycles seldom: messages and requests form none.

    It does not look at what was there before, the modules mostly, nor at once at what the run leaves.
    """
    usual = gc.get_threshold()
    gc.set_threshold(SELDOM, 50, 50)
    gc.freeze()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        gc.set_threshold(*usual)


def counting_tokens(
    block_size: int, predictor: Predictor | None = None
) -> Callable[[TraceRequest], Generate]:
    """Return the request that a recorded one becomes where tokens are only counted.

    There is no limit on its output but the context: its length is the oracle's secret. A prediction of its
    length goes along if there is a predictor, or the trace has one.
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
