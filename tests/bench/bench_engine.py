"""The engine on this machine's CPU over HTTP, beside what its memory allows and transformers' `generate`.

Two models with random weights in bf16, 128 tokens in and 128 out: output tokens a second, time to the first
token and per token, and the share of the roofline (all weights and keys read once a step, at the bandwidth
measured in the same run); then long prompts, the time until ready, and resident memory. Times are medians.

    python -m tests.bench engine [--quick] [--model NAME] [--clients 1,8] [--no-generate] [--vllm PYTHON]

`--vllm` is the interpreter of another environment in which vLLM's CPU build is installed.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]  # ships no types

from tests.bench.engine_client import load
from tests.bench.engine_models import SHAPES, Shape, read_bytes_per_s

ROOT = Path(__file__).resolve().parents[2]
NUM_INPUT = NUM_OUTPUT = 128
CLIENTS = (1, 8, 32, 64)
FEW_BITS = ("int8", "int4")
LONG_PROMPTS = (2000, 8000)
MAX_MODEL_LEN = 8448
MOST_START_S = 300
GENERATE = """
import sys, time, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval()
num_new = int(sys.argv[2])
for batch in map(int, sys.argv[3].split(",")):
    ids = torch.randint(300, 1000, (batch, 128))
    args = dict(attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None, pad_token_id=0)
    with torch.inference_mode():
        begin_s = time.perf_counter()
        model.generate(ids, max_new_tokens=1, min_new_tokens=1, **args)
        first_s = time.perf_counter()
        model.generate(ids, max_new_tokens=num_new, min_new_tokens=num_new, **args)
        prefill_s, all_s = first_s - begin_s, time.perf_counter() - first_s
    # As if 128 tokens had been asked for.
    print(batch, batch * 128 / (prefill_s + (all_s - prefill_s) / (num_new - 1) * 127), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers; `ready_s` is what that took."""

    name: str
    port: int
    ready_s: float
    process: psutil.Process

    def resident_gb(self) -> float:
        """Of the process and its children."""
        family = [self.process, *self.process.children(recursive=True)]
        return float(sum(one.memory_info().rss for one in family)) / 1e9


@contextmanager
def serving(name: str, command: list[str], env: dict[str, str], port: int) -> Iterator[Server]:
    """Start a server, wait for it, end it and its children."""
    begin_s = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command, env=os.environ | env, cwd=ROOT, stdout=said, stderr=said, start_new_session=True
        )
        try:
            while True:
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                if child.poll() is not None or time.perf_counter() - begin_s > MOST_START_S:
                    said.seek(0)
                    raise RuntimeError(f"{name} did not start: {said.read()[-2000:].decode()}")
                time.sleep(0.02)
            yield Server(name, port, time.perf_counter() - begin_s, psutil.Process(child.pid))
        finally:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def ours(folder: Path) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "sundog", "serve", str(folder), "--served-model-name", "m"]
    return [*command, "--max-num-seqs", "64", "--max-model-len", str(MAX_MODEL_LEN)], {
        "PYTHONPATH": str(ROOT)
    }


def vllms(python: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """vLLM's CPU build with its own recommendations, as far as they are there."""
    home = Path(python).parent
    preloads = [
        *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
        *(home.parent / "lib").glob("libiomp5.so"),
    ]
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "LD_PRELOAD": ":".join(map(str, preloads)),
    }
    command = [str(home / "vllm"), "serve", str(folder), "--served-model-name", "m", "--host", "127.0.0.1"]
    return [*command, "--max-num-seqs", "64", "--max-model-len", str(MAX_MODEL_LEN)], env


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def measure(server: Server, shape: Shape, bytes_per_s: float, args: argparse.Namespace) -> None:
    """Print a server's rows."""
    at_start_gb = server.resident_gb()
    load(server.port, "m", 1, 1, NUM_INPUT, 16)
    for clients in args.clients:
        waves = 2 if clients <= 8 else 1
        found = load(server.port, "m", clients, clients * waves, NUM_INPUT, NUM_OUTPUT)
        least_s = shape.step_s(clients, NUM_INPUT + NUM_OUTPUT / 2, bytes_per_s)
        # A server may send half of its answers in one piece, of which no time between tokens is seen.
        share = f"{100 * least_s / found.tpot_s:>6.0f} %" if found.tpot_s else f"{'–':>8}"
        print(
            f"{server.name:<10} {clients:>7} {found.tokens_per_s:>10.1f} {1e3 * found.ttft_s:>9.0f} ms"
            f" {1e3 * found.tpot_s:>8.2f} ms {share}",
            flush=True,
        )
    for length in args.long:
        found = load(server.port, "m", 1, 2 if length < 4000 else 1, length, 2)
        flops_per_s = shape.prompt_flops(length) / found.ttft_s
        print(
            f"{server.name:<10} first token of {length} tokens: {found.ttft_s:.2f} s,"
            f" {flops_per_s / 1e9:.0f} GFLOP/s",
            flush=True,
        )
    print(
        f"{server.name:<10} ready in {server.ready_s:.1f} s; resident {at_start_gb:.2f} GB at start,"
        f" {server.resident_gb():.2f} GB at the end",
        flush=True,
    )


def generate(folder: Path, args: argparse.Namespace) -> None:
    """What the library does in one batch, prefill included."""
    batches = ",".join(str(clients) for clients in args.clients if clients <= args.most_generated)
    num_new = "17" if args.quick else "33"
    child = subprocess.Popen(
        [sys.executable, "-c", GENERATE, str(folder), num_new, batches],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        batch, tokens_per_s = line.split()
        print(f"{'generate':<10} {batch:>7} {float(tokens_per_s):>10.1f}", flush=True)
    assert child.wait() == 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench engine")
    parser.add_argument("--model", choices=[*SHAPES], action="append", help="default: both")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[*CLIENTS])
    parser.add_argument("--quick", action="store_true", help="1, 8 and 32 clients, 2,000 tokens")
    parser.add_argument("--no-long", action="store_true", help="no long prompts")
    parser.add_argument("--no-generate", action="store_true", help="no column of transformers")
    parser.add_argument("--few-bits", action="store_true", help="our engine with int8 and int4 weights, too")
    parser.add_argument("--vllm", metavar="PYTHON", help="where vLLM's CPU build is installed")
    args = parser.parse_args()
    args.most_generated = 8 if args.quick else 64
    args.long = () if args.no_long else LONG_PROMPTS[:1] if args.quick else LONG_PROMPTS
    if args.quick and args.clients == [*CLIENTS]:
        args.clients = [1, 8, 32]
    return args


def main() -> None:
    args = arguments()
    bytes_per_s = read_bytes_per_s(os.cpu_count() or 1)
    print(f"memory read by {os.cpu_count()} threads: {bytes_per_s / 1e9:.1f} GB/s")
    for name in args.model or SHAPES:
        shape = Shape.of(name)
        print(f"\n{name}: {shape.weight_bytes / 1e6:.0f} MB read a step")
        print(f"{'':<10} {'clients':>7} {'tokens/s':>10} {'TTFT':>12} {'TPOT':>11} {'roofline':>8}")
        with tempfile.TemporaryDirectory(prefix="sundog-bench-") as text:
            folder = Path(text)
            subprocess.run(
                [sys.executable, "-m", "tests.bench.engine_models", name, text], check=True, cwd=ROOT
            )
            command, env = ours(folder)
            kinds = [("sundog", command, env)]
            for method in FEW_BITS if args.few_bits else ():
                kinds.append((method, [*command, "--quantization", method], env))
            if args.vllm:
                kinds.append(("vllm", *vllms(args.vllm, folder)))
            for kind, command, env in kinds:
                port = free_port()
                with serving(kind, [*command, "--port", str(port)], env, port) as server:
                    measure(server, shape, bytes_per_s, args)
            if not args.no_generate:
                generate(folder, args)


if __name__ == "__main__":
    main()
