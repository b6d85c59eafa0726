"""User predictors and predictions in a trace, by every entry point."""

import json
from pathlib import Path

import httpx
import pytest

from sundog.actors.core.config import ConfigError
from sundog.actors.core.policies.guard import PolicyError
from sundog.actors.core.predictors import LengthPredictor
from sundog.actors.policy_file import find_own_predictor
from sundog.sim.oracle import find_predictor
from sundog.sim.replay import counting_tokens
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError, TraceRequest
from tests.core.policies.world import DOCS
from tests.live import EMULATED, live
from tests.sundog.test_runs import sundog

BY_PROMPT = f"{DOCS}/by_prompt.py:ByPrompt"
HEAD = (
    "from sundog.actors.core.predictors import Unanswered, LengthPredictor\n\n\n"
    "class Mine(LengthPredictor):\n"
)
LONG_FIRST = """
from sundog.actors.core.policies import Policy, Refusal, Request, View


class Says(Policy):
    def refuse(self, request: Request, view: View) -> Refusal:
        return Refusal(f"predicted {request.submit.predicted_tokens}")
"""


def own(tmp_path: Path, body: str) -> str:
    """A predictor whose `predict` has this body."""
    (tmp_path / "mine.py").write_text(f"{HEAD}    def predict(self, request):\n        {body}\n")
    return f"{tmp_path}/mine.py:Mine"


def test_a_predictor_of_ones_own_is_told_the_truth_in_a_simulation() -> None:
    """By parameters; the same for every seed where it draws nothing."""
    row = TraceRequest("r", 0.0, 100, 400)
    for insight, wanted in ((0, 50), (1, 400), (0.5, 225)):
        predictor = find_predictor(f"{BY_PROMPT}:per_token=0.5,insight={insight}", seed=3)
        assert counting_tokens(16, predictor)(row).predicted_tokens == wanted


def test_a_predictor_draws_from_the_seed(tmp_path: Path) -> None:
    """Same seed, same guess."""
    text = own(tmp_path, "return 1 + int(1000 * request.random())")
    rows = [TraceRequest(f"r{number}", 0.0, 100, 400) for number in range(9)]
    first, again, other = ([find_predictor(text, seed).predict(row) for row in rows] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("answer", ["0", "-3", "2**63", "'long'", "1.5", "True", "float('nan')", "1 / 0"])
def test_a_wrong_prediction_ends_a_simulation_with_its_name(tmp_path: Path, answer: str) -> None:
    """File, class, method, request and reason, in one line."""
    predictor = find_predictor(own(tmp_path, f"return {answer}"))
    with pytest.raises(PolicyError, match=r"predictor .*mine.py:Mine: predict of r (returned|raised)"):
        predictor.predict(TraceRequest("r", 0.0, 1, 1))


def test_an_error_of_a_predictor_has_the_line_of_its_own_file(tmp_path: Path) -> None:
    """Not that of the call: the file's line 6 divides by zero."""
    predictor = find_predictor(own(tmp_path, "return 1 / 0"))
    with pytest.raises(PolicyError, match=r"ZeroDivisionError: division by zero \(line 6\)$"):
        predictor.predict(TraceRequest("r", 0.0, 1, 1))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nowhere.py:Mine", "cannot be read"),
        ("crystal-ball", "unknown predictor"),
        (f"{DOCS}/lottery.py:Lottery", "is not a"),
    ],
)
def test_what_is_no_predictor_is_refused(text: str, reason: str) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError, match=reason):
        find_own_predictor(text)


def test_predictions_of_a_trace_survive_writing_and_reading(tmp_path: Path) -> None:
    """They go to the scheduler unless a predictor is asked for."""
    path, row = str(tmp_path / "trace.jsonl"), TraceRequest("r0000000", 0.0, 8, 5, predicted_tokens=7)
    write_trace(path, [row], provenance="test", hash_block_tokens=16)
    (read,) = read_trace(path)
    assert read.predicted_tokens == 7
    assert counting_tokens(16)(read).predicted_tokens == 7
    assert counting_tokens(16, find_predictor("oracle"))(read).predicted_tokens == 5


@pytest.mark.parametrize("wrong", ["0", "-1", "9223372036854775808", "true", '"many"', "null", "1.5"])
def test_a_prediction_that_is_no_count_is_refused(tmp_path: Path, wrong: str) -> None:
    """By file, line and column."""
    path = tmp_path / "trace.jsonl"
    units = {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"}
    header = json.dumps({"format": "sundog-trace", "version": 1, "units": units})
    row = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "predicted_tokens": %s}'
    path.write_text(f"{header}\n{row % wrong}\n")
    with pytest.raises(TraceError, match="line 2, column predicted_tokens"):
        list(read_trace(str(path)))


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_served_policy_sees_predictions(tmp_path: Path) -> None:
    """A client's own goes before the predictor's; one that fails is not asked again, and requests go on."""
    (tmp_path / "says.py").write_text(LONG_FIRST)
    policy = ("--policy", f"{tmp_path}/says.py:Says")
    text = own(tmp_path, "return 40 if request.tenant == 'a' else 1 / 0")
    with live(*EMULATED, *policy, "--predictor", text) as server:
        said = [
            server.complete(max_tokens=4, **terms).json()["error"]["message"]
            for terms in ({"tenant": "a"}, {"tenant": "a", "predicted_tokens": 9}, {}, {"tenant": "a"})
        ]
        assert said == ["predicted 40", "predicted 9", "predicted None", "predicted None"]
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_the_command_line_takes_a_predictor(tmp_path: Path) -> None:
    """And says what is wrong with one."""
    path = str(tmp_path / "trace.jsonl")
    write_trace(path, [TraceRequest("r0000000", 0.0, 8, 5)], provenance="test", hash_block_tokens=16)
    assert sundog("replay", path, "--predictor", BY_PROMPT).returncode == 0
    failed = sundog("replay", path, "--predictor", own(tmp_path, "return 0"))
    assert failed.returncode == 2 and "predict of r0000000 returned 0" in failed.stderr


def test_a_predictor_without_a_guess_predicts_none() -> None:
    """The base class, which is also what takes over."""
    assert LengthPredictor().predict(None) is None  # type: ignore[arg-type]  # it looks at nothing
