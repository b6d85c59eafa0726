"""Steps of given shapes, asked of an engine's Executor as its Scheduler would ask.

The keys that a step reads have been written by the engine itself before, each request's in blocks of its
own: pages that nobody wrote, or that several requests share, would be read from the processor's cache.
"""

import itertools
import random

from actors.core.batch import Admission, Batch, Chunk
from actors.core.params.sampling import Sampling
from actors.kernel.actor import Ref
from actors.kernel.clock import now_s
from actors.messages import Capacity, Interrupt, Load
from sim.cost.work import StepWork
from sim.cost.work_fold import WorkFold
from sim.figures.calibrate.shapes import Shape

GREEDY = Sampling(temperature=0.0)
NUM_TOKEN_IDS = 4096
Seen = tuple[StepWork, float]
"""The work of a step, and the seconds from asking for it to its result."""


class Prober:
    """Asks for steps, one at a time; the requests of a shape end with the next."""

    def __init__(
        self, executor: Ref[Batch | Interrupt | Load], capacity: Capacity, vocab_size: int, seed: int
    ) -> None:
        self._executor, self._block_size = executor, capacity.block_size
        self._fold = WorkFold()
        self._names, self._step = itertools.count(), itertools.count()
        rng = random.Random(seed)
        self._token_ids = [rng.randrange(vocab_size) for _ in range(NUM_TOKEN_IDS)]
        self._next_block = 1
        self._ending: tuple[str, ...] = ()
        self._num_decodes = 0

    async def write(self, least: int, most: int, chunk_tokens: int, longest: int, seconds: float) -> int:
        """Have the first blocks written, by prompts of up to `longest` tokens in chunks; returns how many.

        That is `least` of them, and up to `most` as long as it takes no more than `seconds`.
        """
        self._next_block, end_s = 1, now_s() + seconds
        while self._next_block <= (most if now_s() < end_s else least):
            num_tokens = min(longest, (most - self._next_block + 1) * self._block_size)
            admitted = [self._admission(num_tokens, 0)]
            for before in range(0, num_tokens, chunk_tokens):
                new = min(chunk_tokens, num_tokens - before)
                chunk = Chunk(admitted[0].request_id, new, before + new == num_tokens)
                await self._ask(admitted if before == 0 else [], [chunk])
        return self._next_block - 1

    async def steps(self, shape: Shape, num_steps: int) -> list[Seen]:
        """What `num_steps` steps of the shape took; contexts of decodes grow by a token a step.

        With chunks, each step has new ones, whose requests end with it.
        """
        self._next_block = 1
        # The last known token is computed, one is sampled, and from the next step on they decode.
        decodes = [self._admission(context - 1, context - 2, num_steps) for context in shape.contexts]
        still: tuple[str, ...] = ()
        if decodes:
            await self._ask(decodes, [Chunk(each.request_id, 1, True) for each in decodes])
            still, self._ending = self._ending, ()
        behind, seen = self._next_block, []
        for _ in range(num_steps):
            self._next_block = behind
            added = [self._admission(before + new, before) for new, before in shape.chunks]
            chunks = [
                Chunk(each.request_id, new, True) for each, (new, _) in zip(added, shape.chunks, strict=True)
            ]
            seen.append(await self._ask(added, chunks))
        self._ending += still
        return seen

    async def _ask(self, admitted: list[Admission], chunks: list[Chunk]) -> Seen:
        """One step. What it admits ends with the next one, unless `_ending` is changed."""
        finished = self._ending
        joining = tuple(chunk.request_id for chunk in chunks if chunk.samples)
        self._num_decodes -= len(finished)
        batch = Batch(
            next(self._step),
            admitted=tuple(admitted),
            chunks=tuple(chunks),
            finished=finished,
            num_decodes=self._num_decodes,
        )
        work = self._fold.begin(batch)
        begin_s = now_s()
        result = await self._executor.ask(batch)
        seconds = now_s() - begin_s
        if result.failed:
            raise RuntimeError(f"step {batch.step}: {result.failed[0][1]}")
        self._fold.advance(1)
        self._ending = joining
        self._num_decodes += len(joining)
        return work, seconds

    def _admission(self, num_tokens: int, num_computed: int, num_more: int = 0) -> Admission:
        """A request whose first tokens are computed; its blocks hold `num_more` tokens more."""
        num_blocks = -(-(num_tokens + num_more) // self._block_size)
        blocks = tuple(range(self._next_block, self._next_block + num_blocks))
        self._next_block += num_blocks
        tokens = (self._token_ids * (num_tokens // NUM_TOKEN_IDS + 1))[:num_tokens]
        name = f"probe-{next(self._names)}"
        return Admission(name, num_tokens, num_tokens, num_computed, blocks, tuple(tokens), GREEDY)
