"""Traces of texts and recorded runs, and what no reader may do with damaged files."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from sundog.sim.figures.metrics import summarize
from sundog.sim.replay import replay
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError, TraceRequest
from tests.actors.fakes import engine_config
from tests.sim.record.runs import write_run
from tests.sim.toy import CAPACITY, COST

WORDS = " ".join(f"w{i}" for i in range(40))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One token a word."""
    vocabulary = {word: i for i, word in enumerate([*WORDS.split(), "?"])}
    made = Tokenizer(WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


def talk(*texts: str) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": "human", "value": text} for text in texts]}


def test_sharegpt_counts_question_and_answer(tmp_path: Path, tokenizer: str) -> None:
    """As a list or a line each; the first two turns; equal beginnings are named alike."""
    talks = [talk(WORDS, "w1 w2 w3"), talk("w1"), talk(WORDS + " w1", "w5", "w6")]
    for text in (json.dumps(talks), json.dumps(talks, indent=1), "\n".join(map(json.dumps, talks))):
        path = tmp_path / "talks.json"
        path.write_text(text)
        first, second = read_trace(str(path), tokenizer)
        assert (first.num_prompt_tokens, first.num_output_tokens) == (40, 3)
        assert (second.num_prompt_tokens, second.num_output_tokens) == (41, 1)
        assert first.hash_ids == second.hash_ids == (0, 1)
        assert (first.arrival_s, first.hash_block_tokens) == (0.0, 16)


def test_prompts_come_with_a_number_or_an_answer(tmp_path: Path, tokenizer: str) -> None:
    """JSON lines; without a tokenizer the way out is named."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "w1 w2", "output_tokens": 7}\n{"prompt": "w1", "completion": "w2"}')
    assert [row[2:4] for row in read_trace(str(path), tokenizer)] == [(2, 7), (1, 1)]
    with pytest.raises(TraceError, match="give --tokenizer"):
        list(read_trace(str(path)))
    with pytest.raises(TraceError, match="no such tokenizer"):
        list(read_trace(str(path), str(tmp_path / "none.json")))
    with pytest.raises(TraceError, match="not a tokenizer"):
        list(read_trace(str(path), str(path)))
    path.write_text('{"prompt": "w1 w2"}\n')
    with pytest.raises(TraceError, match="column completion: missing"):
        list(read_trace(str(path), tokenizer))


def test_a_detailed_bench_result_is_a_trace(tmp_path: Path) -> None:
    """Lengths and starts, sorted and from 0; on one line or many."""
    values = {"input_lens": [5, 6], "output_lens": [7, 8], "start_times": [101.5, 100.0]}
    for indent in (None, 2):
        path = tmp_path / "result.json"
        path.write_text(json.dumps({**values, "ttfts": [0.1, 0.2]}, indent=indent))
        rows = list(read_trace(str(path)))
        assert [row[1:4] for row in rows] == [(0.0, 6, 8), (1.5, 5, 7)]
    path.write_text(json.dumps({**values, "start_times": [1.0]}))
    with pytest.raises(TraceError, match="2 input_lens, 2 output_lens and 1 start_times"):
        list(read_trace(str(path)))
    path.write_text(json.dumps({"input_lens": [5], "output_lens": [0]}))
    with pytest.raises(TraceError, match="no request was answered"):
        list(read_trace(str(path)))


def test_a_run_is_a_trace_of_itself(tmp_path: Path) -> None:
    """Its requests again, with the lengths that they came to."""
    rows = [TraceRequest(f"q{i}", i * 0.1, 20 + i, 5 + i, tenant="t") for i in range(20)]
    config = engine_config(max_model_len=160, num_gpu_blocks=CAPACITY.num_blocks)
    recorder = replay(rows, config, COST, CAPACITY)
    write_run(tmp_path / "run", recorder, summarize(recorder), {})
    assert list(read_trace(str(tmp_path / "run"))) == rows


SEEDS: dict[str, bytes] = {
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    b"2023-11-16 18:15:50.9951690,396,109\n",
    "bench": b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.5,11,3\n",
    "servegen": b"arrived_at,input_tokens,output_tokens,reason_ratio\n0.5,10,2,0.3\n1.5,9,3,0.1\n",
    "burst": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n6,GPT-4,3,4,7,API log\n",
    "mooncake": b'{"timestamp": 27482, "input_length": 600, "output_length": 5, "hash_ids": [4, 7]}'
    b'\n{"timestamp": 27483, "input_length": 60, "output_length": 2, "hash_ids": []}\n',
    "agentic": b'{"request_id": "a", "session_id": "s", "timestamp": 5, "input_length": 600,'
    b' "output_length": 5, "hash_ids": [4, 7, 8]}\n{"request_id": "b", "session_id": "t",'
    b' "wait_for": ["a"], "delay": 5.5, "tool_wait_ms": 7, "input_length": 60, "output_length": 2}\n',
    "bailian": b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 6.1, "input_length": 17,'
    b' "output_length": 2, "type": "text", "turn": 1, "hash_ids": [1, 2]}\n',
    "own": b'{"format": "sundog-trace", "version": 1, "units": {"arrival_s": "seconds",'
    b' "prompt_tokens": "tokens", "output_tokens": "tokens"}, "hash_block_tokens": 16}\n'
    b'{"arrival_s": 0.5, "prompt_tokens": 33, "output_tokens": 4, "hash_ids": [1, 2, 3],'
    b' "id": "a", "session": "s", "tenant": "t", "priority": 2, "slo_ttft_s": 0.5}\n'
    b'{"arrival_s": 1.5, "prompt_tokens": 3, "output_tokens": 4, "session": "s", "after": "a",'
    b' "pause_s": 1.0}\n',
    "sharegpt": json.dumps([talk(WORDS, "w1"), talk("w1 w2", "w1")], indent=1).encode(),
    "prompts": b'{"prompt": "w1 w2", "output_tokens": 7}\n{"prompt": "w1", "completion": "w2"}\n',
    "result": b'{"input_lens": [5, 6], "output_lens": [7, 8], "start_times": [1.5, 1.0]}\n',
}
HOLD_TEXTS = {"sharegpt", "prompts"}
POISON = [
    b"NaN",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"\x00",
    b"\xff\xfe",
    b"",
    b'"',
    b"{",
    b"]",
    b"null",
    b"true",
    b"1.5",
    b"-0",
    b"1_0",
    b"0x1",
    b"Infinity",
    b"\xf0\x9f\x92\xa9",
    b"\n",
    b",",
    b"[[[[",
    b'{"a": 1}',
    b"2023-13-45 99:99:99",
    b"\r",
    b"\xc2\xa0",
    b"\xd9\xa3",
]


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Cut, reordered, poisoned, doubled, in another encoding, zipped and cut."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(9):
            case 0:
                data = data[:place]
            case 1:
                lines = data.split(b"\n")
                rng.shuffle(lines)
                data = b"\n".join(lines)
            case 2:
                data = data[:place] + rng.choice(POISON) + data[place:]
            case 3:
                words = data.replace(b":", b",").split(b",")
                data = data.replace(rng.choice(words) or b"1", rng.choice(POISON), 1)
            case 4:
                data = data + data
            case 5:
                data = data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32"]))
            case 6:
                zipped = gzip.compress(data, mtime=0)
                data = zipped[: rng.randrange(len(zipped) + 1)]
            case 7:
                data = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
            case 8:
                data = b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")
    return data


@pytest.mark.long(keep=3, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("name", SEEDS)
def test_damage_is_refused_or_reads_as_good_rows(tmp_path: Path, tokenizer: str, name: str) -> None:
    """400 damaged files of each format: a TraceError with file and line, or rows that may run."""
    rng, path, num_refused = random.Random(name), tmp_path / "t", 0
    counts = tokenizer if name in HOLD_TEXTS else None
    assert read_in(path, SEEDS[name], counts)
    for _ in range(400):
        try:
            rows = read_in(path, damaged(rng, SEEDS[name]), counts)
        except TraceError as error:
            assert f"{path}, line " in str(error) or "tokenizer" in str(error)
            num_refused += 1
            continue
        previous_s = 0.0
        for row in rows:
            assert previous_s <= row.arrival_s < 2**22
            assert row.num_prompt_tokens >= 1 and row.num_output_tokens >= 1
            previous_s = row.arrival_s
    assert num_refused > 100


def read_in(path: Path, data: bytes, tokenizer: str | None) -> list[TraceRequest]:
    path.write_bytes(data)
    return list(read_trace(str(path), tokenizer))
