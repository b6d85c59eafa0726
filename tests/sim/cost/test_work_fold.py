"""WorkFold: folding the batches counts every token of every request exactly once."""

import pytest

from tests.core.drive import Driven, Planned, Updated
from tests.core.traces import batches, num_cases, random_trace

SEEDS = batches(num_cases(300), 60)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_folded_batches_compute_every_token_in_order_from_valid_blocks(seeds: range) -> None:
    """The reference runner raises on a token out of order, a block not owned, a slot of garbage.

    In the end every request has ended once, all blocks are free and the runner has forgotten all.
    """
    for seed in seeds:
        trace = random_trace(seed)
        driven = Driven(trace, lockstep=seed % 2 == 0)
        try:
            driven.run()
        except (AssertionError, LookupError) as error:
            error.add_note(f"seed {seed}")
            raise
        if driven.stalled:
            continue
        names = sorted(finish.request_id for finish in driven.ended)
        assert names == sorted(row["id"] for row in trace["requests"]), f"seed {seed}"
        assert driven.state.kv.pool.num_free == trace["config"]["num_gpu_blocks"] - 1
        assert not driven.runner.requests


def test_every_token_of_a_request_is_seen_by_the_runner() -> None:
    """What the runner sampled, in order, is what the scheduler keeps, and each was computed."""
    trace = random_trace(7, resets=False)
    driven = Driven(trace)
    seen: dict[str, int] = {}

    def compare(event: Planned | Updated) -> None:
        for name, request in driven.runner.requests.items():
            known = driven.state.requests.get(name)
            if known is not None and known.token_ids is not None:
                tokens = known.token_ids[: len(request.tokens)]
                assert request.tokens[: len(tokens)] == tokens, event
                seen[name] = len(tokens)

    driven.watch = compare
    driven.run()
    assert seen


@pytest.mark.parametrize("leaves_uncomputed", [False, True], ids=["correct", "as-vllm"])
def test_blocks_that_a_preemption_left_uncomputed_are_hit_only_where_vllm_does(
    leaves_uncomputed: bool,
) -> None:
    """Under Priority a victim may have been given tokens, and its full blocks keys, in this step.

    The tokens go back to the budget and are never computed; where decisions must be vLLM's the
    keys stay, and the victim itself may hit them. Under Fcfs victims come after everyone who was
    given anything.
    """
    config = random_trace(0)["config"] | {
        "policy": "priority",
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "block_size": 4,
        "max_model_len": 16,
        "num_gpu_blocks": 6,
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "max_num_active_seqs": None,
        "long_prefill_token_threshold": 3,
        "long_prefill_token_threshold_adaptive": False,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
    }
    row = random_trace(0)["requests"][0] | {
        "arrival_time": 0.0,
        "cache_salt": None,
        "outputs": [],
        "stop_token_ids": [],
        "ignore_eos": True,
        "min_tokens": 0,
    }
    victim = row | {"id": "victim", "arrival_step": 1, "priority": 1, "prompt": [5] * 13, "max_tokens": 1}
    urgent = row | {"id": "urgent", "arrival_step": 2, "priority": 0, "prompt": [6] * 5, "max_tokens": 2}
    trace = {"config": config, "requests": [victim, urgent], "events": []}
    driven = Driven(trace, leaves_uncomputed=leaves_uncomputed)
    if leaves_uncomputed:
        with pytest.RaisesGroup(
            pytest.RaisesExc(AssertionError, match="victim reads garbage at token 11"), flatten_subgroups=True
        ):
            driven.run()
    else:
        driven.run()
