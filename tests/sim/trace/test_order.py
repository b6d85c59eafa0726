"""All trace readers return the rows of a file as requests, in the file's order."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from sundog.sim.files.run_files import REQUESTS
from sundog.sim.trace.jsonl_rows import UNITS
from sundog.sim.trace.read import read_trace
from tests import warm

Row = tuple[int, int, int]
"""Arrival in whole seconds, prompt and output tokens."""
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=12)


def csv(header: str, line: str) -> Callable[[list[Row]], str]:
    return lambda rows: "\n".join([header, *(line.format(*row) for row in rows)]) + "\n"


def objects(make: Callable[[Row], dict[str, object]], *first: object) -> Callable[[list[Row]], str]:
    return lambda rows: "".join(json.dumps(each) + "\n" for each in (*first, *map(make, rows)))


def words(count: int) -> str:
    return " ".join(["w"] * count)


def bench_result(rows: list[Row]) -> str:
    starts, prompts, outputs = zip(*rows, strict=True)
    return json.dumps({"input_lens": prompts, "output_lens": outputs, "start_times": starts})


BURST = "Model,Request tokens,Response tokens,Total tokens,Log Type"
WRITTEN: dict[str, Callable[[list[Row]], str]] = {
    "sundog": objects(
        lambda row: dict(zip(UNITS, row, strict=True)),
        {"format": "sundog-trace", "version": 1, "units": UNITS},
    ),
    "azure": csv("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:0{}.0000000,{},{}"),
    "bench": csv("arrived_at,num_prefill_tokens,num_decode_tokens", "{},{},{}"),
    "servegen": csv("arrived_at,input_tokens,output_tokens", "{},{},{}"),
    "burstgpt": csv(f"Timestamp,{BURST}", "{},GPT-4,{},{},9,API log"),
    "mooncake": objects(
        lambda row: {
            "timestamp": 1000 * row[0],
            "input_length": row[1],
            "output_length": row[2],
            "hash_ids": [],
        }
    ),
    "bailian": objects(
        lambda row: {
            "chat_id": 1,
            "parent_chat_id": -1,
            "timestamp": row[0],
            "input_length": row[1],
            "output_length": row[2],
            "hash_ids": list(range(row[1] // 16)),
        }
    ),
    "prompts": objects(lambda row: {"prompt": words(row[1]), "output_tokens": row[2]}),
    "sharegpt": objects(
        lambda row: {"conversations": [{"from": "x", "value": words(each)} for each in row[1:]]}
    ),
    "vllm-bench": bench_result,
}
WITHOUT_INSTANTS = ("prompts", "sharegpt")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One token a word."""
    made = Tokenizer(WordLevel({"w": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", [*WRITTEN, "run"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_equal_instants_keep_the_order_of_the_file(
    tmp_path: Path, tokenizer: str, name: str, rows: list[Row]
) -> None:
    """Also where readers sort by arrival; every row is a request with its own numbers of tokens."""
    path = tmp_path / "trace"
    if name != "vllm-bench":  # The results of a client are the one file whose rows need not be sorted.
        rows = sorted(rows, key=lambda row: row[0])
    if name == "run":
        path.mkdir(exist_ok=True)
        arrivals, prompts, outputs = zip(*rows, strict=True)
        columns = {
            "request_id": [f"q{i}" for i in range(len(rows))],
            "arrival_s": list(map(float, arrivals)),
            "num_prompt_tokens": prompts,
            "num_output_tokens": outputs,
            "tenant": [None] * len(rows),
        }
        pq.write_table(pa.table(columns), path / REQUESTS)
    else:
        path.write_text(WRITTEN[name](rows))
    trace = read_trace(str(path), tokenizer if name in WITHOUT_INSTANTS else None)
    assert trace.format == name
    found = [(each.arrival_s, each.num_prompt_tokens, each.num_output_tokens) for each in trace]
    assert [row[1:] for row in found] == [row[1:] for row in sorted(rows, key=lambda row: row[0])] or (
        name in WITHOUT_INSTANTS and [row[1:] for row in found] == [row[1:] for row in rows]
    )
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    for place in (1, 2):
        assert sum(row[place] for row in found) == sum(row[place] for row in rows)


def test_a_limit_takes_the_first_requests_of_a_bench_result(tmp_path: Path) -> None:
    """Through the command line: the first one of three at once, and not the shortest."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"input_lens": [900, 5, 300], "output_lens": [10, 20, 30]}))
    done = warm.run("sundog", "replay", str(path), "--limit", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["prompt_tokens"], found["output_tokens"]) == (900, 10)


def test_a_pause_of_no_time_is_taken(tmp_path: Path) -> None:
    """Through the command line: the next request of a session comes as soon as the last one has ended."""
    path = tmp_path / "trace.jsonl"
    rows: list[dict[str, object]] = [
        {"format": "sundog-trace", "version": 1, "units": UNITS},
        {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 3, "session": "s", "id": "a"},
        {"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 3, "session": "s", "after": "a", "pause_s": 0},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = warm.run("sundog", "replay", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_finished"] == 2
    rows[2]["pause_s"] = -1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = warm.run("sundog", "replay", str(path))
    assert done.returncode == 2 and "-1 is not a time of at least 0 s" in done.stderr
