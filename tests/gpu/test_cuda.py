"""The engine on a GPU gives the same answers as on the CPU, and as the library. Skipped without a GPU.

Nothing but torch, transformers and pytest is needed: `make gpu`.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: make gpu")

from transformers import AutoModelForCausalLM  # noqa: E402

from sundog.actors.core.config import ConfigError, SchedulerConfig  # noqa: E402
from sundog.actors.core.params.sampling import Sampling  # noqa: E402
from sundog.runtime.attention import varlen  # noqa: E402
from sundog.runtime.attention.decoding import Decodes, by_gathering, by_kernel  # noqa: E402
from sundog.runtime.attention.paged_cache import LayerShape, PagedKVCache  # noqa: E402
from sundog.runtime.engine.engine import Engine  # noqa: E402
from sundog.runtime.engine.model_loader import ModelLoader  # noqa: E402
from sundog.runtime.model.attention_backend import AttentionTrial, choose  # noqa: E402
from sundog.runtime.model.model import Model  # noqa: E402
from tests.runtime.mixtures import drawn, greedy, mixture, remembering  # noqa: E402
from tests.runtime.models import build_model, random_prompt  # noqa: E402
from tests.runtime.scheduled import Asked, Said, answers  # noqa: E402

ARCHITECTURES = ("llama", "qwen3", "mistral", "gemma2", "gpt_oss", "mixtral", "deepseek_v3", "gpt2", "phi3")
LIMITS = {"max_model_len": 128, "block_size": 16, "max_num_batched_tokens": 64, "max_num_seqs": 5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for architecture in ARCHITECTURES:
        found[architecture] = tmp_path_factory.mktemp(architecture)
        build_model(architecture, found[architecture])
    return found


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    """After a kernel's fault nothing runs in its process any more: the tests that are left get another."""
    yield
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
        raise


def opened(folder: Path, device: str, dtype: str = "float32", num_blocks: int = 60) -> tuple[Engine, Model]:
    engine, model, has = ModelLoader(
        folder, device=device, dtype=dtype, num_gpu_blocks=num_blocks, **LIMITS
    ).open()
    assert has == num_blocks
    return engine, model


def said(engine: Engine, requests: dict[str, Asked], num_blocks: int = 60) -> Said:
    config = SchedulerConfig(num_gpu_blocks=num_blocks, async_scheduling=engine.is_ahead, **LIMITS)
    return answers(engine, requests, config)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gpu_says_what_the_cpu_says(folders: dict[str, Path], architecture: str) -> None:
    """In float32: chunked, mixed, on cached prefixes, two steps under way."""
    requests = mixture(1, greedy)
    engine, _ = opened(folders[architecture], "cuda")
    ahead = said(engine, requests)
    assert ahead.most_under_way == 2
    assert ahead.tokens == said(opened(folders[architecture], "cpu")[0], requests).tokens


@pytest.mark.parametrize("sampling", [drawn, remembering])
def test_a_gpu_draws_what_the_cpu_draws(folders: dict[str, Path], sampling: object) -> None:
    """The same seeds, filters and penalties; a token may differ where two weights round alike."""
    requests = mixture(2, sampling)
    here = said(opened(folders["llama"], "cuda")[0], requests).tokens
    there = said(opened(folders["llama"], "cpu")[0], requests).tokens
    assert sum(here[name] != there[name] for name in requests) <= 1


def test_preempted_requests_go_on(folders: dict[str, Path]) -> None:
    requests = mixture(36, greedy)
    found = said(opened(folders["llama"], "cuda", num_blocks=12)[0], requests, num_blocks=12)
    assert found.num_preempted
    assert found.tokens == said(opened(folders["llama"], "cpu")[0], requests).tokens


def test_a_gpu_says_what_the_library_says_on_it(folders: dict[str, Path]) -> None:
    prompt = random_prompt(7, 40)
    found = said(opened(folders["qwen3"], "cuda")[0], {"a": Asked(prompt, 20)}).tokens["a"]
    model = AutoModelForCausalLM.from_pretrained(folders["qwen3"], dtype=torch.float32).cuda()
    ids = torch.tensor([prompt]).cuda()
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=20, min_new_tokens=20, do_sample=False)
    assert found == out[0, 40:].tolist()


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma2"])
def test_decodes_are_recorded_and_answer_as_plain_steps(folders: dict[str, Path], architecture: str) -> None:
    requests = mixture(3, greedy)
    engine, model = opened(folders[architecture], "cuda")
    assert model._graphs is not None
    recorded = said(engine, requests).tokens
    engine, model = opened(folders[architecture], "cuda")
    model._graphs = None
    assert said(engine, requests).tokens == recorded


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral"])
def test_halves_give_nearly_the_logits_of_float32(
    folders: dict[str, Path], architecture: str, dtype: str
) -> None:
    """By whatever call attends to 16-bit keys: most first tokens are those of float32."""
    requests = {str(i): Asked(random_prompt(i, 20 + 3 * i), 1) for i in range(20)}
    exact = said(opened(folders[architecture], "cuda")[0], requests).tokens
    half = said(opened(folders[architecture], "cuda", dtype)[0], requests).tokens
    assert sum(half[name] == exact[name] for name in requests) >= 15


def test_no_launch_waits_for_the_gpu(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once kernels are compiled: prefills, mixtures and decodes, greedy and drawn."""
    engine, _ = opened(folders["llama"], "cuda")
    said(engine, mixture(4, lambda number: Sampling(seed=number, top_k=5 * (number % 2))))
    launch = engine.launch

    def watched(batch: object) -> object:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(engine, "launch", watched)
    said(engine, mixture(5, lambda number: Sampling(seed=number, top_k=5 * (number % 2))))


DTYPES = ("float32", "float16", "bfloat16")
SPECIAL = ((None, False), (2.0, False), (None, True))
KINDS = [(*kind[:2], *kind[2]) for kind in itertools.product(DTYPES, (None, 7), SPECIAL)]
SHAPES = ((6, 2, 8, 5, 4), (16, 8, 128, 128, 16), (4, 4, 192, 128, 16), (2, 1, 256, 256, 32))


@pytest.mark.parametrize(("dtype", "window", "softcap", "has_sinks"), KINDS)
def test_the_kernel_is_the_formula(
    dtype: str, window: int | None, softcap: float | None, has_sinks: bool
) -> None:
    kind = getattr(torch, dtype)
    shapes = SHAPES if kind is torch.bfloat16 and softcap is None else SHAPES[:2]
    for (heads, key_heads, key_width, value_width, block), splits in itertools.product(shapes, (1, 4)):
        torch.manual_seed(0)
        keys = torch.randn(60, block, key_heads, key_width, device="cuda").to(kind)
        values = torch.randn(60, block, key_heads, value_width, device="cuda").to(kind)
        tables = (torch.randperm(59)[:54] + 1).view(3, 18).int().cuda()
        decodes = Decodes(tables, torch.tensor([1, 17, 18 * block - 1], dtype=torch.int32, device="cuda"))
        q = torch.randn(3, heads, key_width, device="cuda").to(kind)
        sinks = torch.randn(heads, device="cuda").to(kind) if has_sinks else None
        special = {"scaling": key_width**-0.5, "window": window, "softcap": softcap}
        out = by_kernel(decodes, q, keys, values, **special, sinks_H=sinks, num_splits=splits)
        floats = (q.float(), keys.float(), values.float())
        exact_sinks = None if sinks is None else sinks.float()
        right = by_gathering(Decodes(tables, decodes.num_keys_N), *floats, **special, sinks_H=exact_sinks)
        assert (out.float() - right).norm() <= (1e-4 if dtype == "float32" else 0.01) * right.norm()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("block_size", [16, 256])
def test_torchs_call_is_the_formula(dtype: str, block_size: int) -> None:
    if not varlen.is_available():
        pytest.skip("this torch or this GPU has no varlen_attn with windows")
    cache = PagedKVCache(
        [LayerShape(8, 128, 128, getattr(torch, dtype))], 4, block_size, torch.device("cuda")
    )
    trial = AttentionTrial(cache)
    assert trial._is_right(trial.called())
    means = choose(cache)
    assert means.has_varlen and means.is_static
    assert means.reads_tables == varlen.reads_tables(block_size)


def test_too_little_memory_says_what_helps(folders: dict[str, Path]) -> None:
    settings = {**LIMITS, "gpu_memory_utilization": 0.0001}
    with pytest.raises(ConfigError, match="not enough memory for the KV cache"):
        ModelLoader(folders["llama"], device="cuda", **settings).open()


async def _opened_and_closed(folder: Path) -> tuple[int, int]:
    from sundog.runtime.engine.backend import TorchBackend

    backend = TorchBackend(
        folder, device="cuda", dtype="float32", num_gpu_blocks=20_000, block_size=16, max_model_len=128
    )
    await backend.load()
    held = torch.cuda.memory_reserved()
    await backend.close()
    return held, torch.cuda.memory_reserved()


def test_a_closed_engine_gives_the_gpu_back(folders: dict[str, Path]) -> None:
    """Another process may take it, as the server does that `sundog calibrate` starts; but for what cuBLAS
    keeps for two streams, 32 MiB each on an H200."""
    trio = pytest.importorskip("trio")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    held, after = trio.run(_opened_and_closed, folders["llama"])
    assert held > before + (200 << 20)
    assert after <= before + (1 << 26)


async def _driven(folder: Path) -> dict[str, list[int]]:
    from sundog.runtime.engine.backend import TorchBackend
    from tests.runtime.driver import Driver

    backend = TorchBackend(
        folder, device="cuda", dtype="float32", num_gpu_blocks=200, block_size=4, max_model_len=128
    )
    await backend.load()
    driver = Driver(backend)
    driver.submit("a", random_prompt(1, 12))
    outputs = await driver.run(6)
    await backend.close()
    return outputs


def test_threads_launch_and_wait(folders: dict[str, Path]) -> None:
    """The backend as it is served, where Trio is installed."""
    trio = pytest.importorskip("trio")
    found = trio.run(_driven, folders["llama"])["a"]
    expected = said(opened(folders["llama"], "cpu")[0], {"a": Asked(random_prompt(1, 12), len(found))})
    assert found == expected.tokens["a"]
