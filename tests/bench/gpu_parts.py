"""Parts of the GPU benchmark, each in a process of its own: `python -m tests.bench gpu` runs them.

A part yields rows, each as soon as it is there. What cannot be measured is a row with its reason, and the
part goes on with the next.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Plan:
    """What is measured of each model."""

    models: tuple[str, ...]
    batches: tuple[int, ...]
    num_context: int
    num_decoded: int
    num_prompts: int
    max_num_batched_tokens: int
    most_of_library: int
    """The most requests at once of transformers: its 256 did not end in a minute on an H200."""
    num_blocks: int | None = None


FULL = Plan(("qwen3-0.6b", "qwen3-8b"), (1, 32, 256), 1024, 64, 64, 8192, 32)
TINY = Plan(("llama-4m",), (1, 3), 32, 6, 4, 64, 3, 64)


@dataclass(frozen=True)
class Limits:
    """What the device did in this run; 0 where that is not known."""

    bytes_per_s: float
    flops_per_s: float


def shapes() -> dict[str, dict[str, Any]]:
    from tests.bench.engine_models import SHAPES

    return SHAPES | {"qwen3-8b": SHAPES["qwen3-0.6b"] | QWEN3_8B}


def guarded(row: Row, measure: Callable[[], Row]) -> Row:
    """The row with what was measured, or with what went wrong."""
    try:
        return row | measure()
    except Exception as error:  # whatever a driver, a compiler or a library raises
        return row | {"error": f"{type(error).__name__}: {error}"[:600]}


def device(device: str) -> Iterator[Row]:
    """The device's name, and how fast it copies and multiplies."""
    from tests.bench.gpu_device import bytes_per_s, described, flops_per_s

    yield guarded({"part": "device"}, lambda: described(device))
    yield guarded({"part": "device"}, lambda: {"bytes_per_s": bytes_per_s(device)})
    yield guarded({"part": "device"}, lambda: {"flops_per_s": flops_per_s(device)})


def make_model(name: str, folder: str, device: str) -> Iterator[Row]:
    """Random weights in bf16, made on the device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    begin_s = time.perf_counter()
    torch.manual_seed(0)
    config = AutoConfig.for_model(**shapes()[name])
    config.eos_token_id = None
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    made_s = time.perf_counter() - begin_s
    model.save_pretrained(folder)
    saved_s = time.perf_counter() - begin_s - made_s
    yield {"model": name, "part": "make", "made_s": made_s, "saved_s": saved_s}


def prompts(plan: Plan, number: int, vocab_size: int) -> list[list[int]]:
    """Prompts that have no beginning in common."""
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.integers(3, vocab_size, (number, plan.num_context)).tolist()


class Bench:
    """One model's engine under the scheduler, and what each of its steps took."""

    def __init__(self, folder: str, device: str, plan: Plan) -> None:
        from sundog.runtime.engine.model_loader import ModelLoader

        self.plan = plan
        self.limits: dict[str, Any] = {
            "max_model_len": plan.num_context + plan.num_decoded + 16,
            "max_num_batched_tokens": plan.max_num_batched_tokens,
            "max_num_seqs": max(plan.batches),
            "block_size": 16,
        }
        begin_s = time.perf_counter()
        opening = ModelLoader(folder, device=device, num_gpu_blocks=plan.num_blocks, **self.limits)
        self.engine, self.model, self.num_blocks = opening.open()
        self.load_s = time.perf_counter() - begin_s

    def steps(self, asked: list[list[int]], num_tokens: int) -> Iterator[tuple[int, int, float]]:
        """Of every step its decodes, its other tokens, and the time since the last one ended."""
        from sundog.actors.core.config import SchedulerConfig
        from tests.runtime.scheduled import GREEDY, Asked, Timed, answers

        config = SchedulerConfig(
            num_gpu_blocks=self.num_blocks,
            enable_prefix_caching=False,
            async_scheduling=self.engine.is_ahead,
            **self.limits,
        )
        timed = Timed(self.engine)
        requests = {str(number): Asked(prompt, num_tokens, GREEDY) for number, prompt in enumerate(asked)}
        answers(timed, requests, config)
        for before, after in zip(timed.ended, timed.ended[1:], strict=False):
            batch = after.batch
            yield batch.num_decodes, batch.num_tokens - batch.num_decodes, after.end_s - before.end_s


def decode(bench: Bench, batch: int, vocab_size: int) -> float:
    """Median seconds of a step in which all requests decode and none does anything else."""
    asked = prompts(bench.plan, batch, vocab_size)
    taken = [
        s
        for decodes, others, s in bench.steps(asked, bench.plan.num_decoded)
        if decodes == batch and not others
    ]
    return statistics.median(taken)


def prefill(bench: Bench, vocab_size: int) -> float:
    """Prompt tokens a second, in steps that are full of them."""
    full = bench.plan.max_num_batched_tokens
    asked = prompts(bench.plan, bench.plan.num_prompts, vocab_size)
    taken = [s for _, others, s in bench.steps(asked, 1) if others == full]
    return full / statistics.median(taken)


def engine(name: str, folder: str, device: str, plan: Plan, limits: Limits) -> Iterator[Row]:
    """Our engine: loading, prefill, and decodes of each batch, the second time that they are computed."""
    from tests.bench.engine_models import Shape

    shape, vocab_size = Shape.made(shapes()[name]), shapes()[name]["vocab_size"]
    head_bytes = 2 * vocab_size * shapes()[name]["hidden_size"]
    bench = Bench(folder, device, plan)
    means = bench.model._attention
    yield {
        "model": name,
        "part": "load",
        "seconds": bench.load_s,
        "blocks": bench.num_blocks,
        "graphs": bench.model._graphs is not None,
        "kernel": means.decode is not None,
        "varlen_attn": means.has_varlen,
    }

    def of_prompts() -> Row:
        prefill(bench, vocab_size)
        rate = prefill(bench, vocab_size)
        # Two operations for each weight of two bytes; the head is asked for few rows, attention is left out.
        peak = {"share_of_peak": rate * (shape.weight_bytes - head_bytes) / limits.flops_per_s}
        return {"tokens_per_s": rate} | (peak if limits.flops_per_s else {})

    def of_decodes(batch: int) -> Row:
        decode(bench, batch, vocab_size)
        step_s = decode(bench, batch, vocab_size)
        row = {"step_ms": 1e3 * step_s, "tokens_per_s": batch / step_s}
        if limits.bytes_per_s:
            least_s = shape.step_s(batch, plan.num_context + plan.num_decoded / 2, limits.bytes_per_s)
            row["share_of_bandwidth"] = least_s / step_s
        return row

    for batch in plan.batches:
        row = {"model": name, "part": "decode", "batch": batch}
        yield guarded(row, lambda batch=batch: of_decodes(batch))  # type: ignore[misc]
    yield guarded({"model": name, "part": "prefill"}, of_prompts)


def library(name: str, folder: str, device: str, plan: Plan) -> Iterator[Row]:
    """transformers' continuous batching of the same requests: the steps in which all of them decode."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    vocab_size = shapes()[name]["vocab_size"]

    def of_decodes(batch: int) -> Row:
        asked = prompts(plan, batch, vocab_size)
        step_s, all_s = 0.0, 0.0
        for _ in range(2):  # the first warms up
            begin_s = time.perf_counter()
            times_s = _token_times(model, asked, plan, device)
            all_s = time.perf_counter() - begin_s
            step_s = _step_s(times_s)
        return {"step_ms": 1e3 * step_s, "tokens_per_s": batch / step_s, "all_s": all_s}

    for batch in (batch for batch in plan.batches if batch <= plan.most_of_library):
        row = {"model": name, "part": "transformers", "batch": batch}
        yield guarded(row, lambda batch=batch: of_decodes(batch))  # type: ignore[misc]


def _token_times(model: Any, asked: list[list[int]], plan: Plan, device: str) -> list[list[float]]:
    """When each token of each request came."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    config = GenerationConfig(
        max_new_tokens=plan.num_decoded, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    more = {}
    if device == "cpu":  # or it would take most of the memory that the machine has
        more["continuous_batching_config"] = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=256)
    out = model.generate_batch(asked, generation_config=config, record_timestamps=True, **more)
    assert len(out) == len(asked), "requests are missing"
    for each in out.values():
        assert each.error is None, each.error
        assert len(each.generated_tokens) == plan.num_decoded, "tokens are missing"
    return [list(each.timestamps) for each in out.values()]


def _step_s(times_s: list[list[float]]) -> float:
    """Seconds of a step, from the last request's first token to the first one's last."""
    begin_s, end_s = max(times[0] for times in times_s), min(times[-1] for times in times_s)
    steps = [time for time in times_s[0] if begin_s <= time <= end_s]
    assert len(steps) > 1, "the requests never decode together"
    return (steps[-1] - steps[0]) / (len(steps) - 1)


def roomy() -> str | None:
    """Memory, if it holds the larger model twice."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    has = os.statvfs(shared)
    return str(shared) if has.f_bavail * has.f_frsize > 40 << 30 else None
