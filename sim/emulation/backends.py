"""Backends of emulated replicas: the cost model's timing, answers, synthetic log probabilities, faults."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from typing import Generic, TypeVar

from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.batch import Admission, Batch
from sundog.actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Capacity, Heard, StepOutput
from sundog.actors.metrics.totals import Lag
from sundog.sim.backend import CostBackend, SampledSteps, TokenSource
from sundog.sim.cost.composed import InStep
from sundog.sim.cost.work import CostModel
from sundog.sim.emulation.answers import Answers
from sundog.sim.emulation.pace import LivePace
from sundog.sim.emulation.scripts import Scripted, Scripts
from sundog.sim.in_step import RankBackend, Wave
from sundog.sim.pipelined import PipelinedBackend, cost_backend
from sundog.sim.speculated import AcceptanceModel, Speculated


class EmulatedBlockTables(Actor[Heard]):
    """Listener that tracks the blocks of expected requests only."""

    def __init__(self) -> None:
        super().__init__("block-tables")
        self._tables: dict[str, list[int]] = {}

    def follow(self, request_id: str) -> None:
        """Store the block table of a request that is about to be submitted."""
        self._tables[request_id] = []

    def take(self, request_id: str) -> list[int]:
        """Remove and return the blocks that the request held last."""
        return self._tables.pop(request_id, [])

    def handle(self, message: Heard) -> None:
        if not self._tables or not isinstance(message, StepOutput):
            return
        for admission in message.batch.admitted:
            if admission.request_id in self._tables:
                self._tables[admission.request_id] = list(admission.block_ids)
        for name, blocks in message.batch.new_blocks:
            if name in self._tables:
                self._tables[name] += blocks


F = TypeVar("F")


class EngineKilled(Exception):
    """Crash of an engine by an injected fault."""


class Injections(Generic[F]):
    """Samples faults for each request in the order of arrival, and kills engines."""

    def __init__(self, faults: Sequence[tuple[F, float]], seed: int) -> None:
        self._faults, self._seed = faults, seed
        self._number = 0
        self._shall_die = False

    def next(self) -> F | None:
        """Return the fault of the next request, if any: the first that is sampled at its own rate."""
        number, self._number = self._number, self._number + 1
        for index, (fault, rate) in enumerate(self._faults):
            digest = hashlib.blake2b(f"{self._seed}:{number}:{index}".encode(), digest_size=8).digest()
            if int.from_bytes(digest, "big") < rate * 2**64:
                return fault
        return None

    def kill(self) -> None:
        """Make an engine crash in its next step."""
        self._shall_die = True

    def check(self) -> None:
        """Raise EngineKilled before an engine's step if it is to crash."""
        if self._shall_die:
            self._shall_die = False
            raise EngineKilled("its failure was injected")


HALF = log(0.5)


class MadeUpLogprobs(TokenSource):
    """TokenSource that adds log probabilities, if requested, to the tokens of another source.

    O(such requests) a step.
    """

    __slots__ = ("_due", "_prompts", "_source", "_vocab_size", "_wanted")

    def __init__(self, source: TokenSource, vocab_size: int) -> None:
        self._source = source
        self._vocab_size = vocab_size
        self._wanted: dict[str, tuple[int, ...] | int] = {}
        self._prompts: dict[str, Admission] = {}
        """Requests for prompt log probabilities, until the prompt is computed."""
        self._due: list[Admission] = []

    def begin(self, batch: Batch) -> int:
        """Record which requests want log probabilities."""
        if self._wanted or self._prompts:
            for request_id in (*batch.finished, *batch.preempted):
                self._wanted.pop(request_id, None)
                self._prompts.pop(request_id, None)
        for admission in batch.admitted:
            sampling = admission.sampling
            if sampling.logprobs is not None:
                self._wanted[admission.request_id] = sampling.logprob_token_ids or sampling.logprobs
            if sampling.prompt_logprobs is not None and admission.num_tokens == admission.num_prompt_tokens:
                self._prompts[admission.request_id] = admission
        if self._prompts:
            done = [chunk.request_id for chunk in batch.chunks if chunk.samples]
            self._due = [self._prompts.pop(name) for name in done if name in self._prompts]
        return self._source.begin(batch)

    def sample(self, num_steps: int) -> SampledSteps:
        """Return the other source's tokens, with the requested log probabilities."""
        sampled, wanted = self._source.sample(num_steps), self._wanted
        if not (wanted or self._due):
            return sampled
        tokens = [(name, token) for name, token in sampled.tokens or () if name in wanted]
        due, self._due = self._due, []
        return replace(
            sampled,
            logprobs=tuple((name, self._made_up(token, wanted[name])) for name, token in tokens),
            prompt_logprobs=tuple(map(self._prompt, due)),
        )

    def _prompt(self, admission: Admission) -> PromptLogprobs:
        num_top, token_ids = admission.sampling.prompt_logprobs or 0, admission.token_ids or ()
        tokens = tuple(self._made_up(token, num_top) for token in token_ids[1:])
        return PromptLogprobs(admission.request_id, 1, tokens)

    def _made_up(self, token: int, likely: int | tuple[int, ...]) -> TokenLogprobs:
        size = self._vocab_size
        if isinstance(likely, int):
            likely = tuple([(token + rank) % size for rank in range(min(likely, size))])
        return TokenLogprobs(
            token,
            HALF,
            rank=1,
            top_ids=likely,
            top_logprobs=tuple([((each - token) % size + 1) * HALF for each in likely]),
        )


def emulated_backends(
    cost: CostModel,
    capacity: Capacity,
    answers: Answers,
    eos_token_id: int,
    vocab_size: int,
    lag: Lag,
    seed: int = 0,
    speculation: SpeculativeConfig | None = None,
    before_step: Callable[[], None] = lambda: None,
) -> Callable[[int], CostBackend | PipelinedBackend | RankBackend]:
    """Return the maker of a replica's backend, which follows `cost` in time and records its `lag`.

    What `before_step` raises crashes the engine, and with it those in step with it.
    """
    drafts = None if speculation is None else AcceptanceModel.of(speculation, seed)

    def tokens() -> Scripted:
        scripts = Scripts(answers, eos_token_id)
        return Scripted(scripts, None if drafts is None else Speculated(scripts, drafts))

    waves: dict[int, Wave] = {}

    def new_backend(replica: int) -> CostBackend | PipelinedBackend | RankBackend:
        source = MadeUpLogprobs(tokens(), vocab_size)
        if not isinstance(cost, InStep):
            return cost_backend(LivePace(cost, replica, lag, before_step), source, capacity)
        number = replica // cost.num_ranks
        if number not in waves:
            first = number * cost.num_ranks
            waves[number] = Wave(cost, number, LivePace(cost, first, lag, before_step))
        return RankBackend(waves[number], replica, source, capacity)

    return new_backend
