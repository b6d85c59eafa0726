"""The gate between two commits: what fails it, and what noise does not."""

from itertools import cycle
from pathlib import Path

import pytest

from tests.bench.bench_gate import judge, run


@pytest.mark.parametrize(
    ("now_s", "is_slower"),
    [
        ([1.2, 1.2, 1.2, 1.2, 0.9], True),
        ([1.2, 1.2, 1.2, 1.05, 1.05], False),
        ([1.09] * 5, False),
        ([5.0, 0.9, 0.9, 0.9, 5.0], False),
    ],
)
def test_a_case_is_slower_by_more_than_a_tenth_in_four_rounds_of_five(
    now_s: list[float], is_slower: bool
) -> None:
    """A few rounds that another process disturbed decide nothing, however long they took."""
    assert judge([(1.0, each) for each in now_s]) is is_slower


def test_the_gate_names_the_cases_that_are_slower(capsys: pytest.CaptureFixture[str]) -> None:
    """Both sides run in turn, and one slow case among others is enough."""
    order: list[str] = []
    jitter = cycle([1.0, 1.04, 0.97])

    def take(source: Path, command: str) -> float:
        order.append(source.name)
        return next(jitter) * (1.5 if (source.name, command) == ("now", "b") else 1.0)

    slower = run(Path("before"), Path("now"), {"first": "a", "second": "b"}, take)
    assert slower == ["second"]
    assert order == ["before", "now"] * 10
    assert "second" in capsys.readouterr().out
