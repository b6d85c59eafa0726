"""Which steps an engine is measured with: a grid to fit to, and others to try the fit on."""

import random
from typing import NamedTuple

from actors.core.records import dataclass

CONTEXTS = (16, 128, 512, 1024, 2048, 8192)
CHUNKS = (1, 8, 16, 64, 128, 256, 512, 1024, 2048, 8192)
BEFORE = (0, 256, 1024, 4096)
SEVERAL = ((2, 32), (4, 16), (4, 128), (16, 32))
"""(chunks, tokens of each)"""
MIXED = ((4, 16), (4, 512), (16, 128), (16, 1024), (64, 64), (64, 512))
"""(decodes, tokens of the chunk)"""
MIXED_CONTEXT = 256
NUM_HELD_OUT, TRIES = 24, 500


class Shape(NamedTuple):
    """A step: the context of each decode, its new token included; (new, computed before) of each chunk."""

    contexts: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return len(self.contexts) + sum(new for new, _ in self.chunks)

    def __str__(self) -> str:
        parts = [f"{new} after {before}" for new, before in self.chunks]
        if self.contexts:
            mean = sum(self.contexts) / len(self.contexts)
            parts.insert(0, f"{len(self.contexts)} decodes at {mean:.0f}")
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Limits:
    """What fits into one step of an engine: requests, tokens, the longest context, and blocks in all."""

    num_seqs: int
    num_tokens: int
    context: int
    num_blocks: int
    block_size: int

    def allow(self, shape: Shape) -> bool:
        """Whether the engine can be asked for it."""
        held = (*shape.contexts, *(new + before for new, before in shape.chunks))
        return (
            len(held) <= self.num_seqs
            and shape.num_tokens <= self.num_tokens
            and max(held) <= self.context
            and sum(tokens // self.block_size + 1 for tokens in held) <= self.num_blocks
        )


def grid(limits: Limits) -> list[Shape]:
    """Decodes by number and context, chunks by size and context, several chunks, and both together."""
    nums, num = [], 1
    while num < limits.num_seqs:
        nums.append(num)
        num *= 2
    contexts = [*(c for c in CONTEXTS if c < limits.context), limits.context]
    largest = min(limits.num_tokens, limits.context)
    sizes = [*(n for n in CHUNKS if n < largest), largest]
    shapes = [Shape((context,) * num) for num in (*nums, limits.num_seqs) for context in contexts]
    shapes += [Shape((), ((new, before),)) for new in sizes for before in BEFORE]
    shapes += [Shape((), ((new, 0),) * num) for num, new in (*SEVERAL, (2, limits.num_tokens // 2))]
    shapes += [Shape((MIXED_CONTEXT,) * num, ((new, 0),)) for num, new in MIXED]
    return [shape for shape in shapes if limits.allow(shape)]


def held_out(limits: Limits, seed: int) -> list[Shape]:
    """Shapes at random, of sizes that the grid has none of."""
    rng, shapes = random.Random(seed), list[Shape]()
    for _ in range(TRIES):
        kind = rng.choice(("decodes", "chunk", "both"))
        num = 0 if kind == "chunk" else round(limits.num_seqs ** rng.random())
        new = round(limits.num_tokens ** rng.uniform(0.2, 1.0))
        longest = round(limits.context ** rng.uniform(0.4, 1.0))
        contexts = tuple(rng.randint(3, max(3, longest)) for _ in range(num))
        before = rng.choice((0, rng.randint(0, limits.context)))
        shape = Shape(contexts, () if kind == "decodes" else ((new, before),))
        if limits.allow(shape):
            shapes.append(shape)
    return shapes[:NUM_HELD_OUT]
