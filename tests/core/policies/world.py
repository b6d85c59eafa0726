"""Scheduler without a backend: tokens are counted, and tests set the lengths of answers."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.policies import has_urgency
from sundog.actors.core.request import Request, Submit
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from sundog.actors.policy_file import find_policy
from tests.core.traces import Trace, random_trace
from tests.core.work import has_work

DOCS = Path(__file__).parents[3] / "docs"
PARAMETERS = {
    "InteractiveFirst": ":patience_steps=5",
    "SmallChunks": ":chunk_tokens=2",
    "Lottery": ":favoured=a",
    "RateLimit": ":per_minute=2000",
}
"""That matter in a few steps."""
OF_DOCS = [
    f"{file}:{name}{PARAMETERS.get(name, '')}"
    for file in sorted(DOCS.glob("*.py"))
    for name in re.findall(r"^class (\w+)\(Policy\)", file.read_text(), re.MULTILINE)
]
"""The policies of docs/policies.md."""
EXAMPLES = [name for name in OF_DOCS if "def refuse" not in Path(name.partition(":")[0]).read_text()]
"""Those that let everybody wait."""
RESTLESS = [
    f"{Path(__file__).parent / 'restless.py'}:{name}"
    for name in ("Still", "Moving", "Sparing", "Counting", "Pausing", "Everything")
]
"""Policies whose every answer may turn in every step."""
HASTY_MLFQ = "mlfq:quantum_steps=1,num_levels=3,prompt_tokens_per_step=2,starve_steps=5"
"""Demotes and promotes within the few steps of a random trace."""


@dataclass
class World:
    """One scheduler under a policy; `admissions` are in order."""

    policy: str
    limits: dict[str, Any] = field(default_factory=dict)
    admissions: list[str] = field(default_factory=list)
    preemptions: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    step_s: float = 0.0

    def __post_init__(self) -> None:
        config = SchedulerConfig(**{"block_size": 4, "num_gpu_blocks": 101, **self.limits})
        self.state = SchedulerState(config, find_policy(self.policy), KVCache(config), seed=self.seed)

    def add(self, name: str, prompt: int, output: int = 1, **fields: Any) -> Request:
        """A request whose answer, of which the scheduler is not told, has `output` tokens."""
        self.lengths[name] = output
        limit = fields.pop("max_tokens", 1000)
        arrival_s = fields.pop("arrival_s", float(len(self.lengths)))
        return self.state.add(Submit(name, arrival_s, prompt, limit, **fields))

    def step(self) -> Batch:
        """Plan, sample, update; the laws of the state hold."""
        batch, self.blocked = plan(self.state)
        end_s = batch.step * self.step_s
        self.admissions += [admission.request_id for admission in batch.admitted]
        self.preemptions += batch.preempted
        view, members = self.state.view, self.state.lockstep.members.values()
        ended = [r.request_id for r in members if view.num_output_tokens(r) + 1 >= self.lengths[r.request_id]]
        if end_s:
            view.advance(end_s)
        finishes = update(self.state, StepResult(batch.step, (end_s,), None, tuple(ended)))
        self.finished += [finish.request_id for finish in finishes]
        self.state.check()
        return batch

    def run(self, max_steps: int = 10_000) -> "World":
        """Step until nobody is left."""
        for _ in range(max_steps):
            if not has_work(self.state):
                return self
            self.step()
        raise AssertionError(f"unfinished after {max_steps} steps: {self.state.requests}")


def policy_trace(seed: int, policy: str) -> Trace:
    """A random trace with what policies look at, and options that vLLM does not have; the same anywhere."""
    rng = random.Random(f"{seed} {policy.rpartition('/')[2]}")
    trace = random_trace(seed, stalls=False)
    config = trace["config"]
    config["policy"] = policy
    config["max_overtakes"] = rng.choice([0, 0, 1, 3])
    config["victim"] = rng.choice(["policy", "policy", "least-recompute"])
    # Alone, vLLM's priority leaves blocks in the cache that were never computed.
    config["preempt_for_priority"] = has_urgency(find_policy(policy)) and (
        policy == "priority" or rng.random() < 0.6
    )
    gives_quotas = any(name in policy for name in (":Sparing", ":Pausing", ":Everything", ":Picky"))
    config["enable_chunked_prefill"] |= gives_quotas  # which need it
    for row in trace["requests"]:
        row["tenant"] = rng.choice([None, "a", "a", "b"])
        row["slo_ttft_s"] = rng.choice([None, 1.0, 5.0, 20.0])
        row["slo_tpot_s"] = rng.choice([None, 0.5, 2.0])
        row["predicted_tokens"] = rng.choice([None, 1, 5, 20])
    return trace
