"""Steps launched before the previous result is back, by recorded graphs, give the same answers.

The GPU's way is run on the CPU: tokens fed back, padded decodes, one upload, no synchronisation.
"""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import trio

from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.attention.decoding import by_gathering
from sundog.runtime.attention.paged_cache import PagedKVCache
from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.engine.engine import Engine
from sundog.runtime.engine.requests import Requests
from sundog.runtime.model.attention_backend import AttentionBackend
from sundog.runtime.model.graphs import replayed
from sundog.runtime.model.loader import load_model
from sundog.runtime.model.model import Model, probe_layers
from tests.runtime.driver import Driver
from tests.runtime.mixtures import drawn, greedy, mixture, remembering
from tests.runtime.models import build_model, generate, random_prompt
from tests.runtime.scheduled import Asked, Looks, Said, answers

LIMITS = {"max_model_len": 128, "block_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 5}
Opener = Callable[..., Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("llama")
    build_model("llama", folder)
    return folder


def engine(folder: Path, *, num_blocks: int, ahead: bool) -> Engine:
    """With `ahead`, as on a GPU: decodes padded to recordings, and tokens fed back."""
    model = load_model(folder, dtype="float32")
    cache = PagedKVCache(probe_layers(model), num_blocks, 4, model.device)
    served = Model(model, cache, 128, attention=AttentionBackend(by_gathering) if ahead else None)
    if ahead:
        served._native = served._decoder = None  # which compute on arrays of the host
        served.record(replayed, LIMITS["max_num_seqs"])
    return Engine(Requests(4, 128, 0, ()), served, None, ahead=ahead)


def said(folder: Path, requests: dict[str, Asked], *, num_blocks: int = 60, ahead: bool) -> Said:
    config = SchedulerConfig(num_gpu_blocks=num_blocks, async_scheduling=ahead, **LIMITS)  # type: ignore[arg-type]
    return answers(engine(folder, num_blocks=num_blocks, ahead=ahead), requests, config)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("sampling", [greedy, drawn, remembering])
@pytest.mark.parametrize("num_blocks", [200, 24])
def test_steps_launched_ahead_sample_the_same_tokens(
    folder: Path, sampling: Callable[[int], Sampling], num_blocks: int
) -> None:
    """Chunked, mixed, on cached prefixes, and preempted where blocks are few."""
    requests = mixture(num_blocks, sampling)
    plain = said(folder, requests, num_blocks=num_blocks, ahead=False)
    ahead = said(folder, requests, num_blocks=num_blocks, ahead=True)
    assert ahead.most_under_way == 2 and plain.most_under_way == 1
    assert ahead.num_hits and (num_blocks == 200 or ahead.num_preempted)
    assert ahead.tokens == plain.tokens
    assert all(len(ahead.tokens[name]) == asked.num_tokens for name, asked in requests.items())
    assert {name: [each.token_id for each in kept] for name, kept in ahead.logprobs.items()} == {
        name: ahead.tokens[name] for name in plain.logprobs
    }


def test_an_aborted_request_takes_nothing_from_who_gets_its_row(folder: Path) -> None:
    """Its token comes back when another request has its place in the tables."""
    requests = mixture(3, greedy)
    some = {
        name: Asked(
            asked.prompt, asked.num_tokens, asked.sampling, asked.arrives, 14 if int(name) % 3 else None
        )
        for name, asked in requests.items()
    }
    ahead, plain = said(folder, some, ahead=True), said(folder, requests, ahead=False)
    cut = [name for name in some if len(ahead.tokens[name]) < len(plain.tokens[name])]
    assert cut
    for name, tokens in ahead.tokens.items():
        assert tokens == plain.tokens[name][: len(tokens)]
        assert name in cut or tokens == plain.tokens[name]


@pytest.mark.parametrize(
    "sampling", [greedy, lambda n: Sampling(seed=n), lambda n: Sampling(seed=n, top_k=9)]
)
def test_no_step_looks_at_a_number_of_the_device(folder: Path, sampling: Callable[[int], Sampling]) -> None:
    """Launching prefills, mixtures and decodes waits for nothing; only tokens come to the host."""
    requests = {
        name: Asked(a.prompt, a.num_tokens, sampling(int(name))) for name, a in mixture(1, greedy).items()
    }
    served = engine(folder, num_blocks=60, ahead=True)
    config = SchedulerConfig(num_gpu_blocks=60, async_scheduling=True, **LIMITS)  # type: ignore[arg-type]
    with Looks() as looks:
        answers(served, requests, config)
    assert looks.num_looks == 0
    with Looks() as looks:
        assert float(torch.ones(1)) == 1.0
    assert looks.num_looks == 1


@pytest.mark.wall_clock
async def test_threads_that_launch_ahead_give_the_same_tokens(folder: Path) -> None:
    """The backend as a GPU has it, but for the GPU: two threads, and steps asked for one after another."""
    from transformers import AutoModelForCausalLM

    backend = TorchBackend(
        folder, dtype="float32", block_size=4, num_gpu_blocks=200, max_model_len=128, ahead=True
    )
    await backend.load()
    driver, prompts = Driver(backend), {name: random_prompt(ord(name), 9 + ord(name) % 7) for name in "abc"}
    for name, prompt in prompts.items():
        driver.submit(name, prompt)
    outputs = await driver.run(6)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    for name, prompt in prompts.items():
        assert outputs[name] == generate(model, prompt, len(outputs[name]))
    driver.submit("a", prompts["a"])
    driver._admitted *= 2
    with pytest.raises(ValueError, match="admitted twice"):
        await driver.step()
    await backend.close()


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
async def test_a_closed_engine_is_gone_with_its_recordings(folder: Path) -> None:
    """Its memory is another process's to take, as the server's that `sundog calibrate` starts."""
    backend = TorchBackend(folder, device="cpu", dtype="float32", num_gpu_blocks=40, **LIMITS)
    await backend.load()
    assert backend._loaded is not None
    recorded = backend._loaded.model
    recorded._attention = AttentionBackend(by_gathering)
    recorded.record(replayed, LIMITS["max_num_seqs"])
    kept = weakref.ref(recorded), weakref.ref(recorded._graphs)
    del recorded
    await backend.close()
    await trio.sleep(0.01)  # Trio holds a task's last result until another task has run
    gc.collect()
    assert [each() for each in kept] == [None, None]
