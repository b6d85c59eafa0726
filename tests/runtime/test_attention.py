"""Paged attention against the plain formula, on scattered blocks."""

import itertools

import pytest
import torch
from torch import Tensor

from sundog.runtime.attention.gathered import attend_group
from sundog.runtime.attention.groups import Group
from sundog.runtime.attention.paged_cache import LayerShape, PagedKVCache
from sundog.runtime.attention.varlen import Sequences, can_attend, is_available

BLOCK_SIZE, KEY_HEADS, HEADS, KEY_WIDTH, VALUE_WIDTH = 4, 2, 6, 8, 5


def plain(
    q_QHD: Tensor,
    k_LKD: Tensor,
    v_LKE: Tensor,
    first: int,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """softmax(mask(cap(q k))) v, head by head, a sink being one more score without a value."""
    out_QHE = torch.zeros(len(q_QHD), HEADS, VALUE_WIDTH, dtype=q_QHD.dtype)
    for query, head in itertools.product(range(len(q_QHD)), range(HEADS)):
        last = first + query
        start = 0 if window is None else max(0, last - window + 1)
        key_head = head // (HEADS // KEY_HEADS)
        scores = k_LKD[start : last + 1, key_head] @ q_QHD[query, head] * 0.3
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks_H is not None:
            scores = torch.cat((scores, sinks_H[head : head + 1]))
        weights = scores.softmax(-1)[: last + 1 - start]
        out_QHE[query, head] = weights @ v_LKE[start : last + 1, key_head]
    return out_QHE


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize(("softcap", "has_sinks"), [(None, False), (2.0, False), (None, True)])
@pytest.mark.parametrize(("firsts", "num_queries"), [((0, 5, 17, 3), 1), ((6,), 7), ((0,), 9), ((13,), 2)])
def test_gathered_attention_is_the_plain_formula(
    firsts: tuple[int, ...], num_queries: int, softcap: float | None, has_sinks: bool, window: int | None
) -> None:
    """Decodes and chunks, with and without earlier keys, windows, caps and sinks."""
    torch.manual_seed(0)
    shape = LayerShape(KEY_HEADS, KEY_WIDTH, VALUE_WIDTH, torch.float64)
    cache = PagedKVCache([shape], 40, BLOCK_SIZE, torch.device("cpu"))
    tables = (torch.randperm(39) + 1)[: len(firsts) * 6].view(len(firsts), 6)
    sinks_H = torch.randn(HEADS, dtype=torch.float64) if has_sinks else None
    num_rows = len(firsts) * num_queries
    q_THD = torch.randn(num_rows, HEADS, KEY_WIDTH, dtype=torch.float64)
    k_TKD = torch.zeros(num_rows, KEY_HEADS, KEY_WIDTH, dtype=torch.float64)
    v_TKE = torch.zeros(num_rows, KEY_HEADS, VALUE_WIDTH, dtype=torch.float64)
    expected = []
    for request, first in enumerate(firsts):
        length = first + num_queries
        k_LKD = torch.randn(length, KEY_HEADS, KEY_WIDTH, dtype=torch.float64)
        v_LKE = torch.randn(length, KEY_HEADS, VALUE_WIDTH, dtype=torch.float64)
        at = torch.arange(length)
        slots_L = tables[request, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
        cache.write(0, slots_L, k_LKD, v_LKE)
        rows = slice(request * num_queries, (request + 1) * num_queries)
        k_TKD[rows], v_TKE[rows] = k_LKD[first:], v_LKE[first:]
        expected.append(plain(q_THD[rows], k_LKD, v_LKE, first, window, softcap, sinks_H))
    positions_NQ = torch.tensor(firsts)[:, None] + torch.arange(num_queries)
    longest = -(-(max(firsts) + num_queries) // BLOCK_SIZE)
    group = Group(0, tables[:, :longest], positions_NQ, BLOCK_SIZE, fresh=firsts == (0,))
    out_THE = attend_group(
        group,
        q_THD,
        k_TKD,
        v_TKE,
        cache.keys_SPKD[0],
        cache.values_SPKE[0],
        scaling=0.3,
        window=window,
        softcap=softcap,
        sinks_H=sinks_H,
    )
    torch.testing.assert_close(out_THE, torch.cat(expected))


def test_a_window_reads_only_the_blocks_it_touches() -> None:
    """The cost of a windowed layer does not grow with the context."""
    group = Group(0, torch.arange(100)[None], torch.tensor([[399]]), BLOCK_SIZE)
    assert group.keys(8, torch.float32).table_NB.tolist() == [[98, 99, 99]]


def test_the_flash_call_is_for_cuda_only() -> None:
    assert not can_attend(torch.zeros(1, 2, 8).bfloat16(), torch.zeros(2, 256, 2, 8).bfloat16())
    assert is_available() <= torch.cuda.is_available()


def test_copied_keys_lie_side_by_side_without_padding() -> None:
    """Each request's slots in the order of its tokens, one request after the other."""
    table_RB = torch.tensor([[7, 0], [3, 9]], dtype=torch.int32)
    counts = torch.tensor([3, 6], dtype=torch.int32)
    starts = torch.tensor([0, 3, 9], dtype=torch.int32)
    sequences = Sequences(starts, starts, counts, table_RB, 6, 6, 9)
    assert sequences.key_slots_L(4).tolist() == [28, 29, 30, 12, 13, 14, 15, 36, 37]
