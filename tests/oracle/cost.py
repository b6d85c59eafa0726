"""CPU time of a step of vLLM's scheduler, with and without exported policies; run by a Python that has vLLM.

    PYTHONPATH=FOLDER:SUNDOG python tests/oracle/cost.py MODEL_FOLDER MODULE...

256 requests decode and 64 wait, first for a running slot, then for blocks: only then is the head of the queue
looked at in each step. Steps are planned ahead. The least of twelve turns counts.
"""

import sys
import time
from collections import deque
from typing import Any

from recorder import new_scheduler
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

NUM_RUNNING, NUM_WAITING = 256, 64
NUM_STEPS, NUM_TURNS = 50, 12
CONFIG = {
    "max_num_seqs": NUM_RUNNING,
    "max_num_batched_tokens": 8192,
    "num_gpu_blocks": 20_001,
    "block_size": 16,
    "max_model_len": 4096,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "async_scheduling": True,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "max_num_active_seqs": None,
}


class Loop:
    """vLLM's loop without a model."""

    def __init__(self, folder: str, module: str | None) -> None:
        self.scheduler = new_scheduler(folder, CONFIG, module)
        hashes = get_hash_fn_by_name("sha256")
        init_none_hash(hashes)
        hasher = get_request_block_hasher(16, hashes)
        self._queue: deque[tuple[Any, Any]] = deque()
        for number in range(NUM_RUNNING + NUM_WAITING):
            sampling = SamplingParams(max_tokens=3000, ignore_eos=True)
            sampling.update_from_generation_config({}, 2)
            prompt = [(7 * number + place) % 500 + 3 for place in range(100)]
            self.scheduler.add_request(
                Request(f"r{number}", prompt, sampling, None, arrival_time=float(number), block_hasher=hasher)
            )

    def step(self) -> None:
        """Plan a step, and take the result of the one before it in."""
        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        tokens = [[] if self.scheduler.requests[name].is_prefill_chunk else [5] for name in names]
        index = {name: number for number, name in enumerate(names)}
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index=index,
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self._queue.append((output, result))
        if len(self._queue) == 2:
            self.scheduler.update_from_output(*self._queue.popleft())

    def let_blocks_lack(self) -> None:
        """Admit by free blocks from now on, of which there are too few."""
        self.scheduler.max_num_active_reqs = NUM_RUNNING + NUM_WAITING
        self.scheduler.kv_cache_manager.watermark_blocks = CONFIG["num_gpu_blocks"]

    def seconds(self) -> float:
        """CPU seconds of a step."""
        for _ in range(20):
            self.step()
        start_s = time.process_time()
        for _ in range(NUM_STEPS):
            self.step()
        assert len(self.scheduler.running) == NUM_RUNNING
        return (time.process_time() - start_s) / NUM_STEPS


def turn(folder: str, module: str | None) -> tuple[float, float]:
    """CPU seconds of a step while running slots lack, and while blocks do."""
    loop = Loop(folder, module)
    slots_lack_s = loop.seconds()
    loop.let_blocks_lack()
    return slots_lack_s, loop.seconds()


def main(folder: str, *modules: str) -> None:
    kinds = (None, *modules)
    turns = [[turn(folder, kind) for kind in kinds] for _ in range(NUM_TURNS)]
    least = [[min(case) for case in zip(*of_kind, strict=True)] for of_kind in zip(*turns, strict=True)]
    print(f"{'':20} running slots lack    blocks lack")
    for kind, found in zip(kinds, least, strict=True):
        cases = [
            f"{1000 * each:.3f} ms {each / own - 1:+6.1%}" for each, own in zip(found, least[0], strict=True)
        ]
        print(f"{kind or 'vLLM':20} {'      '.join(cases)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
