"""Adapters that a real engine loads and unloads while it runs, as vLLM does."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sundog.runtime.serve import EMBEDDED_MODEL
from tests.live import START_S, Live, Stream, live
from tests.runtime.adapters import make_adapter

PROMPT = [1, *range(20, 60)]
TARGETS = ("q_proj", "v_proj", "down_proj")
SERVE = ("sundog", "serve", "--port", "0", "--dtype", "float32", "--enable-lora", "--debug")


def said(server: Live, model: str, **fields: object) -> str:
    answer = server.complete(PROMPT, model=model, max_tokens=12, ignore_eos=True, **fields)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def post(server: Live, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=START_S)


def load(server: Live, name: str, folder: Path, **body: object) -> httpx.Response:
    return post(server, "load_lora_adapter", lora_name=name, lora_path=str(folder), **body)


def unload(server: Live, name: str) -> httpx.Response:
    return post(server, "unload_lora_adapter", lora_name=name)


@dataclass
class Hot:
    server: Live
    model: PreTrainedModel
    folder: Path
    expected: dict[str, str]
    """What a server says that had the adapters from its start."""

    @contextmanager
    def loaded(self, **names: str) -> Iterator[None]:
        """Load adapters of these folders under these names for one test; it may unload them itself."""
        for name, folder in names.items():
            assert self.server.complete(model=name).status_code == 404
            assert load(self.server, name, self.folder / folder).status_code == 200
        yield
        for name in names:
            assert unload(self.server, name).status_code in (200, 404)


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hot]:
    """Two replicas without an adapter, and the answers of a server that was given both at its start."""
    folder = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    for seed, name in enumerate("ab"):
        make_adapter(model, folder / name, TARGETS, seed=seed)
    modules = [part for name in "ab" for part in ("--lora-modules", f"{name}={folder / name}")]
    with live(*SERVE, *modules) as cold:
        expected = {name: said(cold, name) for name in ("sundog-tiny", "a", "b")}
        assert load(cold, "c", folder / "a").status_code == 404
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "true")
        with live(*SERVE, "--replicas", "2") as server:
            yield Hot(server, model, folder, expected)
            assert "clients may load and unload adapters" in "".join(server.said)
            assert server.stop() == 0


def test_an_adapter_that_comes_later_answers_as_one_given_at_the_start(hot: Hot) -> None:
    """On each replica, token for token, twice: then from blocks of its own; and the model stays as it was."""
    assert said(hot.server, "sundog-tiny") == hot.expected["sundog-tiny"]
    assert len(set(hot.expected.values())) == 3
    with hot.loaded(a="a", b="b"):
        for _ in range(4):
            assert {name: said(hot.server, name) for name in hot.expected} == hot.expected


def test_an_adapter_is_there_again_after_its_engine_was_killed(hot: Hot) -> None:
    """Whichever engine answers."""
    with hot.loaded(a="a"):
        engines = hot.server.below("sundog engine ")
        for engine in engines:
            engine.kill()
        hot.server.until_replaced(engines)
        for _ in range(4):
            assert said(hot.server, "a") == hot.expected["a"]


def test_what_runs_when_its_adapter_is_unloaded_is_finished(hot: Hot) -> None:
    """With the adapter's own tokens, also while others come and go; the name is free at once."""
    with hot.loaded(b="b"):
        whole = Stream(hot.server, prompt=PROMPT, model="b", max_tokens=200, ignore_eos=True).text
        stream = Stream(hot.server, prompt=PROMPT, model="b", max_tokens=200, ignore_eos=True)
        stream.begun.wait()
        assert unload(hot.server, "b").status_code == 200
        assert hot.server.complete(model="b").status_code == 404
        with hot.loaded(c="a"):
            assert said(hot.server, "c") == hot.expected["a"]
            assert stream.text == whole


def test_an_adapter_that_is_replaced_in_place_answers_anew(hot: Hot, tmp_path: Path) -> None:
    """From the same folder, too: nothing of the older one is found in the prefix cache."""
    folder = shutil.copytree(hot.folder / "a", tmp_path / "changing")
    assert load(hot.server, "d", folder).status_code == 200
    assert said(hot.server, "d") == hot.expected["a"]
    shutil.copytree(hot.folder / "b", folder, dirs_exist_ok=True)
    assert load(hot.server, "d", folder).status_code == 400
    assert load(hot.server, "d", folder, load_inplace=True).status_code == 200
    for _ in range(4):
        assert said(hot.server, "d") == hot.expected["b"]


def test_a_folder_that_cannot_be_served_is_one_400(hot: Hot, tmp_path: Path) -> None:
    """It says why, nothing is loaded, and an adapter that it should have replaced is still there."""
    (wide := tmp_path / "wide").mkdir()
    make_adapter(hot.model, wide, TARGETS, rank=32)
    (torn := tmp_path / "torn").mkdir()
    make_adapter(hot.model, torn, TARGETS)
    weights = torn / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    other = shutil.copytree(hot.folder / "a", tmp_path / "other")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    liar = shutil.copytree(hot.folder / "a", tmp_path / "liar")
    lies = (liar / "adapter_model.safetensors").read_bytes().replace(b'"dtype":"F32"', b'"dtype":"F99"', 1)
    (liar / "adapter_model.safetensors").write_bytes(lies)
    pickled = shutil.copytree(hot.folder / "a", tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").unlink()
    (pickled / "adapter_model.bin").write_bytes(b"cos\nabort\n(tR.")
    for folder, reason in (
        (tmp_path / "nowhere", "has no adapter_config.json"),
        (liar, "is stored as F99, no type of the format"),
        (pickled, "(only adapter_model.bin, which runs code as it is read)"),
        (wide, "--max-lora-rank 32"),
        (torn, "torn"),
        (other, "use_dora"),
    ):
        refused = load(hot.server, "bad", folder)
        assert refused.status_code == 400 and reason in refused.json()["error"]["message"], refused.text
        assert hot.server.complete(model="bad").status_code == 404
    with hot.loaded(a="a"):
        assert load(hot.server, "a", wide, load_inplace=True).status_code == 400
        assert said(hot.server, "a") == hot.expected["a"]
