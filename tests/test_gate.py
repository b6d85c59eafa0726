"""The performance gate between two commits: what fails it, and its tolerance of noise."""

import json
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench_gate import Ran, cases, chosen, judge, main, ran, run
from tests.bench.replay_cases import TIMED, mooncake


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


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
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


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_trace_is_given_to_dynamo_with_its_arrivals_lengths_and_contents(tmp_path: Path) -> None:
    """Prompts of which nothing is known share no block."""
    table, named = tmp_path / "a.csv", tmp_path / "b.jsonl"
    table.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,600,8\n0.75,512,9\n2,3,1\n")
    row = {"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [7, 3]}
    named.write_text(json.dumps(row) + "\n")
    assert rows(mooncake(table, tmp_path / "c", most=2)) == [
        {"timestamp": 500.0, "input_length": 600, "output_length": 8, "hash_ids": [0, 1]},
        {"timestamp": 750.0, "input_length": 512, "output_length": 9, "hash_ids": [2]},
    ]
    assert rows(mooncake(named, tmp_path / "d")) == [row]


def test_both_simulators_get_the_same_limits_and_fleet() -> None:
    """Blocks, sequences, tokens a step, and as many engines."""
    for case in TIMED.values():
        options, given = case.options(), case.dynamo()
        engines = [each["engine"] for each in given.values() if isinstance(each, dict)]
        assert len(engines) == (2 if case.num_each_pool else 1)
        for engine in engines:
            assert options[options.index("--num-gpu-blocks") + 1] == str(engine["num_gpu_blocks"])
            assert options[options.index("--max-num-seqs") + 1] == str(engine["max_num_seqs"])
            tokens = options[options.index("--max-num-batched-tokens") + 1]
            assert tokens == str(engine["max_num_batched_tokens"])
        if case.num_each_pool:
            assert given["num_prefill_workers"] == given["num_decode_workers"] == case.num_each_pool
        else:
            assert given["num_workers"] == case.replicas
            assert ("--replicas" in options) == (case.replicas > 1)


def test_without_a_commit_and_without_dynamo_there_is_nothing_to_compare_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And a Python without Dynamo is named."""
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "--dynamo PYTHON" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="has no ai-dynamo-runtime: pip install it there"):
        main(["--dynamo", sys.executable])
