"""Decode step as one compiled call against layer by layer in torch, for mixtures of experts.

Random bf16 weights, one thread, contexts of some twenty tokens: milliseconds of processor time a step, the
best of turns that alternate, so that another load on the machine meets both.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 2,
        "moe_intermediate_size": 256,
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
    }
}
"""DeepSeek-V2-Lite with 0.2 G of its 16 G parameters: its widths of heads and latents, fewer of all else."""
ROWS = (1, 8, 32)
BLOCK_SIZE, PROMPT_TOKENS, NUM_TURNS = 16, 12, 12


def make(name: str, folder: Path) -> int:
    """Write a random model; returns the number of its parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(name, pad_token_id=0, **SHAPES[name])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return int(model.num_parameters())


async def measure(folder: Path, rows: int) -> tuple[float, float]:
    """Seconds of processor time of a step of so many requests, whole and layer by layer."""
    from sundog.runtime.engine.backend import TorchBackend
    from tests.runtime.driver import Driver
    from tests.runtime.models import random_prompt

    backend = TorchBackend(
        folder, dtype="bfloat16", num_gpu_blocks=200, block_size=BLOCK_SIZE, max_model_len=128, num_threads=1
    )
    await backend.load()
    assert backend._loaded is not None
    model = backend._loaded.model
    whole = model._decoder
    assert whole is not None, model.why_by_layers
    driver = Driver(backend, block_size=BLOCK_SIZE, budget=PROMPT_TOKENS * max(ROWS))
    for number in range(rows):
        driver.submit(str(number), random_prompt(number, PROMPT_TOKENS))
    best = {True: float("inf"), False: float("inf")}
    for turn in range(2 * NUM_TURNS):
        is_whole = turn % 2 == 0
        model._decoder = whole if is_whole else None
        begin_s = time.process_time()
        await driver.step()
        if turn > 2:  # behind the prompts, and what torch compiles for the first rows
            best[is_whole] = min(best[is_whole], time.process_time() - begin_s)
    return best[True], best[False]


def main() -> None:
    from sundog.sim.clock import run_virtual

    print(f"{'':<14}{'parameters':>11} {'rows':>5} {'one call':>10} {'by layers':>10}")
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            num_parameters = make(name, Path(folder))
            for rows in ROWS:
                whole_s, layers_s = run_virtual(lambda folder=folder, rows=rows: measure(Path(folder), rows))
                print(
                    f"{name:<14}{num_parameters / 1e6:>9.0f} M {rows:>5} {1e3 * whole_s:>7.1f} ms"
                    f" {1e3 * layers_s:>7.1f} ms  1 / {layers_s / whole_s:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
