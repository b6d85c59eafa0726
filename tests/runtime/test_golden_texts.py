"""Sampling fields change the embedded model's texts as recorded with vLLM 0.32."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.runtime.test_serve import sundog_serve

GOLDEN = Path(__file__).parent.parent / "golden" / "texts.jsonl.gz"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    arguments = ("--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "8")
    with sundog_serve(*arguments) as server, httpx.Client(base_url=f"{server.url}/v1", timeout=60) as found:
        yield found


@pytest.mark.long(reason="hundreds of answers to compare with vLLM's")
def test_texts_ends_and_refusals_are_vllms(client: httpx.Client) -> None:
    """Penalties, biases, bans, allowed tokens, stops, limits, filters, grammars and chats, greedily.

    Where vLLM writes a run of blanks between tokens of JSON, the answer is the same up to its first blank:
    no more than one is allowed here (docs/structured.md), so that the answer ends.
    """
    wrong, num_blank = [], 0
    for line in gzip.decompress(GOLDEN.read_bytes()).decode().splitlines():
        case = json.loads(line)
        answer = client.post(case["path"], json=case["body"])
        if "response_format" in case["body"] and (run := re.search(r"\s\s", case["choices"][0]["text"])):
            (choice,), num_blank = _said(answer.json())[0], num_blank + 1
            assert choice["text"].startswith(case["choices"][0]["text"][: run.start() + 1])
            assert choice["finish_reason"] == "stop"
            continue
        if answer.status_code != case["status"] or (
            case["status"] == 200 and _said(answer.json()) != (case["choices"], case["usage"])
        ):
            wrong.append(f"{case} against {answer.text}")
    assert not wrong, "\n".join(wrong)
    assert num_blank <= 1


def _said(answer: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """What vLLM's answers were reduced to."""
    choices = [
        {
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            **{name: choice[name] for name in ("token_ids", "finish_reason", "stop_reason")},
        }
        for choice in answer["choices"]
    ]
    usage = answer["usage"]
    return choices, [usage["prompt_tokens"], usage["completion_tokens"]]
