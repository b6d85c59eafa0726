"""The compiled kernels: results, variants, and the fallback without them."""

import itertools
import random
from ctypes import CDLL

import numpy as np
import pytest
import torch
from torch import Tensor

from sundog.runtime.attention.paged_cache import LayerShape, PagedKVCache
from sundog.runtime.native.attention import NativeAttention
from sundog.runtime.native.library import open_library
from sundog.runtime.step.step import Span
from tests.runtime.variants import EACH_VARIANT, needs_kernels

CPU = torch.device("cpu")
pytestmark = needs_kernels
FORMATS = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
"""And how far from the exact answer, of values about one."""


@pytest.fixture(params=EACH_VARIANT)
def library(request: pytest.FixtureRequest) -> CDLL:
    return open_library(request.param)


class Case:
    """Random requests with random lengths on scattered blocks, a layer, and its exact answer."""

    def __init__(self, seed: int, dtype: torch.dtype, shape: tuple[int, int, int, int] | None = None) -> None:
        rng = self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.key_heads = rng.choice((1, 2, 3, 8))
        self.heads = self.key_heads * rng.choice((1, 2, 5, 7))
        self.key_width = rng.choice((4, 15, 16, 24, 64, 80, 128, 192))
        self.value_width = rng.choice((self.key_width, self.key_width, 5, 16, 96))
        self.block_size = rng.choice((1, 4, 16, 48, 128))
        if shape is not None:
            group, self.key_width, self.value_width, self.block_size = shape
            self.heads = self.key_heads * group
        self.window = rng.choice((None, None, 1, 9, 64, 200))
        self.softcap = rng.choice((None, None, 3.0))
        self.sinks_H = torch.randn(self.heads) if rng.random() < 0.3 else None
        counts = [(rng.choice((0, 1, 63, 64, 65, 200)), 1) for _ in range(rng.randint(0, 5))]
        chunks = rng.randint(not counts, 2)
        counts += [(rng.choice((0, 7, 130)), rng.choice((2, 63, 100, 150))) for _ in range(chunks)]
        self.counts = counts
        self.dtype = dtype
        longest = max(first + queries for first, queries in counts)
        self.blocks = -(-longest // self.block_size)
        num_blocks = self.blocks * len(counts) + 1
        layer = LayerShape(self.key_heads, self.key_width, self.value_width, dtype)
        self.cache = PagedKVCache([layer], num_blocks, self.block_size, CPU)
        self.cache.keys_SPKD[0].fill_(torch.nan)  # what is nobody's must not be read
        self.cache.values_SPKE[0].fill_(torch.nan)
        self.tables = (torch.randperm(num_blocks - 1) + 1).view(len(counts), self.blocks).numpy()
        self.k = [torch.randn(f + n, self.key_heads, self.key_width).to(dtype) for f, n in counts]
        self.v = [torch.randn(f + n, self.key_heads, self.value_width).to(dtype) for f, n in counts]
        num_rows = sum(queries for _, queries in counts)
        self.q_THD = torch.randn(num_rows, self.heads, self.key_width).to(dtype)

    def slots(self, request: int, first: int, end: int) -> np.ndarray:
        at = np.arange(first, end)
        return self.tables[request, at // self.block_size] * self.block_size + at % self.block_size

    def spans(self) -> list[Span]:
        """Decodes together, each chunk alone, as `Requests` gives them; no block beyond the last token."""
        starts = np.cumsum([0, *(queries for _, queries in self.counts)])
        num_decodes = sum(queries == 1 for _, queries in self.counts)
        parts = [slice(0, num_decodes)] if num_decodes else []
        parts += [slice(i, i + 1) for i in range(num_decodes, len(self.counts))]
        spans = []
        for part in parts:
            first_N = np.array([first for first, _ in self.counts[part]])
            queries = self.counts[part.start][1]
            used = -(-(int(first_N.max()) + queries) // self.block_size)
            spans.append(Span(int(starts[part.start]), queries, first_N, self.tables[part, :used]))
        return spans

    def answer(self, library: CDLL, padding: int = 0) -> Tensor:
        fresh_k, fresh_v, slots = [], [], []
        for request, (first, queries) in enumerate(self.counts):
            old = torch.from_numpy(self.slots(request, 0, first))
            self.cache.write(0, old, self.k[request][:first], self.v[request][:first])
            fresh_k.append(self.k[request][first:])
            fresh_v.append(self.v[request][first:])
            slots.append(self.slots(request, first, first + queries))
        pad = (0, 0, 0, 0, 0, padding)
        # Turned around in memory, as the library's layers hand them over.
        rows = (self.q_THD, torch.cat(fresh_k), torch.cat(fresh_v))
        q, k, v = (torch.nn.functional.pad(x, pad).transpose(0, 1).contiguous().transpose(0, 1) for x in rows)
        step = NativeAttention(library, self.cache).step(self.spans(), np.concatenate(slots))
        return step.attend(
            0, q, k, v, scaling=0.3, window=self.window, softcap=self.softcap, sinks_H=self.sinks_H
        )

    def exact(self) -> Tensor:
        outs = []
        for request, (first, queries) in enumerate(self.counts):
            k = self.k[request].double().repeat_interleave(self.heads // self.key_heads, 1)
            v = self.v[request].double().repeat_interleave(self.heads // self.key_heads, 1)
            start = sum(n for _, n in self.counts[:request])
            scores = torch.einsum("qhd,lhd->hql", self.q_THD[start : start + queries].double(), k) * 0.3
            if self.softcap is not None:
                scores = torch.tanh(scores / self.softcap) * self.softcap
            ahead = torch.arange(first, first + queries)[:, None] - torch.arange(first + queries)
            hidden = (ahead < 0) | (ahead >= (self.window or 10**9))
            scores = scores.masked_fill(hidden, -torch.inf)
            if self.sinks_H is not None:
                sinks = self.sinks_H.double()[:, None, None].expand(-1, queries, 1)
                scores = torch.cat((scores, sinks), -1)
            weights = scores.softmax(-1)[..., : first + queries]
            outs.append(torch.einsum("hql,lhe->qhe", weights, v))
        return torch.cat(outs)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("seed", range(12))
def test_attention_in_place_is_the_plain_formula(library: CDLL, seed: int, dtype: torch.dtype) -> None:
    """Any heads, widths, blocks, windows, caps and sinks; decodes and chunks together; padding is 0."""
    case = Case(seed, dtype)
    out = case.answer(library, padding=3)
    assert not out[-3:].any()
    torch.testing.assert_close(out[:-3].double(), case.exact(), rtol=FORMATS[dtype], atol=FORMATS[dtype])


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_has_the_same_bits_whatever_the_chunk_and_the_threads(
    library: CDLL, dtype: torch.dtype
) -> None:
    """150 queries after 130 keys at once, one at a time, and on one thread."""
    check_bits(library, next(c for s in itertools.count() if (130, 150) in (c := Case(s, dtype)).counts))


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    "shape", [(1, 64, 64, 16), (2, 128, 128, 16), (3, 64, 128, 48), (4, 64, 64, 4), (5, 64, 64, 16)]
)
@pytest.mark.parametrize("window", [None, 100])
def test_a_row_has_the_same_bits_where_values_stay_where_they_are(
    library: CDLL, shape: tuple[int, int, int, int], window: int | None
) -> None:
    """One query of at most four heads to a key head, with whole vectors, goes another way than a chunk."""
    made = (Case(s, torch.bfloat16, shape) for s in itertools.count())
    case = next(c for c in made if (130, 150) in c.counts and c.softcap is None)
    case.window = window
    check_bits(library, case)


def check_bits(library: CDLL, case: Case) -> None:
    """Of the case's chunk of 150 queries after 130 keys, and of its queries one by one."""
    request = case.counts.index((130, 150))
    start = sum(n for _, n in case.counts[:request])
    whole = case.answer(library)[start : start + 150]
    attention = NativeAttention(library, case.cache)
    rows = {"scaling": 0.3, "window": case.window, "softcap": case.softcap, "sinks_H": case.sinks_H}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for query in range(0, 150, 7):
        span = Span(0, 1, np.array([130 + query]), case.tables[request : request + 1])
        step = attention.step([span], case.slots(request, 130 + query, 131 + query))
        at = 130 + query
        out = step.attend(
            0,
            case.q_THD[start + query][None],
            case.k[request][at : at + 1],
            case.v[request][at : at + 1],
            **rows,
        )
        assert torch.equal(out[0], whole[query])
    torch.set_num_threads(before)
