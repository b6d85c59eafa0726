"""Host memory as a tier of KV blocks: what is kept, for how long, and when it is loaded."""

import random
from collections import OrderedDict

from sundog.actors.core.blocks.host_tier import HostTier
from sundog.actors.core.config import HostMemory
from sundog.actors.core.step.plan import plan
from tests.core.requests import hash_by_value, scheduler_state, submit
from tests.core.traces import num_cases


def tier(num_blocks: int = 4) -> HostTier:
    return HostTier(HostMemory(num_blocks, load_s=2.0, store_s=1.0))


def test_a_block_is_found_once_its_copy_is_done() -> None:
    """Copies to the host go one after another, whenever they were asked for."""
    host = tier()
    host.store("ab", 0.0)
    host.store("c", 0.5)
    assert [host.num_found("abc", 0, 3, now_s) for now_s in (0.9, 1.0, 2.0, 2.9, 3.0)] == [0, 1, 2, 2, 3]
    assert host.num_found("xbc", 0, 3, 9.0) == 0 and host.num_found("xbc", 1, 3, 9.0) == 2


def test_what_was_used_least_recently_makes_room_and_beginnings_stay_longest() -> None:
    """The last block of a prompt goes before its first."""
    host = tier()
    host.store("abc", 0.0)
    host.store("x", 0.0)
    host.store("y", 10.0)
    assert host.num_found("abc", 0, 3, 99.0) == 2
    host.touch("ab")
    host.store("z", 10.0)
    assert host.num_found("ab", 0, 2, 99.0) == 2 and not host.num_found("x", 0, 1, 99.0)


def test_what_is_being_copied_stays_and_what_finds_no_room_is_not_stored() -> None:
    """Either way; all of what is to be stored has room, or nothing of it."""
    host = tier()
    host.store("abcd", 0.0)
    host.store("x", 3.5)
    assert host.num_found("abc", 0, 3, 4.0) == 2, "d was still being copied, c made room"
    host.load("r", "ab", 4.0)
    host.store("yz", 9.0)
    assert host.num_found("ab", 0, 2, 99.0) == 2 and host.num_found("yz", 0, 2, 99.0) == 2
    host.store("vwu", 99.0)
    assert not host.num_found("v", 0, 1, 999.0) and len(host) == 4
    host.loaded()
    host.store("vwu", 999.0)
    assert host.num_found("vwu", 0, 3, 9999.0) == 3


def test_loads_go_one_after_another_beside_stores() -> None:
    """Each way has a channel of its own."""
    host = tier()
    host.store("abcd", 0.0)
    host.load("r", "ab", 5.0)
    host.load("s", "cd", 6.0)
    assert host.begun == [("r", 9.0), ("s", 13.0)]
    assert host.is_loading("xc") and not host.is_loading("x")
    host.loaded()
    host.loaded()
    assert not host.is_loading("abcd")


def test_a_tier_is_an_lru_cache_of_blocks_under_any_use() -> None:
    """Against the plain rule, where copies take no time: a list of keys, the least recently used first."""
    for seed in range(num_cases(30)):
        rng, host, plain = random.Random(seed), HostTier(HostMemory(8, 0.0, 0.0)), OrderedDict[int, None]()
        for _ in range(200):
            keys = rng.sample(range(20), rng.randint(1, 10))
            new = [key for key in keys if key not in plain]
            free = [key for key in plain if key not in keys]
            excess = len(plain) + len(new) - 8
            host.store(keys, 0.0)
            if excess <= len(free):
                for key in free[: max(excess, 0)]:
                    del plain[key]
                for key in reversed(new):
                    plain[key] = None
            used = rng.sample(range(20), 3)
            host.touch(used)
            for key in reversed(used):
                if key in plain:
                    plain.move_to_end(key)
            host.check()
            assert {key for key in range(20) if host.num_found([key], 0, 1, 0.0)} == plain.keys()


def test_blocks_of_a_request_that_is_aborted_while_they_are_loaded_are_held_until_the_copy_is_done() -> None:
    """Nobody else is given a block that is still being written."""
    prompt, state = tuple(range(9)), scheduler_state(host_memory=HostMemory(8, 1.0, 1.0))
    host, first = state.kv.host, hash_by_value(None, prompt[:4], None, None)
    assert host is not None
    host.store([first, hash_by_value(first, prompt[4:8], None, None)], 0.0)
    state.view.advance(2.0)
    state.add(submit("r", prompt))
    batch, blocked = plan(state)
    assert not batch.num_tokens and blocked is not None and blocked.reason == "KV load"
    assert host.begun == [("r", 4.0)]
    num_free = state.kv.pool.num_free
    assert num_free == 64 - 3
    state.abort(("r",))
    assert state.kv.pool.num_free == num_free
    state.check()
    state.loaded("r")
    assert state.kv.pool.num_free == 64
    state.check()


def test_a_loaded_request_keeps_its_place_and_is_found_by_others() -> None:
    """It is admitted with what came, before those that arrived later; its blocks are in the prefix cache."""
    prompt, state = tuple(range(9)), scheduler_state(host_memory=HostMemory(8, 1.0, 1.0), max_num_seqs=1)
    host, first = state.kv.host, hash_by_value(None, prompt[:4], None, None)
    assert host is not None
    host.store([first], 0.0)
    state.view.advance(2.0)
    state.add(submit("r", prompt))
    plan(state)
    state.add(submit("late", (7, 7, 7)))
    state.loaded("r")
    batch, blocked = plan(state)
    (admitted,) = batch.admitted
    assert (admitted.request_id, admitted.num_computed_tokens, admitted.num_host_tokens) == ("r", 4, 4)
    assert blocked is not None and (blocked.request_id, blocked.reason) == ("late", "max_num_seqs")
    late = state.add(submit("same", prompt))
    assert state.kv.find_hit(late)[:1] == list(admitted.block_ids[:1])
