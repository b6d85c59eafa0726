"""Random traces in the golden format, with tight limits; each seed always gives the same trace.

Pools barely hold one request of the full length, so that preemption is common; prompts share prefixes over a
tiny vocabulary, so that prefix hits are too; a few pools cannot hold their requests at all, so that runs
stall.
"""

import os
import random
from collections.abc import Sequence
from typing import Any

Trace = dict[str, Any]

EOS = 2


def num_cases(default: int) -> int:
    """How many random cases to run: `SUNDOG_FUZZ` multiplies the default."""
    return max(1, int(default * float(os.environ.get("SUNDOG_FUZZ", "1"))))


def batches(total: int, size: int) -> list[range]:
    """The seeds 0 to `total`, in ranges that make one test each."""
    return [range(start, min(start + size, total)) for start in range(0, total, size)]


def random_trace(seed: int, *, resets: bool = True, stalls: bool = True) -> Trace:
    """The trace of this seed."""
    rng = random.Random(seed)
    config = _config(rng, stalls)
    requests = _requests(rng, config)
    events = _events(rng, requests, resets)
    return {"name": f"seed-{seed}", "config": config, "requests": requests, "events": events}


def hard_trace(seed: int) -> Trace:
    """A longer trace of this seed, with many more requests and events, in a pool for a request or two."""
    rng = random.Random(f"hard {seed}")
    config = _config(rng, stalls=False)
    context, size = rng.choice([64, 96, 129, 200, 320]), rng.choice([1, 2, 4, 8, 16])
    full = -(-context // size)
    config["max_model_len"], config["block_size"] = context, size
    config["num_gpu_blocks"] = full + 1 + rng.choice([0, 1, 2, full // 4, full // 2, full])
    config["max_num_seqs"] = rng.choice([3, 8, 16, 32])
    config["max_num_batched_tokens"] = rng.choice([4, 9, 16, 48, 128, 500])
    if not config["enable_chunked_prefill"]:
        config["max_num_batched_tokens"] = context + rng.choice([0, 1, 100])
    requests = _requests(rng, config, [20, 30, 45])
    events = _events(rng, requests, True, [0, 4, 12, 25])
    return {"name": f"hard-{seed}", "config": config, "requests": requests, "events": events}


def _config(rng: random.Random, stalls: bool) -> Trace:
    block_size = rng.choice([1, 2, 4, 4, 16])
    max_model_len = rng.choice([8, 16, 17, 24, 31, 48, 64, 96])
    full = -(-max_model_len // block_size)
    spare = rng.choice([0, 0, 0, 1, 1, 2, full // 3, full])
    num_gpu_blocks = full + 1 + spare
    reserve = rng.random() < 0.7
    if stalls and reserve and rng.random() < 0.05:
        num_gpu_blocks = max(2, full - rng.randint(0, 3))
    chunked = rng.random() < 0.8
    budget = rng.choice([1, 2, 3, 5, 8, 16, 32, 64])
    return {
        "max_num_seqs": rng.choice([1, 2, 4, 6, 8, 12, 12]),
        "max_num_batched_tokens": budget if chunked else max_model_len + rng.choice([0, 1, 16]),
        "num_gpu_blocks": num_gpu_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "enable_prefix_caching": rng.random() < 0.75,
        "enable_chunked_prefill": chunked,
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "long_prefill_token_threshold": rng.choice([0, 0, 0, 1, 3, 8]),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.2,
        "async_scheduling": rng.random() < 0.45,
        "scheduler_reserve_full_isl": reserve,
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.05, 0.2]),
        "max_num_active_seqs": rng.choice([None, None, None, 1, 3, 5]),
        "hash_algo": "sha256_cbor",
        "eos_token_id": EOS,
    }


def _requests(rng: random.Random, config: Trace, counts: Sequence[int] = (1, 2, 4, 6, 9, 14)) -> list[Trace]:
    limit = config["max_model_len"]
    vocabulary = range(3, rng.choice([5, 8, 40]))
    stems = [rng.choices(vocabulary, k=limit) for _ in range(rng.choice([1, 2, 4]))]
    eos_rate = rng.choice([0.0, 0.0, 0.05, 0.2])
    gap = rng.choice([0, 0, 1, 3, 10])
    # Two equally urgent prompts that only fit one at a time would preempt each other for ever.
    untied = 0.0 if config["scheduler_reserve_full_isl"] else 1 / 64
    step, rows = 0, []
    for index in range(rng.choice(counts)):
        step += rng.randint(0, gap)
        half, any_length = rng.randint(1, limit // 2), rng.randint(1, limit - 1)
        length = rng.choice([1, half, half, half, any_length, limit - 1])
        shared = rng.randint(0, length) if rng.random() < 0.7 else 0
        prompt = rng.choice(stems)[:shared] + rng.choices(vocabulary, k=length - shared)
        max_tokens = rng.choice([1, half, any_length, any_length, limit - length, limit])
        outputs = [
            EOS if rng.random() < eos_rate else rng.choice(vocabulary)
            for _ in range(rng.choice([max_tokens, rng.randint(0, max_tokens)]))
        ]
        rows.append(
            {
                "id": f"r{index}" if rng.random() < 0.8 else f"q{index}",
                "arrival_step": step,
                "arrival_time": float(rng.choice([step, step // 4, 0])) + index * untied,
                "prompt": prompt,
                "outputs": outputs,
                "max_tokens": max_tokens,
                "min_tokens": rng.choice([0, 0, 0, 2, 5]),
                "priority": rng.choice([0, 0, 1, 2]),
                "ignore_eos": rng.random() < 0.4,
                "stop_token_ids": rng.choice([[], [], [], [4], [3, 7]]),
                "cache_salt": rng.choice([None, None, None, "tenant-a", "tenant-b"]),
            }
        )
    return rows


def _events(
    rng: random.Random, requests: list[Trace], resets: bool, counts: Sequence[int] = (0, 0, 1, 3, 6)
) -> list[Trace]:
    last = requests[-1]["arrival_step"] + rng.choice([5, 30])
    events: list[Trace] = []
    for _ in range(rng.choice(counts)):
        ids = [row["id"] for row in rng.sample(requests, min(len(requests), rng.choice([1, 1, 3])))]
        events.append(
            {
                "step": rng.randint(0, last),
                "when": rng.choice(["input", "executing"]),
                "op": "abort",
                "ids": [*ids, "nobody"][: rng.choice([1, 4])],
            }
        )
    for _ in range(rng.choice([0, 0, 0, 1, 3]) if resets else 0):
        events.append(
            {
                "step": rng.randint(0, last),
                "when": "input",
                "op": "reset_prefix_cache",
                "reset_running": rng.random() < 0.5,
            }
        )
    return events


def countable(trace: Trace) -> Trace:
    """The trace with outputs that nobody shares and no stop tokens: then lengths say it all."""
    requests = []
    for index, row in enumerate(trace["requests"]):
        outputs = [
            token if token == EOS and not row["ignore_eos"] else 1000 + 100 * index + position % 100
            for position, token in enumerate(row["outputs"])
        ]
        outputs += [1000 + 100 * index] * (row["max_tokens"] - len(outputs))
        requests.append(row | {"outputs": outputs, "stop_token_ids": []})
    return trace | {"requests": requests}
