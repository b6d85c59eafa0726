"""A router's counts of its replicas, including lost and restarted ones."""

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import DEFAULTS
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.fleet_state import FleetState
from sundog.actors.core.routers.prefix_index import new_index


def fleet() -> FleetState:
    """Two replicas of 100 blocks of 4 tokens; `a` and `b` were sent to the second, whose steps were noted."""
    state = FleetState(new_index("own"), 0)
    for _ in range(2):
        state.add(100, 4)
    for name in "ab":
        state.begin(1.0)
        state.send(Submit(name, 0.0, 9, 8, block_hashes=("x", "y")), 1)
    state.note(1, num_free_blocks=40, num_running=3, num_waiting=7, step_s=0.25)
    return state


def test_a_lost_replica_has_nothing() -> None:
    """Its requests, counts, blocks and durations are those of an unused one; the other keeps its own."""
    state = fleet()
    state.note(0, num_free_blocks=50, num_running=1, num_waiting=2, step_s=0.5)
    assert state.lose(1) == ("a", "b")
    assert (state.num_requests, state.num_tokens, state.num_prefill_tokens) == ([0, 0], [0, 0], [0, 0])
    assert (state.num_running, state.num_waiting) == ([1, 0], [2, 0])
    assert (state.num_free_blocks, state.step_s) == ([50, 100], [0.5, None])
    assert state.has_ended == [False, False]
    assert list(state.up_for["both"]) == [0]
    assert [state.replica_of(name) for name in "ab"] == [None, None]
    state.begin(2.0)
    assert state.num_hit_blocks(("x", "y"), 9, 1) == 0


def test_a_request_counts_until_it_has_ended_and_once() -> None:
    """Its tokens and those of its prompt that are to be computed leave with it."""
    state = fleet()
    assert state.num_requests == [0, 2] and state.num_tokens == [0, 2 * 9]
    assert state.num_prefill_tokens == [0, 9 + 1], "the second finds two blocks of the first"
    for _ in range(2):
        state.end("a")
    assert state.num_requests == [0, 1] and state.num_tokens == [0, 9]
    assert state.num_prefill_tokens == [0, 1] and state.has_ended == [False, True]


def test_tokens_to_compute_follow_admissions_and_chunks() -> None:
    """A chunk takes its tokens off; one that samples leaves none."""
    state = fleet()
    admitted = Admission("a", 9, 9, 0, (1, 2, 3), None, DEFAULTS)
    state.follow(1, Batch(1, admitted=(admitted,), chunks=(Chunk("a", 4, False),)), 1)
    assert state.num_prefill_tokens == [0, 5 + 1]
    state.follow(1, Batch(2, chunks=(Chunk("a", 5, True),)), 1)
    assert state.num_prefill_tokens == [0, 1]


def test_a_replica_that_is_drained_or_down_is_sent_nothing_until_both_are_over() -> None:
    """In whichever order."""
    state = fleet()
    state.drain(1, True)
    state.lose(1)
    state.drain(1, False)
    assert list(state.up_for["both"]) == [0]
    state.drain(1, True)
    state.regain(1)
    assert list(state.up_for["both"]) == [0]
    state.drain(1, False)
    assert list(state.up_for["both"]) == [0, 1]
