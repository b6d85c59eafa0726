"""Contents of scaled prompts: equal prefixes stay equal at the new length."""

from collections.abc import Iterable, Iterator
from itertools import count

from sundog.sim.trace.record import TraceRequest

BLOCK_TOKENS = 16
"""Tokens per id if the ids of a trace cannot represent the new lengths."""


def scaled_prompts(rows: Iterable[TraceRequest], scale: float) -> Iterator[TraceRequest]:
    """Yield the rows with prompts `scale` times as long. O(tokens of prompts / 16) at most.

    Each id stands for `scale` times as many tokens, if that is a possible block length. If not, prompts get
    new ids per 16 tokens, equal where the old prompts were equal up to there. Tokens without an id are unique
    to each prompt.
    """
    known = list(rows)
    sizes = {row.hash_block_tokens for row in known if row.hash_ids is not None}
    most = max((i for row in known for i in row.hash_ids or ()), default=0) + 1
    times = max((int(size * scale / BLOCK_TOKENS) + 2 for size in sizes), default=1)
    fresh = count(most * times)
    for row in known:
        prompt = max(round(row.num_prompt_tokens * scale), 1)
        if row.hash_ids is None:
            yield row._replace(num_prompt_tokens=prompt)
            continue
        size = row.hash_block_tokens * scale
        fits = size == int(size) and size >= 1 and (size % BLOCK_TOKENS == 0 or BLOCK_TOKENS % size == 0)
        block = int(size) if fits else BLOCK_TOKENS
        ids = list(row.hash_ids) if fits else list(_renamed(row, scale, prompt, times))
        most = -(-prompt // block) if block > BLOCK_TOKENS else prompt // block
        ids = ids[:most]
        ids += [next(fresh) for _ in range(most - len(ids))]
        yield row._replace(num_prompt_tokens=prompt, hash_ids=tuple(ids), hash_block_tokens=block)


def _renamed(row: TraceRequest, scale: float, num_prompt_tokens: int, times: int) -> Iterator[int]:
    """Yield ids of the full blocks of the new prompt, as far as the ids of the old prompt reach."""
    assert row.hash_ids is not None
    old, begun = -1, 0
    for block in range(num_prompt_tokens // BLOCK_TOKENS):
        last_token = -int(-((block + 1) * BLOCK_TOKENS / scale - 1e-9) // 1) - 1
        if last_token // row.hash_block_tokens != old:
            old, begun = last_token // row.hash_block_tokens, block
        if old >= len(row.hash_ids):
            return
        yield row.hash_ids[old] * times + block - begun
