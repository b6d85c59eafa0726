"""`sundog export`: the file for vLLM, and the policy beside a foreign scheduler.

What vLLM itself decides with it is compared by `python -m tests.oracle --policy POLICY`.
"""

import ast
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sundog.actors.core.carried import CarriedPolicy
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.policies.guard import guarded
from sundog.actors.core.request import Request, Submit
from sundog.actors.policy_file import find_policy
from tests.core.policies.world import DOCS
from tests.sundog.test_runs import sundog


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        ("vtc:output_weight=4", "sundog_policies.POLICIES['vtc'](output_weight=4)"),
        (f"{DOCS}/rate_limit.py:RateLimit:per_minute=30", "RateLimit(per_minute=30)"),
        (f"{DOCS}/lottery.py:Lottery:favoured=a", "Lottery(favoured='a')"),
    ],
)
def test_one_file_holds_the_policy_and_the_class_that_asks_it(tmp_path: Path, policy: str, made: str) -> None:
    """It is Python, imports of Sundog the pure core and public names alone, and is named on stdout."""
    path = tmp_path / "mine.py"
    done = sundog("export", policy, "--to", "vllm", "-o", path)
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    tree = ast.parse(path.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {name for name in modules if name.split(".")[0] == "sundog"}
    assert ours and all(name == "sundog" or name.startswith("sundog.actors.core") for name in ours)
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert classes >= {"PolicyScheduler", "SyncPolicyScheduler"}
    assert path.read_text().rstrip().splitlines()[-2] == f"Carrying.sundog_policy = {made}"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("prefill-first",),
            "policy prefill-first has prefills_first: vLLM computes running requests before",
        ),
        (("mlfqq",), "unknown policy 'mlfqq'. Did you mean mlfq?"),
        (("mlfq", "--to", "sglang"), "--to is sglang: give one of vllm"),
        (("mlfq", "-o", "my-policy.py"), "my-policy.py cannot be imported"),
        (("mlfq", "-o", "no/such/folder/mine.py"), "cannot write"),
        (
            ("{folder}/clash.py:Mine",),
            "clash.py defines PolicyQueue, which the exported class defines, too: rename it",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(
    tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    """Nothing is written."""
    head, body = "from sundog.actors.core.policies import Policy\n", "\n    pass\n"
    clash = f"{head}\n\nclass Mine(Policy):{body}\n\nclass PolicyQueue:{body}"
    (tmp_path / "clash.py").write_text(clash)
    done = sundog("export", *(each.format(folder=tmp_path) for each in arguments))
    assert done.returncode == 2 and reason in done.stderr and not done.stdout, done.stderr


def test_urgency_is_left_out_and_said_so(tmp_path: Path) -> None:
    """vLLM never preempts for a waiting request."""
    done = sundog("export", "mlfq", "-o", tmp_path / "mine.py")
    assert done.returncode == 0 and "its urgency is left out" in done.stderr


@dataclass
class TheirRequest:
    """A foreign scheduler's record."""

    num_tokens: int
    num_computed_tokens: int = 0


@dataclass
class TheirBlocks:
    """A foreign pool, with counts as they are set."""

    num_blocks: int = 11
    num_free: int = 10
    block_size: int = 4
    shared: dict[str, int] = field(default_factory=dict)

    @property
    def pool(self) -> "TheirBlocks":
        return self

    def find_hit(self, request: Request) -> range:
        return range(0)

    def num_shared_blocks(self, request: Request) -> int:
        return self.shared.get(request.request_id, 0)


def carried(policy: str) -> tuple[CarriedPolicy, TheirBlocks]:
    blocks = TheirBlocks()
    limits = SchedulerConfig(block_size=4, num_gpu_blocks=11)
    return CarriedPolicy(guarded(find_policy(policy)), limits, blocks), blocks


def test_a_carried_policy_sees_the_foreign_counts_and_times() -> None:
    """Tokens, times, waiting and running requests, as at home."""
    beside, blocks = carried("shortest-prompt")
    theirs = {name: TheirRequest(length) for name, length in (("a", 8), ("b", 4))}
    for name, foreign in theirs.items():
        assert beside.arrive(Submit(name, 0.0, foreign.num_tokens, 9), foreign, 1.0) is None
    beside.begin_step(2.0)
    head = beside.waiting.peek()
    assert head is not None and head.request_id == "b"
    beside.waiting.pass_over()
    beside.admit("b")
    assert list(beside.running) == ["b"] and len(beside.waiting) == 1
    beside.planned(4)
    theirs["b"].num_computed_tokens, theirs["b"].num_tokens = 4, 5
    beside.end_step(3.0, {"b": 1})
    view, request = beside.view, beside.requests["b"]
    assert (view.first_token_s(request), view.num_output_tokens(request), view.now_s) == (3.0, 1, 3.0)
    blocks.shared["b"] = 1
    assert view.num_lost_tokens(request) == 0
    beside.preempt("b")
    assert [each.request_id for each in view.waiting] == ["b", "a"] and not beside.running
    beside.finish("b")
    assert [each.request_id for each in view.waiting] == ["a"] and view.num_output_tokens(request) == 1


def test_a_carried_policy_hears_of_a_late_token_that_changes_a_key() -> None:
    """A step from before the preemption takes the request down a level, behind one that came later."""
    beside, _ = carried("mlfq:quantum_steps=1")
    theirs = {name: TheirRequest(1) for name in ("demoted", "behind")}
    beside.arrive(Submit("demoted", 0.0, 1, 9), theirs["demoted"], 0.0)
    beside.begin_step(0.0)
    assert beside.waiting.peek() is beside.requests["demoted"]
    beside.waiting.pass_over()
    beside.admit("demoted")
    beside.planned(1)
    beside.begin_step(1.0)
    beside.preempt("demoted")
    beside.planned(0)
    beside.arrive(Submit("behind", 1.0, 1, 9), theirs["behind"], 1.0)
    assert beside.waiting.peek() is beside.requests["demoted"]
    theirs["demoted"].num_tokens += 1
    beside.end_step(2.0, {"demoted": 1} if beside.follows_tokens else {})
    beside.begin_step(2.0)
    assert beside.waiting.peek() is beside.requests["behind"]
    assert [each.request_id for each in beside.view.waiting] == ["behind", "demoted"]


@pytest.mark.parametrize(
    "policy", ["fcfs", "priority", "shortest-prompt", "shortest-remaining", "longest-prefix"]
)
def test_tokens_are_not_followed_for_policies_that_do_not_ask(policy: str) -> None:
    """It costs a look at each output of a step."""
    assert not carried(policy)[0].follows_tokens


RESTLESS = """from sundog.actors.core.policies import Policy


class Restless(Policy):
    is_dynamic = True
    asked = []

    def rank(self, request, view):
        self.asked.append(request.request_id)
        return request.submit.num_prompt_tokens
"""


def test_a_full_engine_asks_a_carried_policy_for_no_rank(tmp_path: Path) -> None:
    """Steps begin and end, and whether anyone waits is asked; only a look at the head asks for ranks."""
    (tmp_path / "restless.py").write_text(RESTLESS)
    beside, _ = carried(f"{tmp_path}/restless.py:Restless")
    for number in range(9):
        beside.arrive(Submit(f"r{number}", 0.0, 9 - number, 9), TheirRequest(9 - number), 0.0)
    beside.begin_step(0.0)
    assert beside.waiting.peek() is beside.requests["r8"]
    beside.waiting.pass_over()
    beside.admit("r8")
    beside.planned(1)
    asked = beside.policy.inner.asked  # type: ignore[attr-defined]
    asked.clear()
    for step in range(1, 5):
        beside.begin_step(float(step))
        assert beside.waiting.has_next
        beside.planned(1)
        beside.end_step(float(step), {"r8": 1})
    assert not asked
    assert beside.waiting.peek() is beside.requests["r7"] and len(asked) == 8


def test_a_carried_policy_that_leads_nowhere_fails(tmp_path: Path) -> None:
    """Fifty steps in a row without a token: fcfs would go on."""
    (tmp_path / "stops.py").write_text(
        "from sundog.actors.core.policies import Fcfs, Policy\n\n\n"
        "class Stops(Policy):\n    pauses = True\n\n"
        "    def quota(self, request, view):\n        return 0\n"
    )
    beside, _ = carried(f"{tmp_path}/stops.py:Stops")
    policy = beside.policy
    policy.fallback = find_policy("fcfs")  # type: ignore[attr-defined]
    beside.arrive(Submit("a", 0.0, 4, 9), TheirRequest(4), 0.0)
    beside.arrive(Submit("never", 0.0, 44, 9), TheirRequest(44), 0.0)
    for _ in range(51):
        assert beside.within_quota("a", 4, 4) == 0
        beside.planned(0)
    assert policy.failure is None  # type: ignore[attr-defined]  # no policy could let `never` run
    beside.finish("never")
    for step in range(51):
        assert policy.failure is None  # type: ignore[attr-defined]
        beside.begin_step(float(step))
        assert beside.within_quota("a", 4, 4) == 0
        beside.planned(0)
    assert "get nothing, step after step" in str(policy.failure)  # type: ignore[attr-defined]
    assert beside.within_quota("a", 4, 4) == 4
