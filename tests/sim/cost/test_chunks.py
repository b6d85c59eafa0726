"""Chunked local attention (Llama 4): a token attends to its own chunk only, up to itself."""

import random

import pytest

from sundog.sim.cost.roofline import Roofline, _chunked_pairs
from sundog.sim.cost.work import StepWork
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model

COST = Roofline(load_model("llama-4-scout-17b-16e"), load_gpu("h100"), tensor_parallel_size=8)


def decode_s(num_decodes: int, context: int) -> float:
    """Of requests with that context each."""
    return COST.step_s(StepWork(num_decodes, num_decodes * context, (), num_decodes))


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_the_plain_count(seed: int) -> None:
    """Over any chunk of a prompt."""
    rng = random.Random(seed)
    chunk, before, new = rng.randint(1, 9), rng.randint(0, 40), rng.randint(1, 40)
    plain = sum(position % chunk + 1 for position in range(before, before + new))
    assert _chunked_pairs(before + new, chunk) - _chunked_pairs(before, chunk) == plain


def test_a_decode_reads_from_where_its_chunk_begins() -> None:
    """Just behind a whole chunk only the layers without chunks, one of four, read what came before."""
    at_end, behind, next_end = decode_s(1, 8192), decode_s(1, 8193), decode_s(1, 2 * 8192)
    token_s = (at_end - decode_s(1, 1)) / 8191
    assert at_end - behind == pytest.approx(0.75 * 8191 * token_s - 0.25 * token_s, rel=1e-6)
    assert next_end - at_end == pytest.approx(0.25 * 8192 * token_s, rel=1e-6)


def test_many_decodes_read_half_a_chunk_each() -> None:
    """Up to a chunk everything; beyond, chunks begin at different places."""
    token_s = (decode_s(64, 4096) - decode_s(64, 2048)) / (64 * 2048)
    beyond = decode_s(64, 20000) - decode_s(64, 4096)
    assert beyond == pytest.approx(64 * token_s * (0.25 * (20000 - 4096) + 0.75 * 0.5), rel=1e-6)


@pytest.mark.parametrize("num_decodes", [1, 7])
def test_runs_equal_steps_across_the_end_of_a_chunk(num_decodes: int) -> None:
    """Bit for bit."""
    work = StepWork(num_decodes, num_decodes * 8190, (), num_decodes)
    steps, each = [], work
    for _ in range(40):
        steps.append(COST.step_s(each))
        each = each.next_decodes()
    assert COST.run_s(work, 40).tolist() == COST.few_s(work, 40) == steps


def test_a_prompt_in_chunks_of_the_chunk_reads_nothing_before() -> None:
    """The second 8,192 tokens cost more than the first only in the layers without chunks."""
    first, second = (COST.step_s(StepWork(0, 0, ((8192, before),), 1)) for before in (0, 8192))
    whole = Roofline(load_model("llama-3.1-70b"), load_gpu("h100"), tensor_parallel_size=8)
    dense = [whole.step_s(StepWork(0, 0, ((8192, before),), 1)) for before in (0, 8192)]
    assert first < second and second - first < 0.2 * (dense[1] - dense[0])
