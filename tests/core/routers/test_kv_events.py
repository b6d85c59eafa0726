"""KV events: applying them reproduces the prefix cache's contents."""

import random

from sundog.actors.core.blocks.kv_events import KvChanges
from sundog.actors.core.blocks.runs import OwnKey
from sundog.actors.core.routers.prefix_index import StoredBlocks
from tests.core.policies.world import World
from tests.core.routers.test_prefix_index import prompt
from tests.core.traces import num_cases


def test_folded_events_are_the_prefix_cache_and_bisection_finds_its_hits() -> None:
    """Under preemption and reuse: whoever has a block has all before it."""
    for seed in range(num_cases(20)):
        rng, index = random.Random(seed), StoredBlocks()
        world = World("fcfs", {"num_gpu_blocks": rng.choice([14, 20, 40]), "max_num_seqs": 6})
        pool, prompts = world.state.kv.pool, []
        pool.changes = KvChanges()
        for number in range(60):
            keys = prompt(rng)
            prompts.append(keys)
            num_tokens = 4 * len(keys) + rng.randrange(1, 4)
            world.add(f"r{number}", num_tokens, rng.randrange(1, 6), block_hashes=keys)
            for _ in range(rng.randrange(3)):
                world.step()
            if (events := pool.changes.take()) is not None:
                index.changed(events.stored, events.removed)
            found = [key for copies in pool._copies.values() for key in copies[0].keys]
            assert set(index._stored) == {key for key in found if not isinstance(key, OwnKey)}
            for keys in prompts:
                assert index.num_hit_blocks(keys) == len(pool.find(list(keys), len(keys)))
        world.run().state.reset_prefix_cache()
        events = pool.changes.take()
        assert events is not None and not events.stored and not pool._copies
