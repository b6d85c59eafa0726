"""`python -m tests.oracle`: compare decisions on random traces with those of vLLM's own scheduler.

The goldens hold what vLLM decided on traces that are known. This makes new ones, as many as one likes:

    python -m tests.oracle --vllm 0.33.0 --traces 500 --seed 1000
    python -m tests.oracle --vllm 0.32.0 --kind drafts --kind stages
    python -m tests.oracle --vllm 0.33.0 --kind all -n 1000
    python -m tests.oracle --vllm 0.33.0 --policy docs/lottery.py:Lottery
    python -m tests.oracle --python /path/to/vllm/bin/python

Without --python an environment with that version is built first (`tests/oracle/environment.py`), and kept in
`$SUNDOG_ORACLE_CACHE` or in the user's cache. With --policy, or --kind policies, vLLM decides with the class
that `sundog export` writes, and Sundog with the policy itself; of every other trace the queue's order is then
not compared: vLLM asks for no more ranks than it needs. Exits with 1 if any decision differs.
"""

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sundog.actors.core.engine_version import decisions_of
from sundog.actors.core.queue.policy import defines
from sundog.actors.policy_file import find_policy
from sundog.export.exported import exported
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.sim.schedule.decision_log import DecisionLog, dump
from sundog.sim.schedule.step_trace import parse_trace
from tests.core.traces import Trace, hard_trace, random_trace
from tests.oracle.environment import VllmEnvironment, cache_folder, vllm_environment

ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).parent / "recorder.py"

POLICIES = "policies"
KINDS = ("plain", "hard", "stages", "drafts", "interval", POLICIES)
FOLLOWED = "0.33.0"
"""The version that is asked if none is named."""
MOST_DRAFTS = 4
MOST_STAGES = 4
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
TURNING = tuple(
    f"tests/core/policies/restless.py:{name}:seed={seed}"
    for name, seeds in (("Still", (1,)), ("Moving", (1,)), ("Sparing", (1,)), ("Pausing", (1, 2, 3)))
    for seed in seeds
)
"""Policies whose every answer turns with all that they see; some pause."""


def askable(seed: int, kind: str = "plain", policy: str | None = None) -> Trace:
    """The random trace of a seed, within what vLLM takes and what it decides alike every time."""
    trace = hard_trace(seed) if kind == "hard" else random_trace(seed)
    config = trace["config"]
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
    rng = random.Random(f"{seed}:{kind}")
    if kind == "stages":
        config["pipeline_parallel_size"] = rng.randint(2, MOST_STAGES)
    if kind == "interval":
        config["prefill_schedule_interval"] = rng.choice([2, 2, 3, 5, 9])
        config["pipeline_parallel_size"] = rng.choice([1, 1, 1, 2])
    return drafted(trace, seed) if kind == "drafts" else trace


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
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracle", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--vllm", default=FOLLOWED, metavar="X.Y.Z", help=f"the version; {FOLLOWED} if not given"
    )
    parser.add_argument("--python", type=Path, help="a Python that has vLLM, instead of building one")
    parser.add_argument("-n", "--traces", type=int, default=100, help="of each kind, or under each policy")
    parser.add_argument("--seed", type=int, default=0, help="of the first trace")
    parser.add_argument(
        "--kind", action="append", choices=(*KINDS, "all"), help="plain if not given; repeatable"
    )
    parser.add_argument("--save", type=Path, help="a folder for traces and vLLM's logs, as goldens are kept")
    parser.add_argument(
        "--policy",
        action="append",
        help="one of Sundog's, exported: NAME or FILE.py:NAME, with parameters, or `documented`; repeatable",
    )
    options = parser.parse_args()
    environment = (
        vllm_environment(options.vllm, cache_folder())
        if options.python is None
        else VllmEnvironment(options.python)
    )
    seeds = range(options.seed, options.seed + options.traces)
    asked = options.kind or ([] if options.policy else ["plain"])
    kinds = KINDS if "all" in asked else asked
    cases = [Case(seed, kind) for kind in kinds if kind != POLICIES for seed in seeds]
    if POLICIES in kinds:  # as many traces as of any other kind, over all of them
        every = DOCUMENTED + TURNING
        cases += [Case(seed, POLICIES, every[seed % len(every)]) for seed in seeds]
    for name in options.policy or ():
        for policy in DOCUMENTED if name == "documented" else [name]:
            cases += [Case(seed, policy, policy) for seed in seeds]
    return compared(environment, cases, options.save)


@dataclass(frozen=True, slots=True)
class Case:
    """A random trace, decided by vLLM's own policies or by an exported one, and counted under a name."""

    seed: int
    kind: str
    policy: str | None = None

    def trace(self) -> Trace:
        """The trace, as vLLM and Sundog are given it."""
        return askable(self.seed, self.kind, self.policy)

    def save(self, folder: Path, log: list[dict[str, Any]]) -> None:
        """Keep the trace, and what vLLM decided on it, in the format of `tests/golden/README.md`."""
        folder.mkdir(parents=True, exist_ok=True)
        trace = {name: value for name, value in self.trace().items() if name != "is_lazy"}
        lines = "".join(f"{dump(line)}\n" for line in log)
        for name, text in (("trace.json", dump(trace)), ("log.jsonl", lines)):
            path = folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', self.kind)}-{self.seed}.{name}.gz"
            path.write_bytes(gzip.compress(text.encode(), mtime=0))


def compared(environment: VllmEnvironment, cases: list[Case], save: Path | None) -> int:
    """Have vLLM decide all traces in one process, and say how many are alike; returns an exit code."""
    modules = {policy: f"carrying{n}" for n, policy in enumerate(dict.fromkeys(c.policy for c in cases))}
    num_equal, num_asked, version = Counter[str](), Counter[str](), ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for policy, module in modules.items():
            if policy is not None:
                (folder / f"{module}.py").write_text(exported(policy, folder / f"{module}.py")[0])
        with (folder / "traces.jsonl").open("w") as asked:
            for case in cases:
                given = case.trace() | ({} if case.policy is None else {"module": modules[case.policy]})
                asked.write(json.dumps(given) + "\n")
        with answers(environment, folder) as lines:
            version = json.loads(next(lines, '""'))
            known = decisions_of(version) if version else "0.33"
            for case, line in zip(cases, lines, strict=False):
                theirs, ours = json.loads(line), logged(case.trace(), known)
                difference = theirs if isinstance(theirs, str) else first_difference(ours, theirs)
                if save is not None and isinstance(theirs, list):
                    case.save(save, theirs)
                num_asked[case.kind] += 1
                num_equal[case.kind] += difference is None
                if difference is not None:
                    print(f"{case.kind}, seed {case.seed}: {difference}", flush=True)
    for kind, num in num_asked.items():
        print(
            f"{kind}: {num_equal[kind]} of {num} traces are decided as vLLM {version} decides them",
            flush=True,
        )
    if num_asked.total() < len(cases):
        return 2
    return int(num_equal != num_asked)


@contextmanager
def answers(environment: VllmEnvironment, folder: Path) -> Iterator[Iterator[str]]:
    """The lines that vLLM's process writes, as it writes them; what it says of a failure goes to stderr."""
    readable, writable = os.pipe()
    command = [environment.python, RECORDER, EMBEDDED_MODEL, folder / "traces.jsonl", f"/dev/fd/{writable}"]
    with (folder / "stderr").open("w+") as stderr, os.fdopen(readable) as lines:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env=environment.variables(folder, ROOT),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=[writable],
        )
        os.close(writable)
        try:
            yield lines
        finally:
            process.terminate()
            if process.wait() > 0:
                stderr.seek(0)
                sys.stderr.write(stderr.read())


if __name__ == "__main__":
    sys.exit(main())
