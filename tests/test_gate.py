"""The gate between two commits: what fails it, and what noise does not."""

from itertools import cycle
from pathlib import Path

import pytest

from tests.bench.bench_gate import Ran, cases, chosen, judge, main, ran, run


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


@pytest.mark.parametrize(("now_s", "is_slower"), [([1.2] * 3, None), ([1.2] * 4, True), ([0.9, 1.0], False)])
def test_a_case_is_decided_as_soon_as_no_round_can_change_it(
    now_s: list[float], is_slower: bool | None
) -> None:
    """Four slow rounds are enough, and two others."""
    assert judge([(1.0, each) for each in now_s]) is is_slower


def test_the_gate_names_the_cases_that_are_slower(capsys: pytest.CaptureFixture[str]) -> None:
    """Both sides go first in turn, and one slow case among others is enough."""
    order: list[str] = []
    jitter = cycle([1.0, 1.04, 0.97])

    def take(source: Path, command: str) -> Ran:
        order.append(source.name)
        is_slow = (source.name, command) == ("now", "b")
        return Ran(next(jitter) * (1.5 if is_slow else 1.0), "same" if command == "a" else source.name)

    slower = run(Path("before"), Path("now"), {"first": "a", "second": "b"}, take)
    assert slower == ["second"]
    turns = ["before", "now", "now", "before"]
    assert order == turns + turns * 2
    first, second = capsys.readouterr().out.splitlines()
    assert "SLOWER" not in first and "bytes" not in first
    assert second.endswith("SLOWER, other bytes")


def test_only_cases_that_there_are_can_be_chosen(tmp_path: Path) -> None:
    """A misspelt one is named, with those that are known."""
    known = cases(tmp_path)
    assert list(chosen(known, "calm,kept")) == ["calm", "kept"] and chosen(known, None) == known
    with pytest.raises(SystemExit, match="there is no clam; known: start, calm"):
        chosen(known, "clam")


def test_what_a_command_keeps_is_compared_too(tmp_path: Path) -> None:
    """The same run twice gives the same bytes in its folder, and another run others."""
    root = Path(__file__).parents[1]
    command = cases(tmp_path)["kept"].replace("--limit 2000", "--limit 3")
    once, again = ran(root, command), ran(root, command)
    assert once.digest == again.digest and once.cpu_s > 0
    assert ran(root, command.replace("--limit 3", "--limit 4")).digest != once.digest


def test_a_commit_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is copied or compiled."""
    with pytest.raises(SystemExit, match="2"):
        main(["no-such-commit"])
    assert "git knows no commit no-such-commit" in capsys.readouterr().err
