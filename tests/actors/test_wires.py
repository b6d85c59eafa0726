"""Typed messages: sending one that its receiver does not handle fails type-checking."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_mypy_follows_every_wire_and_refuses_wrong_messages_and_answers() -> None:
    """`wires.py` names each error where it must be; one more or one less is an error."""
    mypy = pytest.importorskip("mypy.api", reason="mypy is not installed")
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--explicit-package-bases"]
    output, errors, status = mypy.run([*settings, str(ROOT / "tests/actors/wires.py")])
    assert status == 0, output + errors


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_nothing_that_is_sent_is_of_any_type() -> None:
    """`object` takes whatever comes, and a TypeVar says what it has in common: a reader can follow both."""
    wrong = []
    for path in sorted((ROOT / "actors").rglob("*.py")):
        names = (node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name))
        if "Any" in names:
            wrong.append(str(path.relative_to(ROOT)))
    known = [
        "actors/api/bodies/parsing.py",  # bodies of other makers, which no actor is sent
        "actors/config/cost_values.py",  # the values of an option, each checked
        "actors/core/blocks/runs.py",  # numbers of blocks, which the compiler would take apart
        "actors/core/policies/shown.py",  # what a policy is shown, which hides what it wraps
        "actors/core/queue/view.py",  # the memory of a policy, which only its author knows
        "actors/core/records.py",  # the decorator of records, whatever they hold
        "actors/core/routers/policy.py",  # the same
        "actors/core/scalers.py",  # the settings of a user's scaler, each checked
        "actors/http/quart_app.py",  # ASGI's scopes and events, whose values are of many types
        "actors/kernel/clock.py",  # entries of a clock's heap, which the compiler would take apart
    ]
    assert wrong == known
