"""Cost of choosing 32 tokens from 151,936, by sampling parameters.

Random float32 logits, prompts of 1,000 tokens, one thread: milliseconds of processor time, the best of eight
turns that alternate, and their ratio to plain greedy requests.
"""

import time
from collections.abc import Callable

NUM_ROWS, VOCAB_SIZE, NUM_PROMPT = 32, 151_936, 1000
NUM_TURNS, NUM_STEPS = 8, 4


def chooser(fields: dict[str, object]) -> Callable[[], object]:
    """One step of 32 requests that all ask for this, and its notes of what was said."""
    import numpy as np
    import torch

    from sundog.actors.core.params.sampling import Sampling
    from sundog.runtime.sampling.rows import SamplingRows
    from sundog.runtime.sampling.sampler import sample

    torch.set_num_threads(1)
    logits_RV = torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2
    rng, rows = np.random.default_rng(0), SamplingRows(0, (5,), NUM_ROWS)
    for row in range(NUM_ROWS):
        prompt = rng.integers(0, VOCAB_SIZE, NUM_PROMPT).tolist()
        rows.set(row, f"r{row}", NUM_PROMPT, Sampling(**fields), prompt)  # type: ignore[arg-type]
    every, position_R = np.arange(NUM_ROWS), np.full(NUM_ROWS, NUM_PROMPT)

    @torch.inference_mode()
    def step() -> None:
        sampled = sample(logits_RV, rows.take(every, position_R))
        rows.advance(every.tolist(), sampled.tokens)

    return step


def kinds() -> dict[str, dict[str, object]]:
    greedy: dict[str, object] = {"temperature": 0.0}
    return {
        "greedy": greedy,
        "greedy, 50 bad words": greedy | {"bad_words_token_ids": tuple((i, i + 1) for i in range(50))},
        "greedy, min_tokens": greedy | {"min_tokens": 10**6},
        "greedy, logit_bias of 300": greedy | {"logit_bias": tuple((7 * i, 1.0) for i in range(300))},
        "greedy, 100 allowed tokens": greedy | {"allowed_token_ids": tuple(range(100))},
        "greedy, presence_penalty": greedy | {"presence_penalty": 1.0},
        "greedy, repetition_penalty": greedy | {"repetition_penalty": 1.2},
        "greedy, logprobs of 5": greedy | {"logprobs": 5},
        "drawn": {},
        "drawn, min_p": {"min_p": 0.05},
        "drawn, flat top_p": {"temperature": 30.0, "top_p": 0.9},
        "drawn, all penalties": {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
        },
    }


def main() -> None:
    steps = {name: chooser(fields) for name, fields in kinds().items()}
    best_ms = dict.fromkeys(steps, float("inf"))
    for _ in range(NUM_TURNS):
        for name, step in steps.items():
            begin_s = time.process_time()
            for _ in range(NUM_STEPS):
                step()
            best_ms[name] = min(best_ms[name], 1e3 * (time.process_time() - begin_s) / NUM_STEPS)
    for name, step_ms in best_ms.items():
        print(f"{name:28} {step_ms:6.1f} ms  {step_ms / best_ms['greedy']:4.1f} x")
