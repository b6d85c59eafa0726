"""A policy that fails at run time ends a simulation with one line; a server continues with fcfs."""

import logging
import sys
from pathlib import Path

import pytest

from sundog.actors.core.batch import StepResult
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.policies import Fcfs
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.request import Submit
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from sundog.actors.policy_file import find_policy
from sundog.cli import main
from sundog.sim.trace.jsonl_rows import write_trace
from tests.actors.fakes import read
from tests.actors.test_policy_file import written
from tests.core.traces import num_cases
from tests.core.work import has_work
from tests.sim.test_replay import random_trace
from tests.test_fates import ask, health, served

RANK = "def rank(self, request, view): return "
FAULTS = {
    "none": (RANK + "None", "rank", "returned None: it must be a number, text or a tuple of them"),
    "nan": (RANK + "float('nan')", "rank", "returned nan: it must be a number"),
    "nan-inside": (RANK + "(1, float('nan'))", "rank", "returned nan: it must be a number"),
    "mixed": (
        RANK + "1 if view.num_waited_steps(request) else 'new'\n    is_dynamic = True",
        "rank",
        "returned 1, and text before: all must be comparable",
    ),
    "lengths": (
        RANK + "(1,) if view.step > 3 else (1, 'x')\n    is_dynamic = True",
        "rank",
        "returned (1,), and (a number, text) before",
    ),
    "list": (RANK + "[1]", "rank", "returned [1]: it must be"),
    "leaves": (RANK + "exit('bye')", "rank", "raised SystemExit: bye (line 4)"),
    "interrupts": (
        RANK + "(_ for _ in ()).throw(KeyboardInterrupt)",
        "rank",
        "raised KeyboardInterrupt (line 4)",
    ),
    "closes": (RANK + "(_ for _ in ()).throw(GeneratorExit)", "rank", "raised GeneratorExit (line 4)"),
    "quota-is-true": (
        "def quota(self, request, view): return True",
        "quota",
        "returned True: it must be a whole",
    ),
    "no-memory": (
        "def admitted(self, request, view): view.memory[1] = 2",
        "admitted",
        "does not support item assignment (line 4): view.memory is None until a new_memory() makes it",
    ),
    "raises": (RANK + "1 / 0", "rank", "raised ZeroDivisionError: division by zero (line 4)"),
    "no-service": (RANK + "view.service(None)", "rank", "service is not counted"),
    "compares": (
        "def rank(self, request, view): return Sly(1)\n\n"
        "class Sly(complex):\n    def __lt__(self, other): return 1 / 0",
        "rank",
        "returned (1+0j): it must be a number, text or a tuple of them",
    ),
    "hashes": (
        "is_dynamic = True\n    def rank(self, request, view): return 1\n"
        "    def rank_key(self, request, view): return Sly()\n\n"
        "class Sly:\n    def __eq__(self, other): return 1 / 0\n    def __hash__(self): return 1\n"
        "    def __repr__(self): return 1 / 0",
        "rank_key",
        "returned an object of Sly: it must be a number, text or a tuple of them, or None",
    ),
    "holds-for-a-text": (
        "def rank(self, request, view):\n        from sundog.actors.core.policies import Rank\n"
        "        return Rank(1, until_s='soon')",
        "rank",
        "until_s are seconds, until_step is a whole number",
    ),
    "victim": (
        "def victim(self, running, view): return None",
        "victim",
        "returned None, which is no request that runs",
    ),
    "victim-waits": (
        "def victim(self, running, view): return view.waiting[0] if view.waiting else None",
        "victim",
        "which is no request that runs",
    ),
    "victim-clears": ("def victim(self, running, view): running.clear()", "victim", "AttributeError"),
    "refuses-by-truth": (
        "def refuse(self, request, view): return True",
        "refuse",
        "returned True: it must be",
    ),
    "refuses-in-silence": (
        "def refuse(self, request, view):\n        from sundog.actors.core.policies import Refusal\n"
        "        return Refusal('')",
        "refuse",
        "refused for the reason '': it must be one line of text",
    ),
    "refuses-backwards": (
        "def refuse(self, request, view):\n        from sundog.actors.core.policies import Refusal\n"
        "        return Refusal('busy', -1)",
        "refuse",
        "refused with retry_after_s -1: it must be seconds from 0 on",
    ),
    "refuse-raises": ("def refuse(self, request, view): 1 / 0", "refuse", "raised ZeroDivisionError"),
    "deletes": (
        "def rank(self, request, view): del request.request_id",
        "rank",
        "Request.request_id cannot be deleted: it is read-only (line 4)",
    ),
    "writes": (
        "def rank(self, request, view): request.num_tokens = 1",
        "rank",
        "Request.num_tokens cannot be assigned: it is read-only (line 4)",
    ),
    "adds": (
        "def rank(self, request, view): request.seen = 1",
        "rank",
        "Request.seen cannot be assigned: it is read-only",
    ),
    "what-arrived": (
        "def rank(self, request, view): request.submit.tenant = 'a'",
        "rank",
        "Submit.tenant cannot be assigned: it is read-only",
    ),
    "others": (
        "def admitted(self, request, view):\n        for r in view.running.values(): r.block_ids = []",
        "admitted",
        "Request.block_ids cannot be assigned: it is read-only",
    ),
    "lists": (
        "def admitted(self, request, view): request.block_ids.clear()",
        "admitted",
        "policies cannot read Request.block_ids (docs/policies.md lists",
    ),
    "time": (
        "def rank(self, request, view): view.now_s = 0.0",
        "rank",
        "View.now_s cannot be assigned: it is read-only",
    ),
}


def replayed(folder: Path, policy: str, *options: str) -> int:
    """The exit code of a replay in which blocks run out."""
    trace = folder / "trace.jsonl"
    write_trace(str(trace), random_trace(1), provenance="test", hash_block_tokens=16)
    limits = ["--num-gpu-blocks", "40", "--max-model-len", "280", "--max-num-seqs", "12"]
    model = ["--model", "qwen3-0.6b", "--gpu", "l40s"]
    arguments = ["replay", str(trace), *model, *limits, "--policy", policy, "--json", *options]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as done:
        patch.setattr(sys, "argv", ["sundog", *arguments])
        main()
    code = done.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_simulation_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    """It names the file, the class, the method, the request and what was wrong; exit code 2."""
    body, method, reason = FAULTS[fault]
    assert replayed(tmp_path, written(tmp_path, body)) == 2
    output = capsys.readouterr()
    assert not output.out and output.err.strip().count("\n") == 0, output.err
    assert f"mine.py:Mine: {method} of r" in output.err and reason in output.err, output.err


def test_an_urgency_that_fails_ends_a_simulation_likewise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked only with --preempt-for-priority."""
    policy = written(tmp_path, "def urgency(self, request, view): return None")
    assert replayed(tmp_path, policy) == 0
    assert replayed(tmp_path, policy, "--preempt-for-priority") == 2
    assert "mine.py:Mine: urgency of r" in capsys.readouterr().err


def test_replicas_share_no_policy(tmp_path: Path) -> None:
    """Each has a copy of its own, of all that the policy holds."""
    policy = find_policy(written(tmp_path, "def __init__(self): object.__setattr__(self, 'own', ([],))"))
    assert isinstance(policy, GuardedPolicy)
    copies = [policy.for_replica(), policy.for_replica()]
    owns = [copy.inner.own for copy in copies]  # type: ignore[attr-defined]  # of the file's class
    assert owns[0] is not owns[1] and owns[0][0] is not owns[1][0]


FAILS_LATE = RANK + "-view.now_s if view.step < 4 else 1 / 0\n    is_dynamic = True"


async def test_a_served_engine_goes_on_with_fcfs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One loud line, degraded health, and every answer whole; the other replica keeps its policy."""
    policy = find_policy(written(tmp_path, FAILS_LATE))
    with caplog.at_level(logging.ERROR, "sundog"):
        async with served(policy=policy, replicas=2, max_num_seqs=1) as (_, client):
            assert (await health(client)).status == "healthy"
            # The first goes to replica 0 and the second to replica 1, which sees no fourth step.
            answers = [await ask(client, name, 5) for name in "ab"]
            answers += [await ask(client, name, 5) for name in ("c",)]
            texts = [(await read(answer)).num_tokens for answer in answers]
            now = await health(client)
    assert texts == [5, 5, 5]
    assert (now.status, now.serves) == ("degraded", True)
    assert "replica 0: policy" in now.reason and "mine.py:Mine: rank of c raised ZeroDiv" in now.reason
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and "engine 0" in lines[0] and "Fcfs takes over" in lines[0]


@pytest.mark.long(keep=6, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_the_queue_is_ranked_anew_and_nobody_is_lost(tmp_path: Path, fault: str) -> None:
    """Requests are conserved, the laws of the state hold, and from then on the first come is first."""
    body, *_ = FAULTS[fault]
    for seed in range(num_cases(3)):
        policy = find_policy(written(tmp_path, body))
        assert isinstance(policy, GuardedPolicy)
        policy.fallback = Fcfs()
        failures: list[str] = []
        policy.on_failure.append(lambda error, told=failures: told.append(str(error)))  # type: ignore[misc]  # bound
        config = SchedulerConfig(
            max_num_seqs=12, max_model_len=280, num_gpu_blocks=40, max_num_batched_tokens=256
        )
        state = SchedulerState(config, policy, KVCache(config))
        rows = {row.request_id: row for row in random_trace(seed)}
        arriving, ended = list(rows.values()), 0
        while arriving or has_work(state):
            for row in arriving[:3]:
                state.arrive(
                    Submit(row.request_id, row.arrival_s, row.num_prompt_tokens, row.num_output_tokens)
                )
            del arriving[:3]
            batch, _ = plan(state)
            ended += len(update(state, StepResult(batch.step, (0.0,))))
            state.check()
            if failures:
                order = [request.submit.arrival_s for request in state.waiting if not request.num_preemptions]
                assert order == sorted(order)
        assert ended == len(rows) and len(failures) == 1


async def test_a_policy_that_keeps_clients_waiting_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Served, its third slow answer is its last; the answers of all requests are whole."""
    now_s = iter(range(0, 10**6, 2))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(now_s)))
    policy = find_policy(written(tmp_path, RANK + "0"))
    async with served(policy=policy, max_num_seqs=1) as (_, client):
        answers = [await ask(client, name, 5) for name in "abcd"]
        assert [(await read(answer)).num_tokens for answer in answers] == [5] * 4
        now = await health(client)
    assert now.status == "degraded"
    assert "mine.py:Mine: rank of c took 2.0 s, its call number 3 of more than 1 s" in now.reason


SLY = """return Sly(request.submit.num_prompt_tokens)

class Sly(int):
    def __lt__(self, other): raise ValueError("not now")
    __gt__ = __eq__ = __hash__ = __lt__
"""


async def test_an_answer_is_data_whatever_its_class_does(tmp_path: Path) -> None:
    """A number whose own comparisons raise is taken for the number that it is."""
    body = f"is_dynamic = True\n    def rank_key(self, request, view): {SLY}\n".replace(
        "\n\nclass", "\n    def rank(self, request, view): return Sly(3)\n\nclass", 1
    )
    async with served(policy=find_policy(written(tmp_path, body)), max_num_seqs=2) as (_, client):
        answers = [await ask(client, f"r{number}", 5) for number in range(12)]
        assert [(await read(answer)).num_tokens for answer in answers] == [5] * 12
        assert (await health(client)).status == "healthy"
