"""User routers: refusals before a run, failures during it, and the documented examples."""

import logging
import sys
from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.actors.policy_file import find_router
from sundog.cli import main
from sundog.sim.trace.jsonl_rows import write_trace
from tests.actors.fakes import read
from tests.core.routers.test_routers import DOCS, EXAMPLES
from tests.sim.test_replay import random_trace
from tests.test_fates import ask, health, served

HEAD = (
    "from dataclasses import dataclass\nfrom sundog.actors.core.routers import Fleet, RouterPolicy, Submit\n"
)


def written(folder: Path, body: str) -> str:
    """A router file with one class Mine, as `--router` names it."""
    file = folder / "mine.py"
    file.write_text(f"{HEAD}class Mine(RouterPolicy):\n    {body}\n")
    return f"{file}:Mine"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("round-robbin", "unknown router 'round-robbin'. Did you mean round-robin?"),
        ("round-robin:turn=1", "router round-robin has no parameter turn. Known: none."),
        ("prefix-aware:index=exact", "router prefix-aware: index is 'exact': known are own, events"),
        ("prefix-aware:load=-1", "load is -1: it must be at least 0"),
        ("session-affinity:key=user", "key is 'user': known are session, tenant"),
        ("session-affinity:bound=1", "bound is 1: it must be above 1"),
        ("weighted", "router weighted: all weights are 0: give one of prefix, load"),
        ("weighted:prefix=many", "prefix is 'many': it must be a number"),
        ("nowhere.py:Mine", "router file nowhere.py cannot be read: No such file"),
        ("nowhere.py", "router 'nowhere.py' names no class: nowhere.py:CLASS"),
    ],
)
def test_a_wrong_router_is_an_error_that_says_what_is_wrong(text: str, reason: str) -> None:
    """One line, for the command line."""
    with pytest.raises(ConfigError) as error:
        find_router(text)
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def chose(self, request, fleet): return 0", "a router has no chose. Did you mean choose"),
        ("def choose(self, request): return 0", "cannot be called as choose(self, request, fleet)"),
        ("async def score(self, request, replica, fleet): return 0", "score waits or yields"),
        ("index = 'all'", "index is 'all': known are none, own, events"),
        ("follows_steps = 1", "follows_steps is 1: it must be True or False"),
        ("def new_memory(self): return 1 / 0", "new_memory raised ZeroDivisionError"),
        ("import random", "uses random: a run must repeat: take fleet.random(request, ...)"),
    ],
)
def test_a_class_that_does_not_say_what_was_meant_is_refused(tmp_path: Path, body: str, reason: str) -> None:
    """Before anything starts, by file and name."""
    with pytest.raises(ConfigError) as error:
        find_router(written(tmp_path, body))
    message = str(error.value)
    assert reason in message and "mine.py" in message and "\n" not in message


def test_a_policy_is_no_router(tmp_path: Path) -> None:
    """The message says what to inherit from."""
    (tmp_path / "mine.py").write_text("from sundog.actors.core.policies import Policy as Mine\n")
    with pytest.raises(ConfigError, match=r"is not a router: let it inherit from sundog\.Router"):
        find_router(f"{tmp_path}/mine.py:Mine")


CHOOSE = "def choose(self, request, fleet): "
SCORE = "def score(self, request, replica, fleet): "
FAULTS = {
    "holds": (CHOOSE + "return None", "choose", "returned None, which holds it, while no replica has a"),
    "number": (CHOOSE + "return 7", "choose", "returned 7: it must be a replica that is up (0, 1)"),
    "truth": (CHOOSE + "return True", "choose", "returned True: it must be a replica"),
    "raises": (CHOOSE + "return 1 // 0", "choose", "raised ZeroDivisionError: "),
    "leaves": (CHOOSE + "exit('bye')", "choose", "raised SystemExit: bye (line 4)"),
    "nan": (SCORE + "return float('nan')", "score", "returned nan: it must be a number"),
    "text": (SCORE + "return 'high'", "score", "returned 'high': it must be a number"),
    "inside": (SCORE + "return 1 / 0", "score", "raised ZeroDivisionError: division by zero (line 4)"),
    "writes": (
        CHOOSE + "request.tenant = 'a'",
        "choose",
        "Submit.tenant cannot be assigned: it is read-only",
    ),
    "fleet": (CHOOSE + "fleet.up = (0,)", "choose", "'up' of 'Fleet' object has no setter"),
    "unknown": (CHOOSE + "return fleet.num_tokens(9)", "choose", "raised IndexError"),
}


def replayed(folder: Path, router: str, *options: str) -> int:
    """The exit code of a replay on two replicas."""
    trace = folder / "trace.jsonl"
    write_trace(str(trace), random_trace(1)[:20], provenance="test", hash_block_tokens=16)
    limits = ["--num-gpu-blocks", "80", "--max-model-len", "280", "--model", "qwen3-0.6b", "--gpu", "l40s"]
    arguments = ["replay", str(trace), *limits, "--replicas", "2", "--router", router, "--json", *options]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as done:
        patch.setattr(sys, "argv", ["sundog", *arguments])
        main()
    assert isinstance(done.value.code, int)
    return done.value.code


@pytest.mark.parametrize("fault", FAULTS)
def test_a_simulation_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    """It names the file, the class, the method, the request and what was wrong; exit code 2."""
    body, method, reason = FAULTS[fault]
    assert replayed(tmp_path, written(tmp_path, body)) == 2
    output = capsys.readouterr()
    assert not output.out and output.err.strip().count("\n") == 0, output.err
    assert f"router {tmp_path}/mine.py:Mine: {method} of r" in output.err and reason in output.err


async def test_a_server_goes_on_with_round_robin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One loud line, degraded health, every answer whole; what it remembered is not round-robin's."""
    body = (
        "def new_memory(self): return {}\n    " + CHOOSE + "return 1 if request.request_id == 'a' else 1 // 0"
    )
    with caplog.at_level(logging.ERROR, "sundog"):
        async with served(router=find_router(written(tmp_path, body)), replicas=2) as (world, client):
            first = await ask(client, "a", 5)
            assert (await health(client)).status == "healthy"
            others = [await ask(client, name, 5) for name in "bcd"]
            assert [(await read(answer)).num_tokens for answer in (first, *others)] == [5] * 4
            now = await health(client)
    where = {
        admission.request_id: output.replica
        for output in world.listener.outputs
        for admission in output.batch.admitted
    }
    assert where == {"a": 1, "b": 0, "c": 1, "d": 0}
    assert (now.status, now.serves) == ("degraded", True)
    assert "mine.py:Mine: choose of b raised ZeroDivisionError" in now.reason
    (line,) = [record.getMessage() for record in caplog.records]
    assert "round-robin takes over" in line


@pytest.mark.parametrize("name", EXAMPLES, ids=lambda name: EXAMPLES[name])
def test_an_example_is_simulated(name: str, tmp_path: Path) -> None:
    """Through the command line."""
    assert replayed(tmp_path, name) == 0


@pytest.mark.parametrize("name", EXAMPLES, ids=lambda name: EXAMPLES[name])
async def test_an_example_is_served(name: str) -> None:
    """Every answer is whole, and the router has not failed."""
    async with served(router=find_router(name), replicas=3, max_num_seqs=2) as (_, client):
        answers = [await ask(client, f"r{number}", 3, tenant="ab"[number % 2]) for number in range(9)]
        assert [(await read(answer)).num_tokens for answer in answers] == [3] * 9
        assert (await health(client)).status == "healthy"


def test_the_examples_of_the_documentation_are_the_files_and_short() -> None:
    """Under twenty lines of code each, blank ones and docstrings aside."""
    text = (DOCS / "routing.md").read_text()
    files = sorted((DOCS / "routers").glob("*.py"))
    for file in files:
        source = file.read_text()
        assert f"```python\n{source}```" in text, file.name
        code = [line for line in source.splitlines() if line.strip() and '"""' not in line]
        assert len(code) < 20, file.name
    assert len(files) == len(EXAMPLES) == text.count("```python")
