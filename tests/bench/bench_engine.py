"""Speed of the engine on this machine's CPU over HTTP, beside vLLM's CPU build, llama.cpp and `generate`.

Two models with random weights in bf16, 128 tokens in and out. All servers of a model are up at once and
are asked in turn, three rounds of each load, so that another load on the machine meets all of them; the order
is reversed in each second round, and `QUIET_S` pass between two servers. A row gives the middle round, and
the best of tokens/s and of processor time; the share is of a step that reads all weights and keys once, at
the bandwidth measured in the same run. Then first tokens of long prompts, the time
until ready, and memory, of which pages that processes share count in parts (PSS).

    python -m tests.bench engine [--quick] [--model NAME] [--clients 1,8] [--vllm PYTHON] [--llama-cpp FOLDER]

`--vllm` is the interpreter of another environment in which vLLM's CPU build is installed; `--llama-cpp` a
checkout of llama.cpp with `llama-server` and `llama-quantize` in `build/bin`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench.engine_client import Load, load
from tests.bench.engine_models import SHAPES, Shape, read_bytes_per_s
from tests.bench.engine_servers import ROOT, Kind, Server, llama_cpps, ours, serving, vllms

NUM_INPUT = NUM_OUTPUT = 128
NUM_ROUNDS = 3
QUIET_S = 1.6
"""The pause before another server is asked: vLLM's worker polls for a second after its last answer."""
CLIENTS = (1, 8, 32, 64)
FEW_BITS = {"int8": "Q8_0", "int4": "Q4_0"}
"""Our methods, and llama.cpp's that are nearest."""
LONG_PROMPTS = (2000, 8000)
HEAD = "clients              tokens/s     best     TTFT       TPOT   CPU s   least share"
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
class Round:
    """What the clients saw of a server in one round, and the processor time it took for that."""

    seen: Load
    cpu_s: float


def rounds(servers: list[Server], num_rounds: int, *loaded: int) -> list[list[Round]]:
    """Of each server, which are asked in turn: `loaded` is clients, requests, tokens in and out.

    Each round has prompts of its own: none is found in a cache of prefixes.
    """
    found: list[list[Round]] = [[] for _ in servers]
    for number, place in turns(len(servers), num_rounds):
        server, seed = servers[place], 10_000 * (loaded[0] + 1000 * number)
        if len(servers) > 1:
            time.sleep(QUIET_S)
        begin_s = server.cpu_s()
        seen = load(server.port, "m", seed, *loaded)
        found[place].append(Round(seen, server.cpu_s() - begin_s))
    return found


def turns(num_servers: int, num_rounds: int) -> Iterator[tuple[int, int]]:
    """Yield rounds and places of servers; each second round has the servers in reverse order."""
    for number in range(num_rounds):
        places = range(num_servers)
        for place in reversed(places) if number % 2 else places:
            yield number, place


def compare(servers: list[Server], shape: Shape, bytes_per_s: float, args: argparse.Namespace) -> None:
    """Print the rows of a model's servers."""
    at_start_gb = [server.memory_gb() for server in servers]
    rounds(servers, 1, 1, 1, NUM_INPUT // 2, 16)
    print(HEAD)
    for clients in args.clients:
        requests = clients * 2 if clients <= 8 else clients
        least_s = shape.step_s(clients, NUM_INPUT + args.num_output / 2, bytes_per_s)
        all_found = rounds(servers, args.rounds, clients, requests, NUM_INPUT, args.num_output)
        for server, found in zip(servers, all_found, strict=True):
            rates, cpu_s = [one.seen.tokens_per_s for one in found], [one.cpu_s for one in found]
            ttft_s = statistics.median(one.seen.ttft_s for one in found)
            tpot_s = statistics.median(one.seen.tpot_s for one in found)
            # A server may send half of its answers in one piece, of which no time between tokens is seen.
            share = f"{100 * least_s / tpot_s:.0f} %" if tpot_s else "–"
            print(
                f"{clients:>7} {server.name:<12} {statistics.median(rates):>8.1f} {max(rates):>8.1f}"
                f" {1e3 * ttft_s:>5.0f} ms {1e3 * tpot_s:>7.2f} ms"
                f" {statistics.median(cpu_s):>7.2f} {min(cpu_s):>7.2f} {share:>5}",
                flush=True,
            )
    for length in args.long:
        all_found = rounds(servers, args.rounds, 1, 1, length, 2)
        for server, found in zip(servers, all_found, strict=True):
            first_s = [one.seen.ttft_s for one in found]
            print(
                f"{server.name:<12} first token of {length} tokens: {statistics.median(first_s):.3f} s, best"
                f" {min(first_s):.3f} ({shape.prompt_flops(length) / min(first_s) / 1e9:.0f} GFLOP/s),"
                f" CPU {min(one.cpu_s for one in found):.2f} s",
                flush=True,
            )
    for server, gigabytes in zip(servers, at_start_gb, strict=True):
        print(
            f"{server.name:<12} ready in {server.ready_s:.1f} s; PSS {gigabytes:.2f} GB at start,"
            f" {server.memory_gb():.2f} GB at the end"
        )


def kinds(folder: Path, args: argparse.Namespace) -> list[Kind]:
    """The servers to compare on a model."""
    found = [ours(folder)]
    if args.vllm:
        found.append(vllms(args.vllm, folder))
    if args.llama_cpp:
        tree = Path(args.llama_cpp).resolve()
        binaries, gguf = tree / "build" / "bin", folder / "model.gguf"
        path = os.pathsep.join([str(tree / "gguf-py"), str(ROOT)])
        write = [sys.executable, "-m", "tests.bench.gguf_model", str(folder), str(gguf)]
        subprocess.run(write, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": path})
        if not args.few_bits:
            found.append(llama_cpps(binaries, gguf))
    for method, theirs in FEW_BITS.items() if args.few_bits else ():
        found.append(ours(folder, "--quantization", method))
        if args.llama_cpp:
            few = gguf.with_name(f"{theirs}.gguf")
            quantize = [str(binaries / "llama-quantize"), str(gguf), str(few), theirs]
            subprocess.run(quantize, check=True, capture_output=True)
            found.append(llama_cpps(binaries, few, f"llama {theirs}"))
    return found


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


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench engine")
    parser.add_argument("--model", choices=[*SHAPES], action="append", help="default: both")
    parser.add_argument("--clients", type=numbers, default=[*CLIENTS])
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a round of 1, 8 and 32 clients, 2,000 tokens")
    parser.add_argument(
        "--long", type=numbers, default=[*LONG_PROMPTS], help="tokens of long prompts, '' for none"
    )
    parser.add_argument("--num-output", type=int, default=NUM_OUTPUT, help="tokens of an answer")
    parser.add_argument("--no-generate", action="store_true", help="no column of transformers")
    parser.add_argument("--few-bits", action="store_true", help="int8 and int4 too, and llama.cpp's alone")
    parser.add_argument("--vllm", metavar="PYTHON", help="where vLLM's CPU build is installed")
    parser.add_argument("--llama-cpp", metavar="FOLDER", help="a checkout of llama.cpp that is built")
    args = parser.parse_args()
    args.most_generated = 8 if args.quick else 64
    if args.quick:
        args.rounds, args.long = 1, args.long[:1]
        args.clients = [1, 8, 32] if args.clients == [*CLIENTS] else args.clients
    return args


def main() -> None:
    args = arguments()
    bytes_per_s = read_bytes_per_s(os.cpu_count() or 1)
    print(f"memory read by {os.cpu_count()} threads: {bytes_per_s / 1e9:.1f} GB/s")
    for name in args.model or SHAPES:
        shape = Shape.of(name)
        print(f"\n{name}: {shape.weight_bytes / 1e6:.0f} MB read a step")
        with tempfile.TemporaryDirectory(prefix="sundog-bench-") as text, ExitStack() as up:
            folder = Path(text)
            make = [sys.executable, "-m", "tests.bench.engine_models", name, text]
            subprocess.run(make, check=True, cwd=ROOT)
            servers = [up.enter_context(serving(kind)) for kind in kinds(folder, args)]
            compare(servers, shape, bytes_per_s, args)
            up.close()
            if not args.no_generate:
                generate(folder, args)


if __name__ == "__main__":
    main()
