"""The backend's state of requests: batches are applied by the protocol, violations raise."""

import numpy as np
import pytest

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.engine.requests import Requests
from sundog.runtime.sampling.sampler import Sampled
from sundog.runtime.step.step import Step

GREEDY = Sampling(temperature=0.0)


def admission(name: str, tokens: range, blocks: tuple[int, ...], computed: int = 0) -> Admission:
    return Admission(name, len(tokens), len(tokens), computed, blocks, tuple(tokens), GREEDY)


def requests() -> Requests:
    return Requests(block_size=4, max_model_len=64, seed=0, eos_token_ids=())


def play(books: Requests, batch: Batch, token: int = 99) -> Step:
    step = books.fold(batch)
    books.advance(step, Sampled([token] * len(step.request_ids)))
    return step


def test_a_chunk_computes_the_tokens_after_the_computed_ones_in_their_slots() -> None:
    """Token t lives in block_ids[t // block_size] at offset t % block_size."""
    books = requests()
    entering = (admission("a", range(10, 17), (5, 2), 2),)
    first = play(books, Batch(0, entering, (Chunk("a", 3, False),)))
    assert first.token_T.tolist() == [12, 13, 14]
    assert first.position_T.tolist() == [2, 3, 4]
    assert first.slot_T.tolist() == [5 * 4 + 2, 5 * 4 + 3, 2 * 4]
    assert first.request_ids == () and first.sample_rows_R.tolist() == []
    second = play(books, Batch(1, chunks=(Chunk("a", 2, True),)))
    assert second.token_T.tolist() == [15, 16]
    assert second.request_ids == ("a",) and second.sample_rows_R.tolist() == [1]


def test_a_caught_up_request_decodes_its_last_token_in_every_step() -> None:
    books = requests()
    play(books, Batch(0, (admission("a", range(3), (5,)),), (Chunk("a", 3, True),)), token=40)
    step = play(books, Batch(1, num_decodes=1), token=41)
    assert (step.token_T.tolist(), step.slot_T.tolist()) == ([40], [23])
    step = play(books, Batch(2, new_blocks=(("a", (7,)),), num_decodes=1))
    assert (step.token_T.tolist(), step.slot_T.tolist()) == ([41], [28])


def test_decodes_come_first_and_in_the_order_in_which_they_began() -> None:
    books = requests()
    both = (admission("a", range(5), (1, 2)), admission("b", range(2), (3,)))
    play(books, Batch(0, both, (Chunk("a", 3, False), Chunk("b", 2, True))))
    step = play(books, Batch(1, chunks=(Chunk("a", 2, True),), num_decodes=1))
    assert step.request_ids == ("b", "a")
    assert step.sample_rows_R.tolist() == [0, 2]
    assert play(books, Batch(2, num_decodes=2)).request_ids == ("b", "a")


def test_requests_that_leave_are_forgotten_before_others_enter() -> None:
    """A preempted request may come back in the very same batch, with its outputs."""
    books = requests()
    play(books, Batch(0, (admission("a", range(3), (1,)),), (Chunk("a", 3, True),)))
    back = Batch(1, (admission("a", range(4), (9,)),), (Chunk("a", 4, True),), preempted=("a",))
    assert play(books, back).slot_T.tolist() == [36, 37, 38, 39]
    play(books, Batch(2, finished=("a",)))
    assert len(books) == 0


def test_tables_of_like_length_share_a_span() -> None:
    """A short request is not padded to the length of a long one."""
    books = Requests(block_size=4, max_model_len=1024, seed=0, eos_token_ids=())
    lengths = {"a": 900, "b": 8, "c": 12, "d": 800}
    entering = []
    for i, (name, n) in enumerate(lengths.items()):
        blocks = tuple(range(1 + 300 * i, 2 + 300 * i + n // 4))
        entering.append(admission(name, range(n), blocks))
    play(books, Batch(0, tuple(entering), tuple(Chunk(a, n, True) for a, n in lengths.items())))
    step = play(books, Batch(9, num_decodes=4))
    assert step.request_ids == ("b", "c", "a", "d")
    assert [span.table_NB.shape for span in step.spans] == [(2, 4), (2, 226)]


def test_many_requests_have_rows_of_their_own() -> None:
    """Beyond the rows made at first, earlier requests keep theirs."""
    books = requests()
    many = tuple(admission(str(i), range(i, i + 2), (i + 1,)) for i in range(200))
    chunks = tuple(Chunk(str(i), 2, True) for i in range(200))
    step = play(books, Batch(0, many, chunks))
    assert np.array_equal(step.slot_T[::2], 4 * np.arange(1, 201))
    step = play(books, Batch(1, num_decodes=200))
    assert np.array_equal(step.slot_T, 4 * np.arange(1, 201) + 2)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (Batch(1, (admission("a", range(3), (2,)),), num_decodes=1), "admitted twice"),
        (Batch(1, preempted=("x",), num_decodes=1), "does not run"),
        (Batch(1, num_decodes=2), "says 2 decodes, but 1"),
        (Batch(1, (admission("b", range(3), (2,)),), (Chunk("b", 4, True),), num_decodes=1), "fit"),
        (Batch(1, (admission("b", range(3), (2,)),), (Chunk("b", 2, True),), num_decodes=1), "fit"),
        (Batch(1, (admission("b", range(3), ()),), (Chunk("b", 3, True),), num_decodes=1), "block"),
    ],
)
def test_a_batch_against_the_rules_raises(batch: Batch, reason: str) -> None:
    books = requests()
    play(books, Batch(0, (admission("a", range(3), (1,)),), (Chunk("a", 3, True),)))
    with pytest.raises(ValueError, match=reason):
        books.fold(batch)


def test_a_request_that_ended_while_it_waited_is_nobody_to_forget() -> None:
    """Aborts of waiting requests reach the runner too."""
    books = requests()
    play(books, Batch(0, (admission("a", range(3), (1,)),), (Chunk("a", 3, True),)))
    play(books, Batch(1, finished=("never-admitted",), num_decodes=1))
    assert len(books) == 1
