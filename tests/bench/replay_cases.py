"""Replays by which the simulator is judged: counted, and timed beside Dynamo's mocker."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from sundog.sim.trace.read import read_trace
from tests.bench.runs import TRACES, generated, long_prompts, poisson


@dataclass(frozen=True, slots=True)
class Engine:
    """A model on a GPU, and the limits that both simulators are given."""

    model: str
    gpu: str
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    def options(self) -> list[str]:
        return (
            f"--model {self.model} --gpu {self.gpu} --num-gpu-blocks {self.num_blocks}"
            f" --max-num-seqs {self.max_num_seqs} --max-num-batched-tokens {self.max_num_batched_tokens}"
            f" --max-model-len {self.max_model_len} --no-async-scheduling --no-ranges"
        ).split()

    def dynamo(self) -> dict[str, Any]:
        return {
            "block_size": 16,
            "num_gpu_blocks": self.num_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """A trace on a fleet; `num_counted` of its requests are enough to count calls."""

    make: Callable[[Path], Path]
    engine: Engine
    num_counted: int
    replicas: int = 1
    num_each_pool: int = 0
    """Engines that prefill, and as many that decode; 0 for engines that do both."""
    aim: float | None = None
    """The CPU time that is aimed at, as a part of Dynamo's."""
    recorded: str | None = None
    """The file of `../shared/traces` that is timed in place of what `make` generates, where it lies there."""
    most: int | None = None
    """The first requests of the trace that are timed; None for all."""

    def options(self) -> list[str]:
        """The options of `sundog replay`."""
        fleet = ["--replicas", str(self.replicas), "--router", "round-robin"] if self.replicas > 1 else []
        if self.num_each_pool:
            pool = f"{self.engine.gpu}:x{self.num_each_pool}"
            fleet = ["--pool", f"prefill={pool}", "--pool", f"decode={pool}"]
        options = self.engine.options()
        if self.num_each_pool:
            del options[2:4]  # pools name the GPU
        return [*options, *fleet, "--json"]

    def dynamo(self) -> dict[str, Any]:
        """The arguments of Dynamo's `run_mocker_trace_replay`."""
        engine = self.engine.dynamo()
        if not self.num_each_pool:
            return {"extra_engine_args": {"engine": engine}, "num_workers": self.replicas}
        return {
            "prefill_engine_args": {"engine": engine | {"worker_type": "prefill"}},
            "decode_engine_args": {"engine": engine | {"worker_type": "decode"}},
            "num_prefill_workers": self.num_each_pool,
            "num_decode_workers": self.num_each_pool,
        }

    def timed(self, folder: Path) -> Path:
        """The trace to time: the recorded one where it lies beside the project."""
        path = TRACES / self.recorded if self.recorded else None
        return path if path is not None and path.exists() else self.make(folder)


def long_answers(folder: Path, count: int = 6_000) -> Path:
    """Poisson arrivals at 5/s with 500 to 8,000 tokens of output."""
    return generated(folder / "long_answers_r5.csv", 5.0, count, (500, 8001))


A100 = Engine("llama-2-7b", "a100", 7_000, 128, 2_048, 4_096)
H100 = Engine("llama-3.1-8b", "h100", 28_566, 256, 8_192, 131_072)
MANY_SEQS = Engine("llama-3.1-8b", "h100", 28_566, 1_024, 8_192, 131_072)
SERVEGEN, MOONCAKE = "servegen_deepseek-r1_5rps_20min.csv.gz", "mooncake_conversation_trace.jsonl.gz"
CASES = {
    "poisson": ReplayCase(partial(poisson, 8), A100, 1_000, aim=0.8),
    "replicas": ReplayCase(partial(poisson, 32), A100, 1_000, replicas=4, aim=0.8),
    "many-requests": ReplayCase(partial(poisson, 32, count=100_000), H100, 1_000, aim=0.5),
    "long-answers": ReplayCase(long_answers, MANY_SEQS, 200, replicas=8, aim=0.2, recorded=SERVEGEN),
    "long-prompts": ReplayCase(
        partial(long_prompts, count=4_000), H100, 300, replicas=4, aim=0.85, recorded=MOONCAKE, most=4_000
    ),
    "pools": ReplayCase(partial(poisson, 32), H100, 500, num_each_pool=2, aim=1.0),
}
"""The six cases whose calls are counted."""
TIMED = CASES | {
    "many-requests-8": ReplayCase(partial(poisson, 8, count=100_000), H100, 1_000, aim=0.5),
    "one-request": ReplayCase(partial(poisson, 8, count=1), A100, 1),
}
"""Those that are timed beside Dynamo: two more."""


def mooncake(trace: Path, path: Path, most: int | None = None) -> Path:
    """Write a trace in Mooncake's form, which Dynamo reads; prompts without contents share nothing."""
    num_ids = 0
    with path.open("w") as file:
        for row in islice(read_trace(str(trace)), most):
            ids = row.hash_ids
            if ids is None:
                ids = tuple(range(num_ids, num_ids + -(-row.num_prompt_tokens // 512)))
                num_ids += len(ids)
            else:
                assert row.hash_block_tokens == 512
            line = {
                "timestamp": row.arrival_s * 1000,
                "input_length": row.num_prompt_tokens,
                "output_length": row.num_output_tokens,
                "hash_ids": ids,
            }
            file.write(json.dumps(line) + "\n")
    return path
