"""The engine on a GPU, beside what its memory and its multipliers allow, and beside transformers.

Random weights in bf16: decode steps of 1, 32 and 256 requests with contexts of 1,024 tokens, two steps
under way as they are served, and prefill. The bandwidth of a large copy and the rate of a large product are
measured in the same run, and transformers' continuous batching computes the same requests. Steps are driven
by the scheduler itself, without HTTP. Every part that ends is written to the JSON at once.

    python -m tests.bench gpu [--most-seconds 400] [--device cpu --tiny] [--out FILE]

Without a GPU it says so, unless `--device cpu` is given: `--tiny` makes that a matter of seconds.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
MOST_LIBRARY_S = 100
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
    num_blocks: int | None = None


FULL = Plan(("qwen3-0.6b", "qwen3-8b"), (1, 32, 256), 1024, 64, 64, 8192)
TINY = Plan(("llama-4m",), (1, 3), 32, 6, 4, 64, 64)


def shapes() -> dict[str, dict[str, Any]]:
    from tests.bench.engine_models import SHAPES

    return SHAPES | {"qwen3-8b": SHAPES["qwen3-0.6b"] | QWEN3_8B}


def make_model(name: str, folder: str, device: str) -> None:
    """Random weights in bf16, made on the device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**shapes()[name])
    config.eos_token_id = None
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def prompts(plan: Plan, number: int, vocab_size: int) -> list[list[int]]:
    """Prompts that have no beginning in common."""
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.integers(3, vocab_size, (number, plan.num_context)).tolist()


class Bench:
    """One model's engine under the scheduler, and what each of its steps took."""

    def __init__(self, folder: str, device: str, plan: Plan) -> None:
        from runtime.opening import Opening

        self.plan = plan
        self.limits: dict[str, Any] = {
            "max_model_len": plan.num_context + plan.num_decoded + 16,
            "max_num_batched_tokens": plan.max_num_batched_tokens,
            "max_num_seqs": max(plan.batches),
            "block_size": 16,
        }
        begin_s = time.perf_counter()
        opening = Opening(folder, device=device, num_gpu_blocks=plan.num_blocks, **self.limits)
        self.engine, self.model, self.num_blocks = opening.open()
        self.load_s = time.perf_counter() - begin_s

    def steps(self, asked: list[list[int]], num_tokens: int) -> Iterator[tuple[int, int, float]]:
        """Of every step its decodes, its other tokens, and the time since the last one ended."""
        from actors.core.config import SchedulerConfig
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


@dataclass(frozen=True)
class Limits:
    """What the device did in this run."""

    bytes_per_s: float
    flops_per_s: float


def measure(name: str, folder: str, device: str, plan: Plan, limits: Limits) -> Iterator[dict[str, Any]]:
    """The rows of a model, each as soon as it is there."""
    from tests.bench.engine_models import Shape

    shape, vocab_size = Shape.made(shapes()[name]), shapes()[name]["vocab_size"]
    bench = Bench(folder, device, plan)
    recorded = bench.model._graphs is not None
    yield {
        "model": name,
        "part": "load",
        "seconds": bench.load_s,
        "blocks": bench.num_blocks,
        "graphs": recorded,
    }
    prefill(bench, vocab_size)  # kernels are compiled
    rate = prefill(bench, vocab_size)
    # Two operations for each weight of two bytes; the head is asked for few rows, and attention is left out.
    head_bytes = 2 * vocab_size * shapes()[name]["hidden_size"]
    peak = rate * (shape.weight_bytes - head_bytes) / limits.flops_per_s
    yield {"model": name, "part": "prefill", "tokens_per_s": rate, "share_of_peak": peak}
    for batch in plan.batches:
        decode(bench, batch, vocab_size)
        step_s = decode(bench, batch, vocab_size)
        least_s = shape.step_s(batch, plan.num_context + plan.num_decoded / 2, limits.bytes_per_s)
        yield {
            "model": name,
            "part": "decode",
            "batch": batch,
            "step_ms": 1e3 * step_s,
            "tokens_per_s": batch / step_s,
            "share_of_bandwidth": least_s / step_s,
        }


def library(name: str, folder: str, device: str, plan: Plan) -> Iterator[dict[str, Any]]:
    """transformers' continuous batching: the same requests, decoding told apart by asking for one token."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    vocab_size = shapes()[name]["vocab_size"]
    for batch in plan.batches:
        asked = prompts(plan, batch, vocab_size)
        taken = {}
        for num_tokens in (plan.num_decoded, 1, plan.num_decoded):  # the first warms up
            config = GenerationConfig(
                max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
            )
            begin_s = time.perf_counter()
            out = model.generate_batch(asked, generation_config=config, progress_bar=False)
            taken[num_tokens] = time.perf_counter() - begin_s
            assert len(out) == batch, "requests are missing"
        step_s = (taken[plan.num_decoded] - taken[1]) / (plan.num_decoded - 1)
        yield {
            "model": name,
            "part": "transformers",
            "batch": batch,
            "step_ms": 1e3 * step_s,
            "tokens_per_s": batch / step_s,
            "all_s": taken[plan.num_decoded],
        }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of four million weights, a few steps")
    parser.add_argument("--most-seconds", type=float, default=400.0)
    parser.add_argument("--no-library", action="store_true", help="without transformers' continuous batching")
    parser.add_argument("--out", type=Path, help="the JSON; default: by the device's name, in results/")
    parser.add_argument("--part", nargs=3, metavar=("KIND", "MODEL", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--limits", type=float, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def part(args: argparse.Namespace, plan: Plan) -> None:
    """A part in a process of its own, which prints its rows: what fails or hangs takes no other along."""
    kind, name, folder = args.part
    if kind == "make":
        return make_model(name, folder, args.device)
    if kind == "engine":
        rows = measure(name, folder, args.device, plan, Limits(*args.limits))
    else:
        rows = library(name, folder, args.device, plan)
    for row in rows:
        print("ROW " + json.dumps(row), flush=True)


class Record:
    """The JSON, written anew with every row."""

    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        self.file, self.rows = file, list[dict[str, Any]]()
        self.facts = facts

    def add(self, row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        self.rows.append(row)
        self._compare()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.facts | {"rows": self.rows}, indent=1) + "\n", encoding="utf-8")

    def _compare(self) -> None:
        """How many times as fast as transformers, once both are there."""
        theirs = {
            (r["model"], r["batch"]): r for r in self.rows if r["part"] == "transformers" and "step_ms" in r
        }
        for row in self.rows:
            other = theirs.get((row["model"], row.get("batch")))
            if row["part"] == "decode" and other is not None:
                row["times_transformers"] = row["tokens_per_s"] / other["tokens_per_s"]


def run_part(
    record: Record, args: argparse.Namespace, kind: str, name: str, folder: str, most_s: float
) -> None:
    """A part within the time that is left; what goes wrong is a row, too."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.bench_gpu",
        "--device",
        args.device,
        "--part",
        kind,
        name,
        folder,
    ]
    command += ["--tiny"] * args.tiny + [
        "--limits",
        *(str(record.facts[key]) for key in asdict(Limits(0, 0))),
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    wrong = f"it took more than {most_s:.0f} s"
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=env)
        try:
            out, _ = child.communicate(timeout=max(most_s, 1.0))
            wrong = "" if child.returncode == 0 else f"it ended with status {child.returncode}"
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
        for line in out.splitlines():
            if line.startswith("ROW "):
                record.add(json.loads(line[4:]))
        if wrong:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or [""]
            record.add({"model": name, "part": kind, "error": f"{wrong}: {last[0][:300]}"})


def main() -> int:
    args = arguments()
    plan = TINY if args.tiny else FULL
    if args.part:
        part(args, plan)
        return 0
    import torch

    from tests.bench.gpu_device import bytes_per_s, described, flops_per_s, is_cuda

    if is_cuda(args.device) and not torch.cuda.is_available():
        print("no GPU: `make gpu` runs this on a machine that has one")
        return 0
    begin_s = time.monotonic()
    limits = Limits(bytes_per_s(args.device), flops_per_s(args.device))
    facts = described(args.device) | asdict(limits) | {"context": plan.num_context, "dtype": "bfloat16"}
    name = re.sub(r"[^a-z0-9]+", "-", str(facts["device"]).lower()).strip("-")
    record = Record(args.out or RESULTS / f"gpu-{name}.json", facts)
    for model in plan.models:
        with tempfile.TemporaryDirectory(prefix="sundog-bench-", dir=roomy()) as folder:
            for kind in ("make", "engine", *(() if args.no_library or "8b" in model else ("library",))):
                left_s = args.most_seconds - (time.monotonic() - begin_s)
                most_s = min(left_s, MOST_LIBRARY_S) if kind == "library" else left_s
                run_part(record, args, kind, model, folder, most_s)
    print(f"written to {record.file}")
    return int(any("error" in row for row in record.rows))


def roomy() -> str | None:
    """Memory, if it holds the larger model twice."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    has = os.statvfs(shared)
    return str(shared) if has.f_bavail * has.f_frsize > 40 << 30 else None


if __name__ == "__main__":
    sys.exit(main())
