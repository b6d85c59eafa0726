"""Replay a trace: clients of the past in front of the graph, on a virtual clock.

Clients are open-loop: each request is asked at its arrival, whatever became of the others. Those of
a session ask after the answer to the last, and a cap on concurrency makes all of them wait.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from actors.actor import Actor, Ref, Tap
from actors.clock import Event, now_s
from actors.config import EngineConfig
from actors.core.sampling import Sampling
from actors.graph import open_graph
from actors.intake import ModelFacts
from actors.messages import Capacity, Generate, Refused, StepOutput, Submit
from actors.runner import Backend
from sim.clock import run_virtual
from sim.cost.work import CostModel
from sim.oracle import Oracle
from sim.predictor import Predictor
from sim.recorder import Recorder, Sink
from sim.runner import CostBackend, Pace
from sim.trace.record import TraceRequest

Progress = Callable[[int], None]
"""Told how many requests have arrived."""


class Ended(NamedTuple):
    """Recording tells the Client whose requests ended."""

    request_ids: tuple[str, ...]


class Due(NamedTuple):
    """The Client's reminder to itself of a row whose pause is over."""

    row: TraceRequest


class Recording(Actor):
    """The listener that feeds a Recorder, and tells the client who has ended."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__("recorder")
        self._recorder = recorder
        self.client: Ref | None = None

    def handle(self, message: Any) -> None:
        match message:
            case StepOutput():
                self._recorder.observe(message)
                if message.finished and self.client is not None:
                    ended = tuple([finish.request_id for finish in message.finished])
                    self.client.tell(Ended(ended))
            case Submit():
                self._recorder.arrived(
                    message.request_id, message.arrival_s, message.num_prompt_tokens, message.tenant
                )


class Client(Actor):
    """Asks for each row of a trace at the instant of its arrival, and reads no answer.

    Rows `after` another wait for its end and their pause. With `max_concurrency` at most so many
    are asked and unfinished: others wait their turn, and arrive when they are asked.
    """

    def __init__(
        self,
        trace: Iterable[TraceRequest],
        llm: Ref,
        wish: Callable[[TraceRequest], Generate],
        recorder: Recorder,
        on_progress: Progress | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        super().__init__("client")
        self._rows = iter(trace)
        self._llm = llm
        self._wish = wish
        self._recorder = recorder
        self._on_progress = on_progress
        self._most = max_concurrency
        self._num_arrived = 0
        self._num_to_come = 0
        """Rows that have been read and not asked."""
        self._ready: deque[TraceRequest] = deque()
        self._unfinished: dict[str, bool] = {}
        """Whether each is part of a session."""
        self._end_s: dict[str, float] = {}
        """When requests of sessions ended that a later row may come after."""
        self._later: dict[str, list[TraceRequest]] = {}
        self._is_done = False

    @property
    def idle(self) -> bool:
        return self._is_done and not self._num_to_come

    async def opened(self) -> None:
        self._expect_next()

    def handle(self, message: Any) -> None:
        match message:
            case Due():
                self._ask(message.row)
            case TraceRequest():
                if message.after is None:
                    self._ask(message)
                else:
                    self._ask_after(message, message.after)
                self._expect_next()
            case Ended():
                for name in message.request_ids:
                    self._ended(name)

    def _expect_next(self) -> None:
        row = next(self._rows, None)
        if row is None:
            self._is_done = True
        else:
            self._num_to_come += 1
            self.remind(row.arrival_s, Event.ARRIVAL, row)

    def _ask_after(self, row: TraceRequest, name: str) -> None:
        end_s = self._end_s.get(name)
        if end_s is None:
            self._later.setdefault(name, []).append(row)
        else:
            self.remind(end_s + row.pause_s, Event.ARRIVAL, Due(row))

    def _ask(self, row: TraceRequest) -> None:
        """A request arrives, if there is room for one more."""
        if self._most is not None and len(self._unfinished) >= self._most:
            self._ready.append(row)
            return
        self._unfinished[row.request_id] = row.session is not None
        self._num_to_come -= 1
        self._num_arrived += 1
        self._llm.request(self._wish(row)).then(partial(self._answered, row.request_id))
        if self._on_progress is not None:
            self._on_progress(self._num_arrived)

    def _ended(self, name: str) -> None:
        """Whoever comes after it may come; it leaves room for one."""
        in_session = self._unfinished.pop(name, None)
        if in_session is None:
            return
        if in_session:
            self._end_s[name] = now_s()
        for row in self._later.pop(name, ()):
            self.remind(now_s() + row.pause_s, Event.ARRIVAL, Due(row))
        if self._ready:
            self._ask(self._ready.popleft())

    def _answered(self, request_id: str, answer: Any, error: BaseException | None) -> None:
        if isinstance(answer, Refused):
            self._recorder.refused(request_id)
            self._ended(request_id)


def replay(
    trace: Iterable[TraceRequest],
    config: EngineConfig,
    cost: CostModel,
    capacity: Capacity,
    *,
    predictor: Predictor | None = None,
    front_end_s: float = 0.0,
    max_concurrency: int | None = None,
    sink: Sink | None = None,
    on_progress: Progress | None = None,
    listeners: Sequence[Actor] = (),
    tap: Tap | None = None,
) -> Recorder:
    """Run the trace through `config.replicas` engines of the given cost and capacity.

    `predictor` guesses the length of each answer as it arrives, for policies that want to know;
    `front_end_s` is added to what each client sees; clients have at most `max_concurrency`
    requests unfinished. A `sink` is given the rows as they are complete, and at the end the rest.
    Same input, same record, byte for byte. Raises ConfigError for limits that cannot work and
    TraceError at the first malformed row.
    """
    future: dict[str, int] = {}
    backends = [
        CostBackend(Pace(cost, f"runner-{replica}"), Oracle(future), capacity)
        for replica in range(config.replicas)
    ]

    def foretell(request: TraceRequest) -> None:
        future[request.request_id] = request.num_output_tokens

    return replay_on(
        trace, config, backends, capacity,
        wishes=counted_wish(config.scheduler.block_size, predictor), foretell=foretell,
        front_end_s=front_end_s, max_concurrency=max_concurrency, sink=sink,
        on_progress=on_progress, listeners=listeners, tap=tap,
    )  # fmt: skip


def replay_on(
    trace: Iterable[TraceRequest],
    config: EngineConfig,
    backends: Sequence[Backend],
    capacity: Capacity,
    *,
    wishes: Callable[[TraceRequest], Generate] | None = None,
    foretell: Callable[[TraceRequest], None] = lambda request: None,
    facts: ModelFacts | None = None,
    front_end_s: float = 0.0,
    max_concurrency: int | None = None,
    sink: Sink | None = None,
    on_progress: Progress | None = None,
    listeners: Sequence[Actor] = (),
    tap: Tap | None = None,
) -> Recorder:
    """Replay on backends of any kind; `wishes` says what a row of the trace asks for.

    `foretell` is told of each request just before it arrives: only backends listen to it.
    """
    recorder = Recorder(capacity.num_blocks, config.replicas, front_end_s, sink)
    to_wish = wishes or counted_wish(config.scheduler.block_size)

    def wish(request: TraceRequest) -> Generate:
        foretell(request)
        return to_wish(request)

    recording = Recording(recorder)

    async def play() -> None:
        async with open_graph(
            config, backends, model=facts, listeners=[recording, *listeners], tap=tap
        ) as llm:
            client = Client(trace, llm, wish, recorder, on_progress, max_concurrency)
            recording.client = client.ref(recording.name, counted=False)
            await client.live()

    with _few_collections():
        run_virtual(play)
    recorder.spill()
    return recorder


@contextmanager
def _few_collections() -> Iterator[None]:
    """Have Python look for cycles seldom: messages and requests form none."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def counted_wish(
    block_size: int, predictor: Predictor | None = None
) -> Callable[[TraceRequest], Generate]:
    """What a recorded request asks for where tokens are only counted.

    There is no limit on its output but the context: its length is the oracle's secret. A guess of
    it goes along only if somebody was asked to make one.
    """

    sampling = Sampling()

    def wish(request: TraceRequest) -> Generate:
        return Generate(
            prompt=request.num_prompt_tokens,
            sampling=sampling,
            request_id=request.request_id,
            priority=request.priority,
            block_hashes=request.block_hashes(block_size),
            tenant=request.tenant,
            slo_ttft_s=request.slo_ttft_s,
            predicted_tokens=None if predictor is None else predictor.predict(request),
        )

    return wish
