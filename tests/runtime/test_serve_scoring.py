"""/score and /rerank on a live server of a model that makes vectors."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.runtime.embedders import as_sentence_transformer, make_embedder, states
from tests.runtime.test_serve import Server, sundog_serve

QUERY, OTHERS = [1, 5, 6, 2], {"w3": [1, 7, 2], "w1 w2": [1, 5, 6, 2], "w2 w4": [1, 6, 8, 2]}
"""Of "w1 w2", and of three documents."""
Embedder = tuple[Server, PreTrainedModel]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    """Vectors are not scaled to length 1: the angle is what counts."""
    folder = tmp_path_factory.mktemp("embedder") / "small-bert"
    model = make_embedder("bert", folder)
    as_sentence_transformer(folder, "mean_tokens", max_tokens=16)
    with sundog_serve(str(folder), "--api-key", "k") as server:
        yield server, model


def ask(embedder: Embedder, path: str, key: str = "k", **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{embedder[0].url}{path}", json=body, headers=headers, timeout=30)


def cosine(embedder: Embedder, left: list[int], right: list[int]) -> float:
    """By transformers' own forward: of the means."""
    a, b = (states(embedder[1], ids).mean(0) for ids in (left, right))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_one_text_is_compared_with_each(embedder: Embedder, names: tuple[str, str], path: str) -> None:
    """And each text is read once."""
    answer = ask(embedder, path, **dict(zip(names, ("w1 w2", list(OTHERS)), strict=True))).json()
    found = [each["score"] for each in answer["data"]]
    np.testing.assert_allclose(found, [cosine(embedder, QUERY, ids) for ids in OTHERS.values()], atol=1e-5)
    assert [each["index"] for each in answer["data"]] == [0, 1, 2] and answer["object"] == "list"
    assert {each["object"] for each in answer["data"]} == {"score"} and answer["id"].startswith("score-")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 4 + 3 + 4 + 4


def test_as_many_are_compared_in_pairs(embedder: Embedder) -> None:
    answer = ask(embedder, "/score", text_1=["w3", "w1 w2"], text_2=["w2 w4", "w1 w2"]).json()
    pairs = [cosine(embedder, OTHERS["w3"], OTHERS["w2 w4"]), 1.0]
    np.testing.assert_allclose([each["score"] for each in answer["data"]], pairs, atol=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_in_the_order_of_their_likeness(embedder: Embedder, path: str) -> None:
    """The same text first; `top_n` shows the first ones alone, and 0 all."""
    wanted = sorted(
        ((cosine(embedder, QUERY, ids), index) for index, ids in enumerate(OTHERS.values())), reverse=True
    )
    documents = list(OTHERS)
    for top_n, shown in ((0, 3), (2, 2), (9, 3)):
        answer = ask(embedder, path, query="w1 w2", documents=documents, top_n=top_n).json()
        found = [(each["relevance_score"], each["index"]) for each in answer["results"]]
        np.testing.assert_allclose(found, wanted[:shown], atol=1e-5)
        assert [each["document"] for each in answer["results"]] == [
            {"text": documents[index], "multi_modal": None} for _, index in found
        ]
        assert answer["usage"] == {"prompt_tokens": 15, "total_tokens": 15}


def test_a_long_text_is_refused_or_cut(embedder: Embedder) -> None:
    """14 words and two tokens around them fit; the refusal names the side."""
    long = " ".join(["w3"] * 20)
    refused = ask(embedder, "/score", text_1="w3", text_2=["w3", long])
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "text_2"
    assert "maximum context length is 16 tokens" in refused.json()["error"]["message"]
    cut = ask(embedder, "/score", text_1="w3", text_2=long, truncate_prompt_tokens=-1).json()
    wanted = cosine(embedder, OTHERS["w3"], [1, *[7] * 14, 2])
    assert cut["data"][0]["score"] == pytest.approx(wanted, abs=1e-5)


SIDES: dict[str, Any] = {"text_1": "w1", "text_2": "w2"}
RERANKED: dict[str, Any] = {"query": "w1", "documents": ["w2"]}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("path", "body", "param", "reason"),
    [
        ("/score", {}, "text_1", "two sides"),
        ("/score", {"text_1": "w1", "documents": "w1"}, "text_1", "two sides"),
        (
            "/score",
            {"text_1": ["w1", "w2"], "text_2": ["w1"] * 3},
            "text_1",
            "give one text, or the same number",
        ),
        ("/score", {"text_1": "w1", "text_2": []}, "text_2", "not empty"),
        ("/score", {"text_1": [1, 2], "text_2": "w1"}, "text_1", "list of strings"),
        ("/score", SIDES | {"data_1": "w3", "data_2": "w3"}, "text_1", "leave out text_1"),
        ("/score", {"queries": "w1", "documents": "w1", "items": "w2"}, "items", "leave out items"),
        ("/score", SIDES | {"instruction": "x"}, "instruction", "not supported"),
        ("/score", SIDES | {"max_tokens_per_doc": 3}, "max_tokens_per_doc", "not supported"),
        ("/score", SIDES | {"model": "other"}, "model", "does not exist"),
        ("/rerank", {"documents": ["w1"]}, "query", "required"),
        ("/rerank", {"query": "w1"}, "documents", "required"),
        ("/rerank", RERANKED | {"query": ["w1"]}, "query", "must be a string"),
        ("/rerank", RERANKED | {"documents": [{"text": "w1"}]}, "documents", "list of strings"),
        ("/rerank", RERANKED | {"documents": ["w1"] * 1025}, "documents", "at most 1024"),
        ("/rerank", RERANKED | {"top_n": -1}, "top_n", "greater than or equal to 0"),
        ("/rerank", RERANKED | {"top_n": "2"}, "top_n", "integer"),
    ],
)
def test_a_mistake_is_refused_by_its_field(
    embedder: Embedder, path: str, body: dict[str, Any], param: str, reason: str
) -> None:
    answer = ask(embedder, path, **body)
    assert answer.status_code == (404 if param == "model" else 400)
    error = answer.json()["error"]
    assert reason in error["message"] and error["param"].removeprefix("body.") == param


@pytest.mark.parametrize("path", ["/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_key_is_needed_wherever_they_are(embedder: Embedder, path: str) -> None:
    assert ask(embedder, path, key="other", **SIDES, **RERANKED).status_code == 401


def test_a_model_of_text_does_not_compare() -> None:
    with sundog_serve("--gpu", "h100") as server:
        for path, body in (("/score", SIDES), ("/rerank", RERANKED)):
            answer = httpx.post(f"{server.url}{path}", json=body, timeout=30)
            assert answer.status_code == 404 and "it generates text" in answer.json()["error"]["message"]
