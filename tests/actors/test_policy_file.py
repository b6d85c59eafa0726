"""Loading of policies by name, with parameters, or from a file, and refusals before a run."""

import dataclasses
import sys
from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.actors.core.policies import POLICIES, Policy
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.policies.orders import VirtualTokenCounter
from sundog.actors.policy_file import find_policy
from tests.core.policies.world import World

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "interactive_first.py"
EXAMPLES = sorted(DOCS.glob("*.py"))
HEAD = "from dataclasses import dataclass\nfrom sundog.actors.core.policies import Policy, Request, View\n"


def own(policy: Policy) -> Policy:
    """What was wrapped."""
    assert isinstance(policy, GuardedPolicy)
    return policy.inner


def written(folder: Path, body: str, head: str = HEAD) -> str:
    """A policy file with one class Mine, as `--policy` names it."""
    file = folder / "mine.py"
    file.write_text(f"{head}class Mine(Policy):\n    {body}\n")
    return f"{file}:Mine"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_frozen_equal_by_value_and_documented(name: str) -> None:
    """A policy has no memory: two of the same name and parameters are the same."""
    policy = find_policy(name)
    assert policy == find_policy(name)
    assert dataclasses.is_dataclass(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.is_dynamic = True  # type: ignore[misc]
    assert type(policy).__doc__ and f"`{name}`" in (DOCS / "policies.md").read_text()


def test_parameters_follow_the_name() -> None:
    """By the names of the policy's fields."""
    assert find_policy("vtc:output_weight=4,input_weight=0.5") == VirtualTokenCounter(0.5, 4)


def test_parameters_are_of_the_types_that_the_policy_declares(tmp_path: Path) -> None:
    """Text may hold commas, colons and equals signs; `1` is text where text is wanted."""
    file = tmp_path / "typed.py"
    fields = ("name: str = ''", "title: str = ''", "weight: float = 0", "on: bool = False", "any: object = 1")
    body = "\n    ".join(fields)
    file.write_text(f"{HEAD}@dataclass(frozen=True)\nclass Mine(Policy):\n    {body}\n")
    policy = own(find_policy(rf"{file}:Mine:name=a\,b=c:d\\,title=1,weight=2,on=true,any=many"))
    values = [getattr(policy, field) for field in ("name", "title", "weight", "on", "any")]
    assert values == ["a,b=c:d\\", "1", 2, True, "many"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fcsf", "Did you mean fcfs"),
        ("vtc:weight=3", "vtc has no parameter weight. Did you mean"),
        ("fcfs:weight=3", "fcfs has no parameter weight. Known: none."),
        ("vtc:input_weight", "'input_weight' is not KEY=VALUE"),
        ("vtc:input_weight=many", "input_weight is 'many': it must be a number"),
        ("vtc:input_weight=0", "input_weight is 0: it must be above 0 and finite"),
        ("vtc:input_weight=nan", "input_weight is 'nan': it must be a number"),
        ("vtc:output_weight=inf", "output_weight is inf: it must be above 0 and finite"),
        ("vtc:input_weight=1,input_weight=2", "input_weight is given twice"),
        ("mlfq:num_levels=0", "num_levels is 0: it must be at least 1"),
        ("mlfq:num_levels=1.5", "num_levels is '1.5': it must be a whole number"),
        ("mlfq:starve_steps=-1", "starve_steps is -1: it must be at least 0"),
        ("earliest-deadline:default_slo_s=-1", "default_slo_s is -1: it must be at least 0"),
        ("nowhere.py:Mine", "nowhere.py cannot be read: No such file"),
        ("nowhere.py", "names no class: nowhere.py:CLASS"),
    ],
)
def test_a_wrong_policy_is_an_error_that_says_what_is_wrong(text: str, reason: str) -> None:
    """One line, for the command line."""
    with pytest.raises(ConfigError) as error:
        find_policy(text)
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Other: ...", "has no class Mine. Its classes: Other."),
        ("def Mine(): ...", "has no class Mine. Its classes: none."),
        ("class Mime: ...", "has no class Mine. Did you mean Mime"),
        ("class Mine: ...", "inherit from"),
        ("from sundog.actors.core.policies import Policy as Mine", "inherit from"),
        ("import nothing_like_it", "cannot be loaded: ModuleNotFoundError"),
        ("class Mine(:", "cannot be loaded: SyntaxError"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero (line 1)"),
        ("raise SystemExit(0)", "cannot be loaded: SystemExit"),
        ("raise KeyboardInterrupt", "cannot be loaded: KeyboardInterrupt"),
        ("import random", "line 1, uses random: a run must repeat"),
        ("from time import time as now", "uses time.time"),
        ("import numpy as np\ndraw = np.random.rand", "line 2, uses np.random"),
        ("from numpy.random import rand", "uses numpy.random.rand"),
        ("def f():\n    import secrets", "line 2, uses secrets"),
        ("from .other import weight", "line 1, imports from .other: a policy is one file"),
        (
            "from actors.core.routers import RouterPolicy",
            "moved to sundog.actors.core.routers.RouterPolicy: write `from sundog import Policy`",
        ),
        (
            "import actors.core.policies",
            "moved to sundog.actors.core.policies: write `from sundog import Policy`",
        ),
        ("import threading", "line 1, uses threading: it must return at once"),
        ("import os\ndef f():\n    return os.urandom(1)", "line 3, uses os.urandom"),
        ("def f(r):\n    return hash(r.tenant)", "line 2, uses hash(), which differs from process"),
        ("def f(r):\n    return id(r)", "line 2, uses id(), which differs from process to process"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, source: str, reason: str) -> None:
    """And the class that was looked for, or what would make two runs differ."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(ConfigError) as error:
        find_policy(f"{file}:Mine")
    message = str(error.value)
    assert reason in message and str(file) in message and "\n" not in message


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def ranks(self, request, view): return 0", "a policy has no ranks. Did you mean rank"),
        ("def victm(self, running, view): return 0", "Did you mean victim?"),
        ("def preempted(self, request): pass", "cannot be called as preempted(self, request, view)"),
        ("def premepted(self, request, view): pass", "Did you mean preempted?"),
        ("is_dynamc = True", "a policy has no is_dynamc. Did you mean is_dynamic?"),
        ("is_dynamic = 1", "is_dynamic is 1: it must be True or False"),
        ("def rank(self, request): return 0", "rank(self, request) cannot be called as rank(self"),
        ("def rank(self, request, view, now_s): return 0", "cannot be called as rank(self, request, view)"),
        ("async def rank(self, request, view): return 0", "rank waits or yields"),
        ("def rank(self, request, view): yield 0", "rank waits or yields"),
        ("rank = 3", "rank is 3: it must be a method rank(self, request, view)"),
        ("def token_weights(self): return (1, 2)", "token_weights is a method: make it a property"),
        ("token_weights = (1, -2)", "token_weights is (1, -2): it must be two numbers"),
        ("def __init__(self): 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_class_that_does_not_say_what_was_meant_is_refused(tmp_path: Path, body: str, reason: str) -> None:
    """Before anything starts, by file, class and name."""
    with pytest.raises(ConfigError) as error:
        find_policy(written(tmp_path, body))
    message = str(error.value)
    assert reason in message and "mine.py:Mine" in message and "\n" not in message


def test_a_file_of_another_encoding_is_refused_by_line(tmp_path: Path) -> None:
    """With what to do."""
    file = tmp_path / "mine.py"
    file.write_bytes("# a\n# café\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="line 2, is not UTF-8: save it as UTF-8"):
        find_policy(f"{file}:Mine")


def test_a_parameter_without_a_default_must_be_given(tmp_path: Path) -> None:
    """The error says how."""
    with pytest.raises(ConfigError, match="weight has no default: give it as weight=VALUE"):
        find_policy(written(tmp_path, "def __init__(self, weight): self.weight = weight"))


def test_a_policys_own_helpers_are_its_own(tmp_path: Path) -> None:
    """Only what is almost one of our names is taken for it."""
    body = "def level(self, request): return 1\n    def rank(self, request, view): return self.level(request)"
    assert find_policy(written(tmp_path, body))


def test_annotations_may_be_written_as_text(tmp_path: Path) -> None:
    """A dataclass with `from __future__ import annotations` looks for its module."""
    head = f"from __future__ import annotations\nfrom typing import ClassVar\n{HEAD}@dataclass(frozen=True)\n"
    policy = own(
        find_policy(written(tmp_path, "is_dynamic: ClassVar[bool] = True\n    weight: int = 1", head))
    )
    assert policy.is_dynamic and "is_dynamic" not in {f.name for f in dataclasses.fields(policy)}  # type: ignore[arg-type]
    assert type(policy).__module__ in sys.modules


def test_the_examples_of_the_documentation_are_the_files_and_short() -> None:
    """Under twenty lines of code each, blank ones and docstrings aside."""
    text = (DOCS / "policies.md").read_text()
    for file in EXAMPLES:
        source = file.read_text()
        assert f"```python\n{source}```" in text, file.name
        code = [line for line in source.splitlines() if line.strip() and '"""' not in line]
        assert len(code) < 20 and all(len(line) <= 110 for line in code), file.name
    assert len(EXAMPLES) == text.count("```python")


def test_the_first_example_keeps_its_promise() -> None:
    """Batch requests come last, unless they have waited too long; parameters work for files too."""
    orders = []
    for patience in (500, 30):
        world = World(f"{EXAMPLE}:InteractiveFirst:patience_steps={patience}", {"max_num_seqs": 1})
        world.add("first", 4, 5)
        world.step()
        world.add("batch", 4, 5, tenant="batch")
        for number in range(20):
            world.add(f"chat-{number}", 4, 5, tenant="chat")
        orders.append(world.run().admissions.index("batch"))
    assert orders[0] == 21 and 1 < orders[1] < 10
