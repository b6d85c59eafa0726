"""Models by their names on the hub, from a mirror on this machine, through the command line."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from transformers import AutoModelForCausalLM

from sundog.runtime.checkpoint.hub import HubModel, hub_model
from sundog.runtime.serve import EMBEDDED_MODEL
from tests.hub_mirror import MAIN, Mirror, mirror_of
from tests.live import live
from tests.patience import HANGS_S
from tests.sundog.test_runs import refused

NAME = "makers/tiny"
TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """The embedded model with files beside it that nobody needs, and models that are refused."""
    top = tmp_path_factory.mktemp("hub")
    tiny = shutil.copytree(EMBEDDED_MODEL, top / "tiny")
    for name in (
        "pytorch_model.bin",
        "training_args.pt",
        "model.gguf",
        "onnx/model.onnx",
        "original/consolidated.safetensors",
    ):
        (tiny / name).parent.mkdir(exist_ok=True)
        (tiny / name).write_bytes(b"nobody needs this")
    older = shutil.copytree(EMBEDDED_MODEL, top / "older")
    config = json.loads((older / "config.json").read_text())
    (older / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    pickled = shutil.copytree(EMBEDDED_MODEL, top / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    (pickled / "pytorch_model.bin").write_bytes(b"a program")
    (packed := top / "packed").mkdir()
    (packed / "m-Q8_0.gguf").write_bytes(b"GGUF")
    seen = shutil.copytree(EMBEDDED_MODEL, top / "seen")
    (seen / "config.json").write_text(json.dumps(config | {"vision_config": {}}))
    others = {"makers/pickled": pickled, "makers/packed": packed, "makers/seen": seen}
    return {NAME: {MAIN: tiny, "v1": older}, **{name: {MAIN: folder} for name, folder in others.items()}}


@pytest.fixture
def mirror(
    folders: dict[str, dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mirror]:
    """A mirror, and a cache that is empty."""
    with mirror_of(folders) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        yield found


def sundog(*arguments: object, most_bytes: int | None = None) -> "subprocess.CompletedProcess[str]":
    """The command in a fresh interpreter: the library reads its variables when it is imported."""

    def limit() -> None:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "sundog", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, preexec_fn=limit)


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, list[str]]]:
    with live("sundog", *arguments, "--port", "0", afresh=True) as server:
        yield server.url, server.said


def test_a_name_is_told_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWNER/NAME with a revision if need be; a folder of that name comes first, and files are never names."""
    monkeypatch.chdir(tmp_path)
    assert hub_model("Qwen/Qwen3-0.6B") == HubModel("Qwen/Qwen3-0.6B", None)
    assert hub_model("Qwen/Qwen3-0.6B@refs/pr/1") == HubModel("Qwen/Qwen3-0.6B", "refs/pr/1")
    assert hub_model("Qwen/Qwen3-0.6B", "v1") == HubModel("Qwen/Qwen3-0.6B", "v1")
    for path in ("./a/b", "/a/b", "a", "a/b/c", "../a", "~/a", "a/b.gguf", "a/config.json", "a/b@", "a/b c"):
        assert hub_model(path) is None, path
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert hub_model("a/b") is None


@pytest.mark.slow(reason="serves a model twice, in interpreters that import everything")
def test_a_model_is_served_by_its_name_and_then_without_the_hub(mirror: Mirror) -> None:
    """Only what is read is fetched; the second time nothing is, and a network that is away is none's loss."""
    with served("serve", NAME) as (url, said):
        assert any(f"fetching the weights of {NAME}, 1 file" in line for line in said), said
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == NAME
        body = {"model": NAME, "prompt": "Hello", "max_tokens": 4, "temperature": 0}
        first = httpx.post(f"{url}/v1/completions", json=body, timeout=HANGS_S).json()["choices"][0]["text"]
    wanted = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    }
    assert mirror.fetched() == wanted
    mirror.asked.clear()
    mirror.status = 503
    with served("serve", NAME) as (url, _said):
        again = httpx.post(f"{url}/v1/completions", json=body, timeout=HANGS_S).json()["choices"][0]["text"]
    assert again == first and not mirror.fetched()


def test_a_revision_is_what_was_asked_for(mirror: Mirror) -> None:
    """A tag, of which the configuration says another context than that of the main branch."""
    with served("emulate", NAME, "--revision", "v1", "--gpu", "h100") as (url, _):
        (model,) = httpx.get(f"{url}/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (NAME, 256)
    refused(
        sundog("serve", NAME, "--revision", "v9"), f"{NAME} has no revision v9", "branch, a tag or a commit"
    )
    refused(sundog("serve", f"{NAME}@v1", "--revision", "v1"), "leave one of them out")
    refused(sundog("serve", EMBEDDED_MODEL, "--revision", "v1"), "--revision is v1", "not from the hub")
    refused(sundog("emulate", "llama-3.1-8b", "--revision", "v1"), "--revision is v1", "not from the hub")


def test_simulations_take_the_configuration_alone_and_ask_once(mirror: Mirror) -> None:
    """No weights and no tokenizer; a replay of the same model again makes no request at all."""
    asked = ("replay", TRACE, "--model", NAME, "--limit", 5, "--json")
    first = sundog(*asked)
    assert first.returncode == 0, first.stderr
    assert mirror.fetched() == {"config.json", "generation_config.json"}
    local = sundog("replay", TRACE, "--model", EMBEDDED_MODEL, "--limit", 5, "--json")
    assert first.stdout == local.stdout
    mirror.asked.clear()
    assert sundog(*asked).stdout == first.stdout and not mirror.asked


def test_prompts_are_counted_by_the_tokenizer_of_a_name(mirror: Mirror) -> None:
    """Of `emulate --tokenizer`: the embedded model's own, so that an answer counts alike."""
    with served("emulate", "qwen3-8b", "--gpu", "h100", "--tokenizer", NAME) as (url, _):
        body = {"model": "qwen3-8b", "prompt": "Hello there", "max_tokens": 1}
        usage = httpx.post(f"{url}/v1/completions", json=body, timeout=HANGS_S).json()["usage"]
    from sundog.runtime.text.tokenizer import Tokenizer

    assert usage["prompt_tokens"] == len(Tokenizer(EMBEDDED_MODEL).encode("Hello there"))
    assert "model.safetensors" not in mirror.fetched() and "tokenizer.json" in mirror.fetched()


def test_what_is_not_served_is_refused_before_its_weights_are_fetched(mirror: Mirror) -> None:
    """Pickles by what is listed, a kind by its configuration."""
    refused(
        sundog("serve", "makers/pickled"),
        "makers/pickled has no *.safetensors",
        "pytorch_model.bin",
        "run code",
    )
    refused(sundog("serve", "makers/packed"), "hf download makers/packed m-Q8_0.gguf", "serve the file")
    assert not mirror.fetched()
    refused(sundog("serve", "makers/seen"), "it is multimodal")
    assert "model.safetensors" not in mirror.fetched()


def test_a_private_model_needs_a_token(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, a wrong one, and the right one."""
    mirror.token = "hf_right"
    refused(sundog("serve", NAME), f"no such model at {mirror.url}", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    refused(sundog("serve", NAME), "refuses the token in HF_TOKEN (HTTP 401)")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    asked = sundog("replay", TRACE, "--model", NAME, "--limit", 5)
    assert asked.returncode == 0, asked.stderr


def test_a_gated_model_says_where_its_terms_are(mirror: Mirror) -> None:
    """By the address of its page."""
    mirror.gated = True
    refused(sundog("serve", NAME), f"{NAME} is gated", f"{mirror.url}/{NAME}", "HF_TOKEN")


def test_a_name_that_is_nowhere_is_one_line(mirror: Mirror) -> None:
    """A misspelt model of ours, too, with the nearest."""
    refused(
        sundog("serve", "makers/tyni"), "there is no folder makers/tyni", f"no such model at {mirror.url}"
    )
    wrong = sundog("replay", TRACE, "--model", "Qwen/Qwen3-8")
    refused(
        wrong,
        "Qwen/Qwen3-8 is no model that Sundog describes, and there is no folder",
        "Did you mean qwen3-8b?",
    )


@pytest.fixture(scope="module")
def adapter(folders: dict[str, dict[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an adapter; beside it one without weights, and one of a kind that is not served."""
    from tests.runtime.adapters import make_adapter

    top = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
    make_adapter(model, top / "own", ("q_proj", "v_proj"))
    (top / "own" / "optimizer.pt").write_bytes(b"nobody needs this")
    make_adapter(model, top / "dora", ("q_proj",), use_dora=True)
    (bare := top / "bare").mkdir()
    shutil.copy(top / "own" / "adapter_config.json", bare)
    for name in ("own", "dora", "bare"):
        folders[f"makers/{name}"] = {MAIN: top / name}
    return "makers/own"


@pytest.mark.slow(reason="serves a model in an interpreter that imports everything")
def test_an_adapter_is_served_by_its_name(adapter: str, mirror: Mirror) -> None:
    """As NAME=OWNER/NAME and as a JSON object; only its two files are fetched, and it changes the answer."""
    whole = json.dumps({"name": "b", "path": f"{adapter}@main", "base_model_name": "sundog-tiny"})
    with served("serve", "--enable-lora", "--lora-modules", f"a={adapter}", "--lora-modules", whole) as (
        url,
        _,
    ):
        names = [each["id"] for each in httpx.get(f"{url}/v1/models").json()["data"]]
        body = {"prompt": "Hello", "max_tokens": 8, "temperature": 0}
        texts = {
            name: httpx.post(f"{url}/v1/completions", json=body | {"model": name}, timeout=HANGS_S).json()[
                "choices"
            ][0]["text"]
            for name in names
        }
    assert names == ["sundog-tiny", "a", "b"]
    assert texts["a"] == texts["b"] != texts["sundog-tiny"]
    assert mirror.fetched() == {"adapter_config.json", "adapter_model.safetensors"}


def test_an_adapter_that_is_not_served_is_refused_before_its_weights_are_fetched(
    adapter: str, mirror: Mirror
) -> None:
    """By what is listed, and by its configuration; a model is no adapter, and a name may be nowhere."""

    def given(name: str) -> "subprocess.CompletedProcess[str]":
        return sundog("serve", "--enable-lora", "--lora-modules", f"a={name}")

    refused(given("makers/bare"), "makers/bare has no adapter_model.safetensors")
    refused(given(NAME), f"{NAME} has no adapter_model.safetensors")
    assert not mirror.fetched()
    refused(given("makers/dora"), "use_dora")
    assert mirror.fetched() == {"adapter_config.json"}
    refused(given("makers/none"), "there is no folder makers/none", f"no such model at {mirror.url}")


@pytest.mark.long(reason="measures an engine")
def test_a_model_is_calibrated_by_its_name(mirror: Mirror, tmp_path: Path) -> None:
    """With its name in the file; a name that is nowhere is one line."""
    small = ("--max-num-seqs", 4, "--max-num-batched-tokens", 64, "--max-model-len", 160)
    done = sundog("calibrate", NAME, "-o", tmp_path / "x.toml", "--seconds", 0, "--no-http", *small)
    assert done.returncode == 0, done.stderr
    assert f'"{NAME}"' in (tmp_path / "x.toml").read_text()


def test_a_calibration_of_what_is_nowhere_is_one_line(mirror: Mirror, tmp_path: Path) -> None:
    """A folder that is missing is not asked for."""
    refused(sundog("calibrate", "makers/tyni", "-o", tmp_path / "x.toml"), f"no such model at {mirror.url}")
    refused(sundog("calibrate", "no/such/model", "-o", tmp_path / "x.toml"), "no/such/model is not there")


@pytest.mark.parametrize(
    ("status", "words"), [(403, "refuses makers/tiny to you"), (500, "HTTP 500"), (429, "HTTP 429")]
)
def test_a_hub_out_of_order_is_one_line(mirror: Mirror, status: int, words: str) -> None:
    """With its answer."""
    mirror.status = status
    refused(sundog("serve", NAME), words)


def test_without_a_network_the_line_says_so(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody at the address; and switched off by the library's own variable."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for command in (("serve", NAME), ("replay", TRACE, "--model", NAME)):
        refused(sundog(*command), f"there is no folder {NAME}", "http://127.0.0.1:9 cannot be reached")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(sundog("serve", NAME), "HF_HUB_OFFLINE forbids fetching it")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "mirror.example")
    refused(sundog("serve", NAME), "HF_ENDPOINT is mirror.example: give an address that begins with http")


@pytest.mark.long(reason="waits for the library's retries", moderate=True)
def test_a_download_that_breaks_off_goes_on_where_it_stopped(mirror: Mirror) -> None:
    """By itself if that helps, else by the same command."""
    mirror.cuts = 1
    done = sundog("replay", TRACE, "--model", NAME, "--limit", 5)
    assert done.returncode == 0, done.stderr
    assert mirror.cuts == 0
    mirror.cuts = 1000
    broken = sundog("replay", TRACE, "--model", f"{NAME}@v1", "--limit", 5)
    refused(broken, f"fetching {NAME} from {mirror.url} broke off", "the same command goes on")


def test_a_full_disk_is_one_line(mirror: Mirror) -> None:
    """A limit on the size of files stands for it: the weights are larger, all else is smaller."""
    largest = max(file.stat().st_size for file in EMBEDDED_MODEL.glob("*.json"))
    assert largest < EMBEDDED_MODEL.joinpath("model.safetensors").stat().st_size
    done = sundog("serve", NAME, most_bytes=largest + 1)
    refused_last(done, f"the disk of {os.environ['HF_HOME']}", "is full", "HF_HOME")


def refused_last(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """A refusal behind the line that says what is fetched."""
    said, refusal = done.stderr.strip().splitlines()
    assert done.returncode == 2 and said.startswith("fetching the weights")
    for word in words:
        assert word in refusal


@pytest.mark.long(reason="serves three models", moderate=True)
def test_a_file_of_llama_cpps_is_served_like_its_folder(tmp_path: Path) -> None:
    """Of 16 bits, whose values are the same: the same answer, under the name of the file."""
    from tests.gguf_files import Kind, write

    same = write(EMBEDDED_MODEL, tmp_path / "same.gguf", Kind.BF16)
    few = write(EMBEDDED_MODEL, tmp_path / "few-Q8_0.gguf", Kind.Q8_0)
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}
    answers = []
    for model in (str(EMBEDDED_MODEL), str(same), str(few)):
        with live("sundog", "serve", model, "--port", "0") as server:
            (known,) = httpx.get(f"{server.url}/v1/models").json()["data"]
            assert known["id"] == Path(model).name.removesuffix(".gguf")
            url = f"{server.url}/v1/chat/completions"
            answer = httpx.post(url, json=body | {"model": known["id"]}, timeout=HANGS_S).json()
            answers.append(answer["choices"][0]["message"]["content"])
    assert answers[0] == answers[1] and answers[0] and answers[2]


def test_what_a_gguf_file_cannot_do_is_one_line(tmp_path: Path) -> None:
    """A file that is none, is missing, or is asked for by several processes."""
    (broken := tmp_path / "broken.gguf").write_bytes(b"GGUF")
    refused(sundog("serve", broken), f"cannot read {broken}", "ends within its header")
    refused(sundog("serve", tmp_path / "no.gguf"), "does not exist")
    (folder := tmp_path / "folder.gguf").mkdir()
    refused(sundog("serve", folder), f"{folder} is a folder, no GGUF file")
    refused(sundog("serve", broken, "-tp", 2), "--tensor-parallel-size is given")
