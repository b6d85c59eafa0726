"""`python -m tests.oracle PYTHON`: random traces, decided here and by the vLLM of another Python.

The goldens hold what vLLM decided on traces that are known. This makes new ones, as many as one likes:

    python -m tests.oracle /path/to/vllm/bin/python --traces 500 --seed 1000
    python -m tests.oracle /path/to/vllm/bin/python --policy docs/lottery.py:Lottery
    python -m tests.oracle /path/to/vllm/bin/python --policy documented -n 1000

With --policy vLLM decides with the class that `sundog export` writes, and Sundog with the policy itself. Of
every other trace the queue's order is not compared: vLLM then asks for no more ranks than it needs.
PYTHON needs vLLM 0.32 or 0.33 (its CPU build will do). Exits with 1 if any decision differs.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from actors.core.queue.policy import defines
from actors.policy_file import find_policy
from runtime.serve import EMBEDDED_MODEL
from sim.schedule.decision_log import DecisionLog, dump
from sim.schedule.step_trace import parse_trace
from sundog.export.exported import exported
from tests.core.traces import Trace, random_trace

ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).parent / "recorder.py"


MOST_DRAFTS = 4
DOCUMENTED = (
    *("fcfs", "priority", "shortest-prompt", "shortest-remaining", "longest-prefix", "earliest-deadline"),
    *("vtc", "mlfq:quantum_steps=2,starve_steps=10"),
    "docs/interactive_first.py:InteractiveFirst:patience_steps=5",
    "docs/least_slack.py:LeastSlack",
    "docs/response_ratio.py:ResponseRatio",
    "docs/small_chunks.py:SmallChunks:chunk_tokens=2",
    "docs/learned_lengths.py:LearnedLengths",
    "docs/lottery.py:Lottery:favoured=a",
    "docs/rate_limit.py:RateLimit:per_minute=30",
    "docs/policies/fast_serve.py:FastServe:batch=2,quantum=2,prompt_tokens_per_level=4",
    "docs/policies/andes.py:Andes:lead_s=2",
    "docs/policies/sola.py:Sola:least_tokens=2",
    "docs/policies/learned_rank.py:LearnedRank:patience_s=5",
    "docs/policies/deficit.py:Deficit:quantum=20",
    "docs/policies/least_recompute.py:LeastRecompute",
)
"""The policies that the documentation shows and vLLM can have, with parameters that bite in short traces."""


def askable(seed: int, stages: int = 1, drafts: bool = False, policy: str | None = None) -> Trace:
    """The random trace of a seed, within what vLLM takes and what it decides alike every time."""
    trace = random_trace(seed)
    config = trace["config"]
    if stages > 1:
        config["pipeline_parallel_size"] = stages
    if (config["max_num_active_seqs"] or 0) > config["max_num_seqs"]:
        config["max_num_active_seqs"] = None
    for event in trace["events"]:
        if event["op"] == "abort":
            event["ids"] = event["ids"][:1]  # of several, vLLM frees blocks in the order of a set of texts
    for row in trace["requests"]:
        row["min_tokens"] = min(row["min_tokens"], row["max_tokens"])
    trace["is_lazy"] = policy is not None and seed % 2 == 1
    if policy is not None:
        under_policy(trace, seed, policy)
    return drafted(trace, seed) if drafts else trace


def under_policy(trace: Trace, seed: int, policy: str) -> None:
    """Decide the trace by a policy, with all that policies look at."""
    rng = random.Random(f"{seed}:policy")
    trace["config"]["policy"] = policy
    trace["config"]["enable_chunked_prefill"] |= defines(find_policy(policy), "quota")  # which need it
    for row in trace["requests"]:
        row["tenant"] = rng.choice([None, "a", "a", "b"])
        row["slo_ttft_s"] = rng.choice([None, 1.0, 5.0, 20.0])
        row["slo_tpot_s"] = rng.choice([None, 0.5, 2.0])
        row["predicted_tokens"] = rng.choice([None, 1, 5, 20])


def drafted(trace: Trace, seed: int) -> Trace:
    """The trace with drafts: for each output, how many are offered for its step, and how many are right."""
    rng = random.Random(f"{seed}:drafts")
    most = rng.randint(1, MOST_DRAFTS)
    # Both plan step by step beside drafts of n-grams.
    trace["config"] |= {"async_scheduling": False, "num_speculative_tokens": most}
    for row in trace["requests"]:
        offers = [rng.choice([0, most, rng.randint(0, most)]) for _ in range(row["max_tokens"] + 1)]
        row["drafts"] = [[offered, rng.randint(0, offered)] for offered in offers]
    return trace


def logged(trace: Trace, version: str) -> list[dict[str, Any]]:
    """Our log of a trace, as far as it is compared."""
    lines = DecisionLog(parse_trace(trace, version)).run()
    return (
        [line | {"wait_q": []} if "wait_q" in line else line for line in lines] if trace["is_lazy"] else lines
    )


def first_difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str | None:
    """The first line that differs, None where none does."""
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if dump(mine) != dump(other):
            fields = [name for name in other if mine.get(name) != other[name]]
            shown = "; ".join(f"{name}: {mine.get(name)} and {other[name]}" for name in fields)
            return f"line {number} ({other['ev']}) differs: {shown}"
    return None if len(ours) == len(theirs) else f"{len(ours)} lines and {len(theirs)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("python", help="the Python that has vLLM")
    parser.add_argument("-n", "--traces", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first trace")
    parser.add_argument("--stages", type=int, default=1, help="of layers (pipeline_parallel_size)")
    parser.add_argument("--drafts", action="store_true", help="verify n-gram drafts")
    parser.add_argument(
        "--policy",
        action="append",
        help="one of Sundog's, exported: NAME or FILE.py:NAME, with parameters, or `documented`; repeatable",
    )
    options = parser.parse_args()
    asked = options.policy or [None]
    policies = [each for text in asked for each in (DOCUMENTED if text == "documented" else [text])]
    return max([compared(options, policy) for policy in policies])


def compared(options: argparse.Namespace, policy: str | None) -> int:
    """Compare all traces under one policy, and say how many are alike; returns an exit code."""
    seeds = range(options.seed, options.seed + options.traces)
    terms = (options.stages, options.drafts, policy)
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "traces.jsonl", Path(folder) / "logs.jsonl"
        asked.write_text("".join(json.dumps(askable(seed, *terms)) + "\n" for seed in seeds))
        command = [options.python, str(RECORDER), str(EMBEDDED_MODEL), str(asked), str(answered)]
        if policy is not None:
            module = Path(folder) / "carrying.py"
            module.write_text(exported(policy, module)[0])
            command.append(module.stem)
        environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            sys.stderr.write(done.stderr)
            return 2
        version, *logs = answered.read_text().splitlines()
    known = ".".join(json.loads(version).split(".")[:2])
    num_equal = 0
    for seed, log in zip(seeds, logs, strict=True):
        theirs = json.loads(log)
        ours = logged(askable(seed, *terms), known)
        difference = theirs if isinstance(theirs, str) else first_difference(ours, theirs)
        num_equal += difference is None
        if difference is not None:
            print(f"seed {seed}: {difference}", flush=True)
    under = "" if policy is None else f"{policy}: "
    print(
        f"{under}{num_equal} of {len(seeds)} traces are decided as vLLM {json.loads(version)} decides them",
        flush=True,
    )
    return int(num_equal < len(seeds))


if __name__ == "__main__":
    sys.exit(main())
