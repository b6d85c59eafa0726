"""Cost of one step of scheduling, plan and update together, in steady decode.

`counted` is the simulator's world (no tokens), `tokens` the engine's (every token appended and
checked), `plain` the same with every request touched in every step. vLLM's column is vLLM 0.32's
scheduler with tokens on a machine of this kind: figures to compare with, not measured here.
"""

import time

from sundog.actors.block_hash import block_hasher
from sundog.actors.core.batch import StepResult
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.policies import Fcfs
from sundog.actors.core.request import Submit
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update

VLLM_US = {1: 38, 8: 125, 64: 750, 256: 3130, 1024: 13250}
PROMPT_TOKENS = 32
NUM_STEPS = 400


def fill(num_running: int, *, tokens: bool, lockstep: bool) -> SchedulerState:
    """A scheduler in which `num_running` requests decode."""
    config = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=max(num_running * PROMPT_TOKENS, 2048),
        max_model_len=8192,
        num_gpu_blocks=num_running * 64 + 2,
    )
    kv = KVCache(config, block_hasher())
    state = SchedulerState(config, Fcfs(), kv, lockstep_enabled=lockstep)
    for number in range(num_running):
        prompt = tuple(range(number, number + PROMPT_TOKENS)) if tokens else None
        state.add(Submit(f"r{number}", 0.0, PROMPT_TOKENS, 4096, prompt))
    return state


def step(state: SchedulerState, names: list[str] | None) -> None:
    """One step; `names` are those that sample, where tokens are given."""
    batch, _ = plan(state)
    tokens = None if names is None else tuple((name, 7) for name in names)
    update(state, StepResult(batch.step, (0.0,), tokens))


def measure(num_running: int, *, tokens: bool, lockstep: bool) -> float:
    """Microseconds of processor time per step; the best of three rounds."""
    state = fill(num_running, tokens=tokens, lockstep=lockstep)
    names = list(state.requests) if tokens else None
    for _ in range(20):
        step(state, names)
    rounds = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(NUM_STEPS // 3):
            step(state, names)
        rounds.append((time.process_time() - start) / (NUM_STEPS // 3) * 1e6)
    return min(rounds)


def main() -> None:
    print("running   vLLM 0.32   counted              tokens              plain")
    for num_running, vllm_us in VLLM_US.items():
        counted = measure(num_running, tokens=False, lockstep=True)
        tokens = measure(num_running, tokens=True, lockstep=True)
        plain = measure(num_running, tokens=True, lockstep=False)
        print(
            f"{num_running:>8} {vllm_us:>7} us {counted:>6.1f} us {f'1/{vllm_us / counted:.0f}':>7}"
            f" {tokens:>6.1f} us {f'1/{vllm_us / tokens:.0f}':>7} {plain:>6.0f} us"
        )


if __name__ == "__main__":
    main()
