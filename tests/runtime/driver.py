"""Driver of hand-written batches: a minimal scheduler with its own shuffled blocks."""

import itertools
import random
from dataclasses import dataclass, field

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.logprobs import TokenLogprobs
from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.engine.backend import Backend, CompilesGrammars

GREEDY = Sampling(temperature=0.0)


@dataclass
class Sequence:
    prompt: list[int]
    sampling: Sampling
    adapter: Adapter | None = None
    outputs: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    running: bool = False
    decoding: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.outputs


class Driver:
    """Drives one backend; chunks have at most `chunk` tokens, steps at most `budget`."""

    def __init__(
        self,
        backend: Backend,
        *,
        num_blocks: int = 200,
        block_size: int = 4,
        budget: int = 24,
        chunk: int = 16,
    ) -> None:
        self._backend = backend
        self._free = list(range(1, num_blocks))
        random.Random(5).shuffle(self._free)
        self._block_size = block_size
        self._budget, self.chunk = budget, chunk
        self._step = 0
        self._admitted: list[Admission] = []
        self._preempted: list[str] = []
        self._finished: list[str] = []
        self.sequences: dict[str, Sequence] = {}
        self.failed: dict[str, str] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs | None]] = {}

    def submit(
        self,
        name: str,
        prompt: list[int],
        sampling: Sampling = GREEDY,
        sharing: str | None = None,
        adapter: str | None = None,
    ) -> None:
        chosen = None if adapter is None else Adapter(adapter, "")
        backend, constraint = self._backend, sampling.constraint
        if constraint is not None and isinstance(backend, CompilesGrammars):
            while backend.hold_grammar(constraint) is None:
                backend.compile_grammar(constraint)
        self.sequences[name] = Sequence(list(prompt), sampling, chosen)
        self.admit(name, sharing)

    def admit(self, name: str, sharing: str | None = None) -> None:
        """Start a new or preempted request, on the full blocks of equal tokens of `sharing`."""
        sequence, shared = self.sequences[name], []
        if sharing is not None:
            other = self.sequences[sharing]
            pairs = zip(other.tokens[: other.num_computed], sequence.tokens[:-1], strict=False)
            num_equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            shared = other.blocks[: num_equal // self._block_size]
        sequence.num_computed = len(shared) * self._block_size
        sequence.blocks = list(shared)
        self._allocate(sequence)
        sequence.running, sequence.decoding = True, False
        self._admitted.append(
            Admission(
                name,
                num_tokens=len(sequence.tokens),
                num_prompt_tokens=len(sequence.prompt),
                num_computed_tokens=sequence.num_computed,
                block_ids=tuple(sequence.blocks),
                token_ids=tuple(sequence.tokens),
                sampling=sequence.sampling,
                resumed=bool(sequence.outputs),
                adapter=sequence.adapter,
            )
        )

    def preempt(self, name: str) -> None:
        self._release(name)
        self._preempted.append(name)

    def finish(self, name: str) -> None:
        self._release(name)
        self._finished.append(name)

    def _release(self, name: str) -> None:
        sequence = self.sequences[name]
        sequence.running = False
        held = {b for s in self.sequences.values() if s.running for b in s.blocks}
        self._free[:0] = [block for block in sequence.blocks if block not in held]
        sequence.blocks = []

    def _allocate(self, sequence: Sequence) -> tuple[int, ...]:
        needed = -(-len(sequence.tokens) // self._block_size) - len(sequence.blocks)
        new = tuple(self._free.pop() for _ in range(needed))
        sequence.blocks += new
        return new

    async def step(self, idle: tuple[str, ...] = ()) -> dict[str, int]:
        """One step of all running requests but `idle`; the tokens it sampled."""
        fresh = {admission.request_id for admission in self._admitted}
        running = {name: s for name, s in self.sequences.items() if s.running}
        new_blocks, chunks, num_decodes = [], [], 0
        budget = self._budget
        for name, sequence in running.items():
            if name not in fresh and (new := self._allocate(sequence)):
                new_blocks.append((name, new))
            left = len(sequence.tokens) - sequence.num_computed
            if sequence.decoding:
                num_decodes += name not in idle
                budget -= 1
                sequence.num_computed += name not in idle
            elif num_tokens := min(left, self.chunk, budget):
                chunks.append(Chunk(name, num_tokens, num_tokens == left))
                budget -= num_tokens
                sequence.num_computed += num_tokens
        batch = Batch(
            self._step,
            admitted=tuple(self._admitted),
            chunks=tuple(chunks),
            idle=idle,
            new_blocks=tuple(new_blocks),
            preempted=tuple(self._preempted),
            finished=tuple(self._finished),
            num_decodes=num_decodes,
        )
        self._step += 1
        self._admitted, self._preempted, self._finished = [], [], []
        result = await self._backend.execute(batch)
        assert result.step == batch.step and result.num_steps == 1
        tokens = dict(result.tokens or ())
        for name, reason in result.failed:
            self.failed[name] = reason
            self.finish(name)
        for name, each in result.logprobs:
            self.logprobs.setdefault(name, []).append(each)
        for part in result.prompt_logprobs:
            self.prompt_logprobs.setdefault(part.request_id, [None])[part.start :] = part.tokens
        for name, token in tokens.items():
            self.sequences[name].outputs.append(token)
            self.sequences[name].decoding = True
        return tokens

    async def run(self, num_tokens: int) -> dict[str, list[int]]:
        """Step until each request has `num_tokens` outputs; finishes them, returns outputs."""
        while any(s.running for s in self.sequences.values()):
            for name, sequence in self.sequences.items():
                if sequence.running and len(sequence.outputs) >= num_tokens:
                    self.finish(name)
            await self.step()
        return {name: s.outputs for name, s in self.sequences.items()}
