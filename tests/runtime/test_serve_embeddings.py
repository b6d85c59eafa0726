"""POST /v1/embeddings on a live server, with OpenAI's own client."""

import base64
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import PreTrainedModel

from tests import warm
from tests.runtime.embedders import as_sentence_transformer, make_embedder, states
from tests.runtime.test_serve import START_S, Server, sundog_serve

TEXTS = ["w1 w2 w3", "w5", "w9 w8 w7 w6 w5 w4"]
IDS = [[1, 5, 6, 7, 2], [1, 9, 2], [1, 13, 12, 11, 10, 9, 8, 2]]
BROKEN = 255
"""A token that no vector can be made of."""


@dataclass
class Embedder:
    server: Server
    model: PreTrainedModel

    def ask(self, **body: object) -> httpx.Response:
        return httpx.post(f"{self.server.url}/v1/embeddings", json=body)

    def vector(self, prompt: list[int]) -> np.ndarray:
        """By transformers' own forward: the mean, scaled."""
        mean = states(self.model, prompt).mean(0)
        return torch.nn.functional.normalize(mean, dim=0).numpy()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    folder = tmp_path_factory.mktemp("embedder") / "small-bert"
    model = make_embedder("bert", folder, matryoshka_dimensions=[16, 32])
    as_sentence_transformer(folder, "mean_tokens", "Normalize", max_tokens=64)
    model.embeddings.word_embeddings.weight.data[BROKEN] = torch.nan  # type: ignore[union-attr]
    model.save_pretrained(folder)
    with sundog_serve(str(folder)) as server:
        yield Embedder(server, model)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("form", [TEXTS, IDS], ids=["texts", "token ids"])
def test_vectors_are_the_models_own(embedder: Embedder, form: object) -> None:
    """The client asks for base64 by itself; usage counts what the tokenizer adds."""
    answer = embedder.server.client.embeddings.create(model="small-bert", input=form)  # type: ignore[arg-type]
    assert [each.index for each in answer.data] == [0, 1, 2]
    for each, prompt in zip(answer.data, IDS, strict=True):
        np.testing.assert_allclose(each.embedding, embedder.vector(prompt), atol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, IDS))
    assert answer.model == "small-bert"


def test_numbers_and_base64_are_the_same_vector(embedder: Embedder) -> None:
    """One text, one list of ids; and the keys of vLLM's answer."""
    number = embedder.ask(input=TEXTS[0]).json()
    assert list(number) == ["id", "object", "created", "model", "data", "usage"]
    assert number["id"].startswith("embd-")
    text = embedder.ask(input=IDS[0], encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == number["data"][0]["embedding"]


def test_many_at_once_are_what_each_is_alone(embedder: Embedder) -> None:
    """Through the queue: batches of whatever waits together."""
    alone = embedder.ask(input=TEXTS[2]).json()["data"][0]["embedding"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: embedder.ask(input=TEXTS * 5).json(), range(8)))
    for answer in answers:
        for each in answer["data"][2::3]:
            np.testing.assert_allclose(each["embedding"], alone, atol=1e-5)


def test_a_vector_that_is_no_number_fails_alone(embedder: Embedder) -> None:
    """Beside others that are asked for at the same time."""
    with ThreadPoolExecutor(8) as pool:
        inputs = [[BROKEN if index == 3 else 5, 6] for index in range(8)]
        answers = list(pool.map(lambda ids: embedder.ask(input=ids), inputs))
    assert [answer.status_code for answer in answers] == [200] * 3 + [500] + [200] * 4
    assert "its vector has something other than numbers" in answers[3].json()["error"]["message"]


def test_shorter_vectors_are_scaled_anew(embedder: Embedder) -> None:
    """Those lengths that the model was trained for."""
    whole = embedder.vector(IDS[0])[:16]
    answer = embedder.server.client.embeddings.create(model="small-bert", input=TEXTS[0], dimensions=16)
    np.testing.assert_allclose(answer.data[0].embedding, whole / np.linalg.norm(whole), atol=1e-5)
    raw = embedder.ask(input=TEXTS[0], use_activation=False).json()["data"][0]["embedding"]
    np.testing.assert_allclose(raw, states(embedder.model, IDS[0]).mean(0), atol=1e-5)


def test_a_prompt_may_fill_the_context_and_is_cut_between_its_special_tokens(embedder: Embedder) -> None:
    """62 words and two tokens around them fit; one more does not, unless it is cut."""
    words = " ".join(["w3"] * 63)
    assert embedder.ask(input=words[3:]).json()["usage"]["prompt_tokens"] == 64
    refused = embedder.ask(input=words).json()["error"]
    assert (
        "maximum context length is 64 tokens, but the prompt has at least 65: shorten it"
        in refused["message"]
    )
    assert refused["param"] == "input"
    cut = embedder.ask(input=words, truncate_prompt_tokens=-1).json()
    np.testing.assert_allclose(cut["data"][0]["embedding"], embedder.vector([1, *[7] * 62, 2]), atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("dimensions", 17, "give one of 16, 32"),
        ("dimensions", 0, "greater than or equal to 1"),
        ("encoding_format", "hex", "'float' or 'base64'"),
        ("input", [], "must be a string, a list of strings"),
        ("input", [["w1"]], "something other than token ids"),
        ("input", [256], "token id 256 is not in the vocabulary"),
        ("messages", [{"role": "user", "content": "x"}], "messages = "),
        ("embed_dtype", "float16", "embed_dtype = "),
        ("model", "other", "does not exist"),
    ],
)
def test_a_mistake_is_refused_by_its_field(
    embedder: Embedder, field: str, value: object, reason: str
) -> None:
    answer = embedder.ask(**{"input": "w1", field: value})
    assert answer.status_code == (404 if field == "model" else 400)
    assert reason in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"].removeprefix("body.") == field


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_text_is_refused_by_a_model_of_vectors(embedder: Embedder, path: str) -> None:
    body = {"prompt": "w1", "messages": [{"role": "user", "content": "w1"}]}
    answer = httpx.post(f"{embedder.server.url}/v1/{path}", json=body)
    assert answer.status_code == 404
    assert "The model does not support" in answer.json()["error"]["message"]
    assert "/v1/embeddings" in answer.json()["error"]["message"]


def test_vectors_are_refused_by_a_model_of_text_and_a_simulated_one() -> None:
    with sundog_serve("--gpu", "h100") as server, pytest.raises(openai.NotFoundError) as caught:
        server.client.embeddings.create(model="m", input="x")
    assert "does not support Embeddings API: it generates text" in str(caught.value)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--pooler-config", '{"pooling_type": "MEAN"}'), "--pooler-config is for models that make vectors"),
        (("--runner", "pooling", "--enable-lora"), "--enable-lora applies only to models that generate text"),
        (("MASKED",), "for its vectors, add --runner pooling"),
    ],
)
def test_a_mistake_at_the_start_is_one_line(arguments: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    if arguments == ("MASKED",):
        make_embedder("bert", tmp_path)
        config = (tmp_path / "config.json").read_text()
        (tmp_path / "config.json").write_text(config.replace("BertModel", "BertForMaskedLM"))
        arguments = (str(tmp_path),)
    done = warm.run("sundog", "serve", "--port", "0", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_what_measures_generation_refuses_vectors(tmp_path: Path) -> None:
    """By the model's name, before torch is imported, and no file is left."""
    folder = tmp_path / "small-bert"
    make_embedder("bert", folder)
    as_sentence_transformer(folder, "mean_tokens", max_tokens=64)
    command = [sys.executable, "-m", "sundog", "calibrate", str(folder), "-o", "x.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 2
    assert done.stderr.startswith("sundog: small-bert is an embedding model: ")
    assert len(done.stderr.strip().splitlines()) == 1 and "generate text" in done.stderr
    assert not Path("x.toml").exists()
