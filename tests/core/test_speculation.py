"""Speculative decoding in the scheduler: different steps, same results of requests."""

import random
from dataclasses import replace

import pytest

from sundog.actors.core.acceptance import Acceptance
from sundog.actors.core.batch import Finish, StepResult
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import cut, update
from tests.core.drive import Drafting, Driven, Planned
from tests.core.requests import MAX_MODEL_LEN, scheduler_state, submit
from tests.core.test_lockstep_equals_plain import without_tokens
from tests.core.traces import Trace, batches, countable, num_cases, random_trace

CASES = batches(num_cases(240), 60)
EOS = 2


def synchronous(trace: Trace, *, events: bool) -> Trace:
    """The trace where a step is planned when the last one's accepted drafts are known."""
    config = trace["config"] | {"async_scheduling": False}
    return trace | {"config": config, "events": trace["events"] if events else []}


def drafting(seed: int) -> Drafting:
    """Drafts of this seed: some requests get few or none, and some of them are right."""
    rng = random.Random(seed)
    most, rate = rng.choice([1, 2, 4, 9, 40]), rng.choice([0.0, 0.3, 0.7, 1.0])
    always = rng.random() < 0.5

    def guess(name: str, num_known: int) -> list[bool]:
        own = random.Random(f"{seed} {name} {num_known}")
        return [own.random() < rate for _ in range(most if always else own.randint(0, most))]

    return Drafting(most, rng.choice([0, 0, most]), guess)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", CASES, ids=str)
def test_drafts_change_no_token_and_no_end(seeds: range) -> None:
    """Each request has the tokens and the end that it has without; slots hold what is read from them."""
    num_verified = num_accepted = num_preempted = 0
    for seed in seeds:
        trace = synchronous(random_trace(seed, stalls=False), events=False)
        plain, drafted = Driven(trace), Driven(trace, drafting=drafting(seed))
        plain.run()
        log = drafted.run()
        assert drafted.delivered == plain.delivered, f"seed {seed}"
        assert sorted(map(repr, drafted.ended)) == sorted(map(repr, plain.ended)), f"seed {seed}"
        assert drafted.state.kv.pool.num_free == plain.state.kv.pool.num_free
        num_verified += drafted.source.num_verified  # type: ignore[union-attr]  # it was given drafts
        num_accepted += drafted.source.num_accepted  # type: ignore[union-attr]  # as above
        num_preempted += sum(len(e.batch.preempted) for e in log if isinstance(e, Planned))
    assert num_verified > 100 and 0 < num_accepted < num_verified and num_preempted > 0


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", CASES, ids=str)
def test_aborts_and_resets_between_drafts_break_no_law(seeds: range) -> None:
    """Every request ends once; blocks and queues are checked after every step."""
    for seed in seeds:
        trace = synchronous(random_trace(seed, stalls=False), events=True)
        drafted = Driven(trace, drafting=drafting(seed))
        drafted.run()
        names = sorted(finish.request_id for finish in drafted.ended)
        assert names == sorted(row["id"] for row in trace["requests"]), f"seed {seed}"
        assert drafted.state.kv.pool.num_free == drafted.state.kv.pool.num_blocks - 1


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", CASES, ids=str)
def test_where_tokens_are_counted_drafts_give_the_same_batches(seeds: range) -> None:
    """A simulation that accepts the same drafts plans the same steps, block for block."""
    for seed in seeds:
        trace = countable(synchronous(random_trace(seed), events=True))
        seen = Driven(trace, drafting=drafting(seed)).run()
        counted = Driven(trace, counts=True, drafting=drafting(seed)).run()
        assert counted == without_tokens(seen), f"seed {seed}"


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", CASES, ids=str)
def test_a_run_that_may_have_drafts_and_has_none_is_a_run_without(seeds: range) -> None:
    """Not one decision differs."""
    for seed in seeds:
        trace = synchronous(random_trace(seed), events=True)
        never = Drafting(3, 0, lambda name, num_known: [])
        assert Driven(trace, drafting=never).run() == Driven(trace, lockstep=False).run(), f"seed {seed}"


def decoding(num_drafts: int, **fields: object) -> SchedulerState:
    """A request `a` of 3 tokens that has its first token and so many drafts."""
    state = scheduler_state(num_speculative_tokens=8)
    state.add(submit("a", (5, 6, 7), **{"eos": EOS, "max_tokens": 20} | fields))  # type: ignore[arg-type]
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (0.0,), (("a", 9),), drafts=(("a", num_drafts),)))
    return state


def step(state: SchedulerState, *tokens: int, drafts: int = 0) -> list[Finish]:
    """Plan a step, and update it with these tokens of `a`; then there are so many new drafts."""
    batch, _ = plan(state)
    result = StepResult(batch.step, (0.0,), tuple(("a", token) for token in tokens), drafts=(("a", drafts),))
    return update(state, cut(state, result))


def test_rejected_drafts_count_as_not_computed() -> None:
    """The request keeps its blocks; the next step computes its new token alone."""
    state = decoding(4)
    batch, _ = plan(state)
    assert batch.drafts == (("a", 4),) and (batch.num_decodes, batch.num_tokens) == (1, 5)
    result = StepResult(batch.step, (0.0,), (("a", 11), ("a", 12)))
    taken = cut(state, result)
    assert taken.accepted == (("a", 1),)
    assert update(state, taken) == []
    request = state.requests["a"]
    assert (request.num_tokens, request.num_computed_tokens) == (6, 5)
    assert request.token_ids == [5, 6, 7, 9, 11, 12]
    state.check()
    assert plan(state)[0].num_tokens == 1


@pytest.mark.parametrize(
    ("fields", "tokens", "kept", "finish"),
    [
        ({}, (11, EOS, 13, 14), [11, EOS], Finish("a", "stop")),
        ({"stop_token_ids": (13,)}, (11, 12, 13, 14), [11, 12, 13], Finish("a", "stop", 13)),
        ({"max_tokens": 3}, (11, 12, 13, 14), [11, 12], Finish("a", "length")),
        ({"max_tokens": 3}, (11, EOS, 13, 14), [11, EOS], Finish("a", "stop")),
        ({"ignore_eos": True, "max_tokens": 4}, (EOS, EOS, EOS, EOS), [EOS] * 3, Finish("a", "length")),
    ],
)
def test_a_request_ends_within_its_accepted_drafts(
    fields: dict[str, object], tokens: tuple[int, ...], kept: list[int], finish: Finish
) -> None:
    """By its end token, a stop token or its limit: what lies behind is no output."""
    state = decoding(4, **fields)
    batch, _ = plan(state)
    result = cut(state, StepResult(batch.step, (0.0,), tuple(("a", token) for token in tokens)))
    assert [token for _, token in result.tokens or ()] == kept
    assert result.accepted == (("a", len(kept) - 1),)
    assert update(state, result) == [finish]
    assert state.kv.pool.num_free == 64
    state.check()


def test_a_budget_below_the_drafts_verifies_the_first_of_them() -> None:
    """The rest is dropped, as in vLLM, and not kept for later."""
    state = decoding(8)
    state.config = replace(state.config, max_num_batched_tokens=3)
    batch, _ = plan(state)
    assert batch.drafts == (("a", 2),) and batch.num_tokens == 3
    update(state, cut(state, StepResult(batch.step, (0.0,), (("a", 11),))))
    assert plan(state)[0].drafts == ()


def test_drafts_end_at_the_models_length() -> None:
    """No draft is computed beyond what the model can hold."""
    state = scheduler_state(num_speculative_tokens=8)
    state.add(submit("a", (5,) * (MAX_MODEL_LEN - 4), max_tokens=50))
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (0.0,), (("a", 9),), drafts=(("a", 8),)))
    batch, _ = plan(state)
    assert batch.drafts == (("a", 2),)
    taken = cut(state, StepResult(batch.step, (0.0,), (("a", 9),) * 3))
    assert update(state, taken) == [Finish("a", "length")]


def test_more_accepted_drafts_than_there_were_are_a_bug() -> None:
    """The backend and the scheduler disagree: it is found where it happens."""
    state = decoding(1)
    with pytest.raises(ValueError, match="accepted 2 drafts of a, of 1"):
        step(state, 11, 12, 13)


def test_async_scheduling_with_speculation_is_refused() -> None:
    with pytest.raises(ConfigError, match="async_scheduling and speculative decoding exclude each other"):
        SchedulerConfig(async_scheduling=True, num_speculative_tokens=2)


@pytest.mark.parametrize(("version", "num_hit_blocks"), [("0.32", 1), ("0.33", 2)])
def test_blocks_that_accepted_drafts_fill_are_found_when_their_request_has_ended(
    version: str, num_hit_blocks: int
) -> None:
    """From vLLM 0.33 on they get keys with the result of the step, before that when the next is planned.

    Blocks of 4 tokens: the prompt 5 6 7, then 8, then the drafts 11 to 14 and the last token.
    """
    state = scheduler_state(num_speculative_tokens=4, engine_version=version)
    state.add(submit("a", (5, 6, 7), max_tokens=6))
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (0.0,), (("a", 8),), drafts=(("a", 4),)))
    batch, _ = plan(state)
    result = StepResult(batch.step, (0.0,), tuple(("a", token) for token in (11, 12, 13, 14, 15)))
    assert update(state, cut(state, result)) == [Finish("a", "length")]
    state.add(submit("b", (5, 6, 7, 8, 11, 12, 13, 14, 99)))
    batch, _ = plan(state)
    assert batch.admitted[0].num_computed_tokens == 4 * num_hit_blocks
    state.check()


def test_a_rejected_draft_fills_no_block() -> None:
    """Of four drafts two are right: 7 tokens are computed, and the second block has no key."""
    state = scheduler_state(num_speculative_tokens=4)
    state.add(submit("a", (5, 6, 7), max_tokens=9))
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (0.0,), (("a", 8),), drafts=(("a", 4),)))
    batch, _ = plan(state)
    update(state, cut(state, StepResult(batch.step, (0.0,), (("a", 11), ("a", 12), ("a", 13)))))
    assert state.requests["a"].num_computed_tokens == 6
    assert state.requests["a"].num_registered_blocks == 1
    state.abort(("a",))
    state.add(submit("b", (5, 6, 7, 8, 11, 12, 13, 14, 99)))
    assert plan(state)[0].admitted[0].num_computed_tokens == 4


def test_drafts_accepted_behind_the_end_of_an_answer_are_counted() -> None:
    """As vLLM counts them, before an end token or a limit cuts the answer; nobody gets their tokens."""
    for fields, tokens in (({}, (11, EOS, 13, 14)), ({"max_tokens": 3}, (11, 12, 13, 14))):
        state = decoding(4, **fields)
        batch, _ = plan(state)
        taken = cut(state, StepResult(batch.step, (0.0,), tuple(("a", token) for token in tokens)))
        assert taken.tokens == tuple(("a", token) for token in tokens[:2])
        assert (taken.accepted, taken.surplus) == ((("a", 1),), (("a", 2),))
        counts = Acceptance()
        counts.add(batch.drafts, taken.accepted, taken.surplus)
        assert counts.num_accepted_tokens == len(tokens) - 1
        assert counts.accepted_per_position == [1, 1, 1, 0]
        assert [finish.request_id for finish in update(state, taken)] == ["a"]


def test_counted_drafts_behind_a_limit_are_counted_too() -> None:
    """A backend that only counts says what it accepted; the scheduler's limit cuts the answer."""
    state = decoding(4, max_tokens=3)
    batch, _ = plan(state)
    taken = cut(state, StepResult(batch.step, (0.0,), accepted=(("a", 4),)))
    assert (taken.accepted, taken.surplus) == ((("a", 1),), (("a", 3),))
