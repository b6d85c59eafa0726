"""Toy scheduler for tests of backends: random but valid batches, and the exact facts about them.

What happens is drawn per step number before the run, so that a run that groups steps and one that
does not meet the same arrivals, preemptions and idle steps at the same steps.
"""

import random
from dataclasses import dataclass, field

from sundog.actors.core.batch import Admission, Batch, Chunk, Finish, StepResult
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Capacity, StepOutput
from sundog.sim.backend import CostBackend, Pace
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.cost.work import StepWork
from sundog.sim.oracle import Oracle
from sundog.sim.record.recorder import Recorder

COST = Calibrated(1.3e-3, 1.1e-6, 3.7e-9, 2.3e-6, 1e-10)
CAPACITY = Capacity(101, 16)


@dataclass
class ToyRequest:
    """One request of the toy; `computed` tokens have keys and values."""

    name: str
    num_prompt_tokens: int
    num_output_tokens: int
    outputs: int = 0
    computed: int = 0
    resumed: bool = False

    @property
    def known(self) -> int:
        return self.num_prompt_tokens + self.outputs


@dataclass
class Toy:
    """Plans batches for requests named r0, r1, … and takes in results."""

    seed: int
    num_requests: int = 12
    most_steps: int = 1
    chunk_tokens: int = 9
    step: int = 0
    waiting: list[ToyRequest] = field(default_factory=list)
    prefilling: list[ToyRequest] = field(default_factory=list)
    decoding: dict[str, ToyRequest] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    token_times_s: dict[str, list[float]] = field(default_factory=dict)
    scheduled_s: dict[str, float] = field(default_factory=dict)
    recomputed: dict[str, int] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self._requests = [
            ToyRequest(f"r{i}", rng.randint(1, 30), rng.randint(1, 40)) for i in range(self.num_requests)
        ]
        self.lengths = {r.name: r.num_output_tokens for r in self._requests}
        self.prompts = {r.name: r.num_prompt_tokens for r in self._requests}
        self._arrivals = sorted(rng.randint(1, 80) for _ in self._requests)
        self._preempts = {rng.randint(2, 90): rng.random() for _ in range(8)}
        self._idles = {rng.randint(2, 90): rng.random() for _ in range(8)}

    @property
    def done(self) -> bool:
        return not (self._requests or self.waiting or self.prefilling or self.decoding)

    def plan(self) -> tuple[Batch, StepWork]:
        """The next batch, and its (first) step's work counted request by request."""
        self.step += 1
        while self._arrivals and self._arrivals[0] <= self.step:
            self._arrivals.pop(0)
            self.waiting.append(self._requests.pop(0))
        preempted = self._pick(self._preempts)
        for name in preempted:
            victim = self.decoding.pop(name)
            self.recomputed[name] = self.recomputed.get(name, 0) + victim.computed
            self.preemptions[name] = self.preemptions.get(name, 0) + 1
            victim.computed, victim.resumed = 0, True
        # What was preempted is admitted a step later at the earliest.
        admitted = tuple(self._admission(request) for request in self.waiting)
        self.prefilling += self.waiting
        self.waiting = [victim for victim in self._victims if victim.name in preempted]
        idle = self._pick(self._idles)
        active = [r for r in self.decoding.values() if r.name not in idle]
        chunks, counted = [], []
        for request in self.prefilling:
            num_tokens = min(self.chunk_tokens, request.known - request.computed)
            counted.append((num_tokens, request.computed))
            samples = request.computed + num_tokens == request.known
            chunks.append(Chunk(request.name, num_tokens, samples))
        work = StepWork(
            len(active),
            sum(r.computed + 1 for r in active),
            tuple(counted),
            len(active) + sum(chunk.samples for chunk in chunks),
        )
        batch = Batch(
            self.step,
            admitted=admitted,
            chunks=tuple(chunks),
            idle=idle,
            preempted=preempted,
            finished=tuple(self.finished),
            num_decodes=len(active),
            max_steps=self._max_steps(chunks, idle),
        )
        self.finished = []
        return batch, work

    def update(self, batch: Batch, result: StepResult, start_s: float) -> StepOutput:
        """Take in a result; what the listeners hear of it."""
        assert result.step == batch.step
        self.step += result.num_steps - 1
        for admission in batch.admitted:
            self.scheduled_s.setdefault(admission.request_id, start_s)
        for name, request in self.decoding.items():
            if name not in batch.idle:
                request.computed += result.num_steps
                request.outputs += result.num_steps
                self.token_times_s[name] += result.end_times_s
        for chunk in batch.chunks:
            request = next(r for r in self.prefilling if r.name == chunk.request_id)
            request.computed += chunk.num_tokens
            if chunk.samples:
                request.outputs += 1
                self.token_times_s.setdefault(request.name, []).extend(result.end_times_s)
                self.prefilling.remove(request)
                self.decoding[request.name] = request
        ended = sorted(name for name, r in self.decoding.items() if r.outputs == self.lengths[name])
        assert sorted(result.ended) == ended, "the backend ended others than the trace says"
        for name in ended:
            del self.decoding[name]
        self.finished = ended
        return StepOutput(
            0,
            batch,
            start_s,
            tuple(result.end_times_s),
            result.tokens,
            tuple(Finish(name, "stop") for name in ended),
            len(self.decoding),
            len(self.waiting),
            100 - 3 * len(self.decoding),
        )

    def _pick(self, table: dict[int, float]) -> tuple[str, ...]:
        share = table.get(self.step, 0.0)
        names = sorted(self.decoding)[: int(share * (len(self.decoding) + 1))]
        self._victims = [self.decoding[name] for name in names]
        return tuple(names)

    def _admission(self, request: ToyRequest) -> Admission:
        hit = request.known // 2 if request.resumed else 0
        if request.resumed:
            self.recomputed[request.name] -= hit
        request.computed = hit
        return Admission(
            request.name, request.known, request.num_prompt_tokens, hit, (), None, Sampling(), request.resumed
        )

    def _max_steps(self, chunks: list[Chunk], idle: tuple[str, ...]) -> int:
        events = [*self._arrivals[:1], *self._preempts, *self._idles]
        nearest = min((at for at in events if at > self.step), default=self.step + 1000)
        busy = chunks or idle or self.waiting or not self.decoding
        return 1 if busy else min(self.most_steps, nearest - self.step)


def counting_backend(toy: Toy) -> CostBackend:
    """A cost backend that knows the toy's lengths."""
    return CostBackend(Pace(COST), Oracle(dict(toy.lengths)), CAPACITY)


async def play(toy: Toy, backend: CostBackend) -> list[StepOutput]:
    """Run the toy to its end on whatever clock there is."""
    outputs = []
    while not toy.done:
        batch, _ = toy.plan()
        start_s = now_s()
        outputs.append(toy.update(batch, await backend.execute(batch), start_s))
    return outputs


def recorded(toy: Toy, outputs: list[StepOutput]) -> Recorder:
    """A recorder that heard all of it; everyone arrived at 0 with the toy's prompt length."""
    recorder = Recorder(CAPACITY.num_blocks)
    for name, num_prompt_tokens in toy.prompts.items():
        recorder.arrived(name, 0.0, num_prompt_tokens)
    for output in outputs:
        recorder.observe(output)
    return recorder
