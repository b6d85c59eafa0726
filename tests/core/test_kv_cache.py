"""KV cache: savings and costs of prefix hits, and admission."""

from dataclasses import replace

import pytest

from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import HostMemory, SchedulerConfig
from sundog.actors.core.request import Request
from tests.core.requests import hash_by_value, request

SIZE = 4


def cache(num_blocks: int = 20, **fields: object) -> KVCache:
    config = SchedulerConfig(num_gpu_blocks=num_blocks, block_size=SIZE, **fields)  # type: ignore[arg-type]
    return KVCache(config, hash_by_value)


def admit(kv: KVCache, new: Request) -> list[int]:
    """Admit with all tokens; the blocks of the prefix hit."""
    hit = kv.find_hit(new)
    kv.admit(new, hit, new.num_tokens)
    return hit


def test_a_request_owns_the_blocks_its_tokens_need() -> None:
    """Rounded up, and none before its first token."""
    kv = cache()
    assert [kv.num_blocks(tokens) for tokens in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    new = request("a", tuple(range(9)))
    admit(kv, new)
    assert new.block_ids == [1, 2, 3]
    assert kv.grow(new, 12) == [] and kv.grow(new, 13) == [4]
    kv.release(new)
    assert new.block_ids == [] and kv.pool.num_free == 19


def test_a_hit_leaves_one_token_to_compute() -> None:
    """A fully cached prompt that ends with a block computes that whole block again."""
    kv = cache()
    admit(kv, request("a", tuple(range(8))))
    assert kv.find_hit(request("b", tuple(range(8)))) == [1]
    assert kv.find_hit(request("c", tuple(range(9)))) == [1, 2]
    assert kv.find_hit(request("d", (0,))) == []


def test_a_hit_is_a_prefix() -> None:
    """Equal blocks after different ones are not equal."""
    kv = cache()
    admit(kv, request("a", (1, 1, 1, 1, 2, 2, 2, 2, 3)))
    assert kv.find_hit(request("b", (9, 9, 9, 9, 2, 2, 2, 2, 3))) == []
    assert kv.find_hit(request("c", (1, 1, 1, 1, 9, 9, 9, 9, 3))) == [1]


def test_tenants_do_not_hit_each_other() -> None:
    """The cache salt is part of every key."""
    kv = cache()
    admit(kv, request("a", tuple(range(9)), salt="a"))
    assert kv.find_hit(request("b", tuple(range(9)), salt="b")) == []
    assert kv.find_hit(request("c", tuple(range(9)), salt="a")) == [1, 2]


def test_blocks_can_be_hit_before_they_are_computed() -> None:
    """They are registered when they are given out, so the same step may share them."""
    kv = cache()
    admit(kv, request("a", tuple(range(9))))
    assert admit(kv, request("b", tuple(range(9)))) == [1, 2]


def test_only_full_blocks_of_known_tokens_are_registered() -> None:
    """The last block waits until its tokens are known."""
    kv = cache()
    new = request("a", tuple(range(6)))
    admit(kv, new)
    assert kv.pool.num_cached == 1
    new.token_ids += [1, 2]  # type: ignore[operator]
    kv.register(new, 8)
    assert kv.pool.num_cached == 2 and new.num_registered_blocks == 2


def test_without_prefix_caching_nothing_is_registered_or_hit() -> None:
    """And the pool behaves as a stack."""
    kv = cache(enable_prefix_caching=False)
    new = request("a", tuple(range(9)))
    admit(kv, new)
    assert kv.pool.num_cached == 0 and kv.find_hit(request("b", tuple(range(9)))) == []
    kv.release(new)
    assert kv.pool.free_order[:3] == [3, 2, 1]


def test_shared_blocks_that_nobody_holds_count_as_taken() -> None:
    """Sharing them takes them out of the free queue; sharing held ones costs nothing."""
    kv = cache(num_blocks=5)
    first = request("a", tuple(range(9)))
    admit(kv, first)
    second = request("b", tuple(range(9)))
    hit = kv.find_hit(second)
    assert kv.fits(hit, 9, 0), "two held blocks are shared, the one free block is taken"
    assert not kv.fits(hit, 13, 0)
    kv.release(first)
    hit = kv.find_hit(second)
    assert hit == [1, 2]
    assert kv.fits(hit, 16, 0), "all four blocks"
    assert not kv.fits(hit, 17, 0)


def test_the_watermark_is_kept_free() -> None:
    """A fraction of all blocks, the null block included, rounded down."""
    kv = cache(num_blocks=20, watermark=0.19)
    assert kv.watermark_blocks == 3
    assert kv.fits([], 16 * SIZE, kv.watermark_blocks)
    assert not kv.fits([], 17 * SIZE, kv.watermark_blocks)


def test_growth_beyond_the_pool_takes_nothing() -> None:
    """None means preempt somebody and ask again."""
    kv = cache(num_blocks=4)
    new = request("a", tuple(range(8)))
    admit(kv, new)
    assert kv.grow(new, 17) is None
    assert new.block_ids == [1, 2] and kv.pool.num_free == 1


def test_where_tokens_are_counted_blocks_are_the_requests_own() -> None:
    """Nobody else can have the same tokens, but the request finds its own again."""
    kv = cache()
    first, second = request("a", tuple(range(9))), request("b", tuple(range(9)))
    for counted in (first, second):
        counted.token_ids = None
    admit(kv, first)
    assert kv.find_hit(second) == []
    kv.release(first, returns=True)
    assert kv.find_hit(second) == [] and kv.find_hit(first) == [1, 2]


def test_what_would_be_free_without_some_requests_is_what_they_alone_hold() -> None:
    """Blocks that another shares stay; those that the new request would share count as taken again."""
    kv = cache(num_blocks=7)
    first, second = request("a", tuple(range(8))), request("b", tuple(range(9)))
    admit(kv, first)
    assert admit(kv, second) == [1, 2] and kv.pool.num_free == 3
    assert not kv.fits_without([], [], 16, 0)
    assert not kv.fits_without([first], [], 16, 0), "its two blocks are the other's, too"
    assert kv.fits_without([second], [], 16, 0) and not kv.fits_without([second], [], 17, 0)
    assert not kv.fits_without([second], [], 16, 1), "a block is kept back"
    assert kv.fits_without([first, second], [], 24, 0) and not kv.fits_without([first, second], [], 25, 0)
    assert kv.fits_without([first, second], [1, 2], 24, 0)
    assert not kv.fits_without([first, second], [1, 2], 25, 0)
    assert kv.fits_without([second], [1, 2], 24, 0), "the first keeps the blocks that are shared"


def test_shared_blocks_are_those_that_another_holds_too() -> None:
    """The first ones of a table; none once the other has left."""
    kv = cache()
    first, second = request("a", tuple(range(12))), request("b", (*range(8), 99))
    admit(kv, first)
    admit(kv, second)
    assert [kv.num_shared_blocks(each) for each in (first, second)] == [2, 2]
    kv.release(second)
    assert kv.num_shared_blocks(first) == 0


def test_blocks_beyond_what_was_computed_are_found_no_more() -> None:
    """Of 9 tokens 5 were computed: the first block stays, the second is forgotten."""
    kv = cache()
    new = request("a", tuple(range(9)))
    admit(kv, new)
    kv.unregister(new, 5)
    assert new.num_registered_blocks == 1 and kv.pool.num_cached == 1
    assert kv.find_hit(request("b", tuple(range(9)))) == [1]
    kv.unregister(new, 8)
    assert new.num_registered_blocks == 1, "what was forgotten does not come back"
    kv.release(new)
    kv.pool.check([])


def test_a_request_that_ends_leaves_counted_tokens_to_nobody() -> None:
    """Only one that returns finds its own blocks again; either way the blocks are free at once."""
    for returns in (True, False):
        kv = cache()
        counted = request("a", tuple(range(9)))
        counted.token_ids = None
        admit(kv, counted)
        kv.release(counted, returns=returns)
        assert kv.find_hit(counted) == ([1, 2] if returns else [])
        assert counted.block_ids == [] and counted.num_registered_blocks == counted.num_known_blocks == 0
        assert kv.pool.num_free == 19 and kv.pool.free_order[-2:] == [2, 1]


def test_prompt_logprobs_compute_the_whole_prompt() -> None:
    """Though its blocks are cached."""
    kv = cache()
    admit(kv, request("a", tuple(range(9))))
    asks = request("b", tuple(range(9)))
    asks.submit.sampling = replace(asks.submit.sampling, prompt_logprobs=0)
    assert kv.find_hit(asks) == []


def test_the_hosts_memory_is_given_each_full_block_once() -> None:
    """And has it when the copy is done: one second for each block here."""
    kv = cache(host_memory=HostMemory(10, load_s=1.0, store_s=1.0))
    first, second = request("a", tuple(range(13))), request("b", tuple(range(13)))
    admit(kv, first)
    kv.offload(first, 2, 0.0, is_whole=False)
    kv.find_hit(second)
    assert [kv.num_on_host(second, 0, now_s) for now_s in (0.5, 1.0, 1.5, 2.0)] == [0, 1, 1, 2]
    assert kv.num_on_host(second, 1, 2.0) == 1 and kv.num_on_host(second, 2, 2.0) == 0
    kv.offload(first, 2, 5.0, is_whole=False)
    kv.offload(first, 1, 5.0, is_whole=False)
    assert first.num_offloaded_blocks == 2
    kv.offload(first, 3, 5.0, is_whole=True)
    assert [kv.num_on_host(second, 0, now_s) for now_s in (5.5, 6.0)] == [2, 3]


def test_a_block_that_the_host_has_evicted_is_not_given_to_it_again() -> None:
    """Room for two: the third block of a prompt takes one place, not three, which there are not."""
    kv = cache(host_memory=HostMemory(2, load_s=1.0, store_s=1.0))
    first, other = request("a", tuple(range(13))), request("b", tuple(range(50, 59)))
    for each in (first, other):
        admit(kv, each)
    kv.offload(first, 2, 0.0, is_whole=False)
    kv.offload(other, 2, 10.0, is_whole=False)
    kv.offload(first, 3, 20.0, is_whole=False)
    assert kv.host is not None
    assert kv.host.num_found(first.block_keys, 2, 3, 21.0) == 1
    assert kv.host.num_found(first.block_keys, 0, 3, 21.0) == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_request_that_is_offloaded_whole_has_used_all_its_blocks(is_whole: bool) -> None:
    """In chunks only the new ones count as used: then its older ones make room before another's."""
    kv = cache(host_memory=HostMemory(4, load_s=1.0, store_s=1.0))
    first, other, last = (request(n, tuple(range(at, at + 13))) for n, at in (("a", 0), ("b", 50), ("c", 80)))
    for each in (first, other, last):
        admit(kv, each)
    kv.offload(first, 2, 0.0, is_whole=False)
    kv.offload(other, 1, 10.0, is_whole=False)
    kv.offload(first, 3, 20.0, is_whole=is_whole)
    kv.offload(last, 1, 30.0, is_whole=False)
    assert kv.host is not None
    assert kv.host.num_found(first.block_keys, 1, 2, 40.0) == is_whole
    assert kv.host.num_found(other.block_keys, 0, 1, 40.0) == (not is_whole)
