"""The engine on a simulated CUDA device; `make gpu` tests the same on a real one."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a GPU, which need not be pretended", allow_module_level=True)

from sundog.actors.config.speculative import SpeculativeConfig  # noqa: E402
from sundog.actors.core.config import SchedulerConfig  # noqa: E402
from sundog.actors.core.params.sampling import Sampling  # noqa: E402
from sundog.runtime.engine.engine import Engine  # noqa: E402
from sundog.runtime.engine.model_loader import ModelLoader  # noqa: E402
from tests.gpu.pretended import Device, pretended  # noqa: E402
from tests.runtime.mixtures import drawn, greedy, mixture, remembering  # noqa: E402
from tests.runtime.models import random_prompt  # noqa: E402
from tests.runtime.scheduled import Asked, Said, answers  # noqa: E402

LIMITS = {"max_model_len": 128, "block_size": 16, "max_num_batched_tokens": 64, "max_num_seqs": 5}


@pytest.fixture
def device() -> Iterator[Device]:
    with pretended() as device:
        yield device


def opened(folder: Path, device: str, dtype: str = "float32", num_blocks: int = 60, **more: object) -> Engine:
    opening = ModelLoader(folder, device=device, dtype=dtype, num_gpu_blocks=num_blocks, **LIMITS, **more)  # type: ignore[arg-type]
    return opening.open()[0]


def said(
    engine: Engine, requests: dict[str, Asked], num_blocks: int = 60, num_speculative_tokens: int = 0
) -> Said:
    config = SchedulerConfig(
        num_gpu_blocks=num_blocks,
        async_scheduling=engine.is_ahead and not num_speculative_tokens,
        num_speculative_tokens=num_speculative_tokens,
        **LIMITS,
    )
    return answers(engine, requests, config)


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("architecture", ["llama", "gpt_oss"])
def test_two_steps_under_way_and_graphs_say_what_the_cpu_says(
    folder: Callable[[str], Path], device: Device, architecture: str
) -> None:
    """Chunked, mixed, on cached prefixes. Decodes are played on memory that was recorded, but not of experts
    in float32, whose products wait: no recording of such is begun, for torch would be left in its midst."""
    requests = mixture(4, greedy)
    ahead = said(opened(folder(architecture), "cuda"), requests)
    assert ahead.most_under_way == 2 and ahead.num_hits
    assert bool(device.num_played) is bool(device.num_recorded) is (architecture == "llama")
    assert ahead.tokens == said(opened(folder(architecture), "cpu"), requests).tokens


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("sampling", [drawn, remembering])
def test_it_draws_what_the_cpu_draws(
    folder: Callable[[str], Path], device: Device, sampling: Callable[[int], Sampling]
) -> None:
    requests = mixture(2, sampling)
    found = said(opened(folder("llama"), "cuda"), requests)
    right = said(opened(folder("llama"), "cpu"), requests)
    assert (found.tokens, found.failed) == (right.tokens, right.failed)
    assert device.num_played and found.logprobs.keys() == right.logprobs.keys()


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_preempted_requests_go_on(folder: Callable[[str], Path], device: Device) -> None:
    requests = mixture(36, greedy)
    found = said(opened(folder("llama"), "cuda", num_blocks=12), requests, num_blocks=12)
    assert found.num_preempted
    assert found.tokens == said(opened(folder("llama"), "cpu"), requests).tokens


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_drafts_are_checked_there(folder: Callable[[str], Path], device: Device) -> None:
    requests = {str(i): Asked(random_prompt(i, 6) * 3, 12) for i in range(3)}
    lookup = SpeculativeConfig("ngram", 2)
    found = said(opened(folder("llama"), "cuda", speculation=lookup), requests, num_speculative_tokens=2)
    assert found.tokens == said(opened(folder("llama"), "cpu"), requests).tokens


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_no_launch_waits_for_the_device(folder: Callable[[str], Path], device: Device) -> None:
    engine = opened(folder("llama"), "cuda")
    launch, played = engine.launch, device.num_played

    def watched(batch: object) -> object:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(batch)  # type: ignore[arg-type]
        finally:
            torch.cuda.set_sync_debug_mode("default")

    engine.launch = watched  # type: ignore[assignment, method-assign]
    said(engine, mixture(5, lambda number: Sampling(seed=number, top_k=5 * (number % 2))))
    assert device.num_played > played


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_halves_attend_by_torchs_call(
    folder: Callable[[str], Path], device: Device, architecture: str
) -> None:
    """With windows, too: most first tokens are those of float32."""
    requests = {str(i): Asked(random_prompt(i, 20 + 3 * i), 1) for i in range(20)}
    exact = said(opened(folder(architecture), "cpu"), requests).tokens
    half = said(opened(folder(architecture), "cuda", "bfloat16"), requests).tokens
    assert sum(half[name] == exact[name] for name in requests) >= 15


def test_what_a_gpu_refuses_is_refused(device: Device) -> None:
    """Else nothing above would mean anything."""
    there = torch.arange(6.0, device="cuda")
    host = torch.ones(6)
    refused = [lambda: there + host, lambda: there.index_select(0, torch.tensor([1]))]
    torch.cuda.set_sync_debug_mode("error")
    refused += [lambda: there.sum().item(), lambda: there[there > 2], lambda: there.cpu(), there.tolist]
    refused += [
        lambda: bool((there == 1).all()),
        lambda: host.to("cuda"),
        lambda: torch.cuda.Event().synchronize(),
    ]
    for ask in refused:
        with pytest.raises(RuntimeError, match="the same device|wait for the device"):
            ask()


def test_a_graph_plays_its_operations_and_a_copy_arrives_with_its_event(device: Device) -> None:
    given, kept = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    calls = itertools.count(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept.copy_(given * next(calls))  # a number of the host, which a graph has for good
    given.fill_(5.0)
    graph.replay()
    host, event = torch.empty(3), torch.cuda.Event()
    host.copy_(kept, non_blocking=True)
    assert host.tolist() == [-1.0] * 3
    event.synchronize()
    assert host.tolist() == [5.0] * 3
