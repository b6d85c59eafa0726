"""Requests and models of every kind on a GPU give the results of the CPU; on a simulated GPU if there is
none.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sundog.runtime  # noqa: E402
from sundog.actors.config.pooler import PoolingType  # noqa: E402
from sundog.actors.config.speculative import SpeculativeConfig  # noqa: E402
from sundog.actors.core.config import ConfigError, SchedulerConfig  # noqa: E402
from sundog.actors.core.params.sampling import (  # noqa: E402
    Adapter,
    Constraint,
    ConstraintKind,
    Sampling,
)
from sundog.runtime.attention import paged_cache  # noqa: E402
from sundog.runtime.attention.paged_cache import LayerShape, block_bytes, choose_num_blocks, free_bytes  # noqa: E402
from sundog.runtime.embedding.settings import EmbeddingSettings  # noqa: E402
from sundog.runtime.engine.engine import Engine  # noqa: E402
from sundog.runtime.engine.model_loader import ModelLoader  # noqa: E402
from sundog.runtime.ranks.group import device_of  # noqa: E402
from sundog.runtime.ranks.rank import RankPlace  # noqa: E402
from tests.gpu.pretended import pretended  # noqa: E402
from tests.runtime.adapters import make_adapter  # noqa: E402
from tests.runtime.embedders import make_embedder  # noqa: E402
from tests.runtime.mixtures import greedy, mixture  # noqa: E402
from tests.runtime.models import build_model, random_prompt  # noqa: E402
from tests.runtime.scheduled import Asked, Said, answers  # noqa: E402

NUM_BLOCKS = 60
LIMITS = {"max_model_len": 128, "block_size": 16, "max_num_batched_tokens": 64, "max_num_seqs": 5}
ASSETS = Path(sundog.runtime.__file__).parent / "assets"


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with nullcontext() if torch.cuda.is_available() else pretended():
        yield
        torch.cuda.empty_cache()


def opened(folder: Path, device: str, num_blocks: int = NUM_BLOCKS, **more: object) -> Engine:
    given = {"dtype": "float32", "num_gpu_blocks": num_blocks, **LIMITS, **more}
    return ModelLoader(folder, device=device, **given).open()[0]  # type: ignore[arg-type]


def said(engine: Engine, requests: dict[str, Asked], drafts: SpeculativeConfig | None = None) -> Said:
    config = SchedulerConfig(
        num_gpu_blocks=NUM_BLOCKS,
        async_scheduling=engine.is_ahead and drafts is None,
        num_speculative_tokens=0 if drafts is None else drafts.num_tokens,
        num_lookahead_tokens=0 if drafts is None else drafts.num_lookahead_tokens,
        **LIMITS,
    )
    return answers(engine, requests, config)


def check_same(folder: Path, requests: dict[str, Asked], **more: object) -> Said:
    """The GPU's answers, which are the CPU's."""
    found = said(opened(folder, "cuda", **more), requests)
    right = said(opened(folder, "cpu", **more), requests)
    assert (found.tokens, found.failed) == (right.tokens, right.failed)
    return found


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("architecture", ["gemma2", "qwen3_moe", "deepseek_v3"])
def test_every_manner_of_layers_answers_as_on_the_cpu(
    folder: Callable[[str], Path], architecture: str
) -> None:
    """Caps, windows, experts, latent keys."""
    found = check_same(folder(architecture), mixture(1, greedy))
    assert found.most_under_way == 2


@pytest.mark.long(
    reason="builds models of several adapters; tests/runtime/test_serve_lora.py has the law on the CPU"
)
def test_adapters_are_mixed_in_a_step(folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = build_model("llama", tmp_path / "model")
    make_adapter(model, tmp_path / "a", ("q_proj", "v_proj", "down_proj"))
    make_adapter(model, tmp_path / "b", ("o_proj",), rank=7, seed=2)
    named: dict[str, Adapter | None] = {name: Adapter(name, str(tmp_path / name)) for name in "ab"}
    asked = {
        f"{name}{number}": Asked(random_prompt(10 * number + at, 9 + at), adapter=adapter, arrives=number)
        for at, (name, adapter) in enumerate({**named, "-": None}.items())
        for number in range(2)
    }
    adapters = {name: tmp_path / name for name in named}
    found = check_same(tmp_path / "model", asked, adapters=adapters)
    plain = {name: Asked(each.prompt, arrives=each.arrives) for name, each in asked.items()}
    assert (
        said(opened(tmp_path / "model", "cuda", adapters=adapters), plain).tokens["a0"] != found.tokens["a0"]
    )


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_answers_keep_to_a_grammar(folder: Callable[[str], Path]) -> None:
    pytest.importorskip("llguidance")
    from sundog.runtime.structured.grammars import Grammars

    model = ASSETS / "sundog-tiny"
    end = json.loads((model / "config.json").read_text())["eos_token_id"]
    grammars = Grammars(lambda: (model / "tokenizer.json").read_text(), (end,))
    digits = Sampling(temperature=0.0, constraint=Constraint(ConstraintKind.REGEX, "[0-9]{7}"))
    asked = {"digits": Asked(random_prompt(1, 12), 12, digits), "plain": Asked(random_prompt(2, 12), 12)}
    found = check_same(model, asked, grammars=grammars, eos_token_ids=(end,))
    assert found.tokens["digits"] != found.tokens["plain"]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("pooling", [PoolingType.LAST, PoolingType.MEAN])
@pytest.mark.parametrize("kind", ["bert", "qwen3", "modernbert"])
def test_vectors_are_those_of_the_cpu(kind: str, pooling: PoolingType, tmp_path: Path) -> None:
    pytest.importorskip("trio")
    from sundog.runtime.embedding.backend import Encoder

    make_embedder(kind, tmp_path)
    prompts = [random_prompt(seed, length) for seed, length in enumerate((5, 40, 41, 7, 1))]
    found = Encoder(tmp_path, EmbeddingSettings(pooling), device="cuda").vectors(prompts)
    right = Encoder(tmp_path, EmbeddingSettings(pooling), device="cpu").vectors(prompts)
    for here, there in zip(found, right, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_prompts_are_scored(folder: Callable[[str], Path]) -> None:
    """Chunked, beside requests that want no scores, and with those of their answers."""
    scored = Sampling(temperature=0.0, logprobs=2, prompt_logprobs=3)
    asked = {str(i): Asked(random_prompt(i, 30 + 20 * i), 4, scored) for i in range(3)}
    asked["plain"] = Asked(random_prompt(9, 20), 8)
    found = said(opened(folder("llama"), "cuda"), asked)
    right = said(opened(folder("llama"), "cpu"), asked)
    assert found.tokens == right.tokens and found.prompt_logprobs.keys() == {"0", "1", "2"}
    for here, there in ((found.prompt_logprobs, right.prompt_logprobs), (found.logprobs, right.logprobs)):
        for name in there:
            pairs = list(zip(here[name], there[name], strict=True))
            assert all(a is b is None or a.token_id == b.token_id for a, b in pairs)
            assert all(a is None or a.logprob == pytest.approx(b.logprob, abs=1e-3) for a, b in pairs)


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_several_answers_to_a_prompt_differ_by_their_seeds_and_share_its_blocks(
    folder: Callable[[str], Path],
) -> None:
    prompt = random_prompt(3, 40)
    asked = {str(i): Asked(prompt, 12, Sampling(temperature=1.0, seed=i), arrives=i) for i in range(4)}
    found = check_same(folder("llama"), asked)
    assert found.num_hits == 3 and len({tuple(tokens) for tokens in found.tokens.values()}) > 1


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_penalties_biases_and_bans_are_the_cpus(folder: Callable[[str], Path]) -> None:
    kinds = (
        {"presence_penalty": 1.5},
        {"repetition_penalty": 1.8},
        {"logit_bias": ((5, 8.0), (9, -50.0))},
        {"frequency_penalty": 2.0, "min_tokens": 6},
    )
    asked = {
        str(i): Asked(random_prompt(i, 12), 10, Sampling(temperature=0.0, **kind))  # type: ignore[arg-type]
        for i, kind in enumerate(kinds)
    }
    check_same(folder("llama"), asked)


@pytest.mark.long(reason="builds two models; tests/runtime/test_speculation.py has the law on the CPU")
def test_a_draft_models_guesses_are_checked(folder: Callable[[str], Path]) -> None:
    drafts = SpeculativeConfig("draft_model", 3, model=str(folder("llama")))
    ends = Sampling(temperature=0.0, max_tokens=10)
    asked = {str(i): Asked(random_prompt(i, 11 + i), 10, ends, arrives=i) for i in range(4)}
    found = said(opened(folder("qwen3"), "cuda", speculation=drafts), asked, drafts)
    assert found.tokens == said(opened(folder("qwen3"), "cpu"), asked).tokens


@pytest.mark.long(reason="builds models for a pretended GPU; test_batch_invariance.py has the law on the CPU")
def test_requests_that_are_aborted_under_way_leave_the_others_alone(folder: Callable[[str], Path]) -> None:
    asked = mixture(6, greedy)
    cut = {
        name: Asked(each.prompt, 16, arrives=each.arrives, aborted=each.arrives + 2 + int(name) % 4)
        for name, each in asked.items()
        if int(name) % 2
    }
    found = said(opened(folder("llama"), "cuda"), asked | cut)
    right = said(opened(folder("llama"), "cpu"), asked)
    kept = asked.keys() - cut.keys()
    assert {name: found.tokens[name] for name in kept} == {name: right.tokens[name] for name in kept}


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("layout", ["fp8 in blocks", "awq", "gptq"])
def test_quantised_weights_are_multiplied_out_on_the_way(layout: str, tmp_path: Path) -> None:
    pytest.importorskip("trio")
    from tests.runtime.every_model import build
    from tests.runtime.test_quantized import LAYOUTS, quantise

    build("llama", tmp_path)
    quantise(tmp_path, *LAYOUTS[layout])
    check_same(tmp_path, {str(i): Asked(random_prompt(i, 9 + i), 6) for i in range(3)})


@pytest.mark.parametrize("part", ["cache", "recording"])
def test_memory_that_runs_out_while_a_model_is_opened_says_what_helps(
    folder: Callable[[str], Path], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")

    if part == "cache":
        monkeypatch.setattr(paged_cache, "_zeros", refuse)
    else:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    with pytest.raises(ConfigError, match="not enough memory on the device.*lower --gpu-memory") as caught:
        opened(folder("llama"), "cuda")
    assert "\n" not in str(caught.value)


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_a_step_without_memory_raises_and_the_model_can_be_opened_again(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"a": Asked(random_prompt(1, 40), 4)}
    engine = opened(folder("llama"), "cuda")

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine._model, "logits", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        said(engine, asked)
    del engine
    check_same(folder("llama"), asked)


@pytest.mark.parametrize(("total_gib", "fits"), [(140, 49_545), (80, 24_969), (20, 374), (8, None)])
def test_the_cache_is_what_weights_and_the_largest_step_leave(
    total_gib: int, fits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Qwen3-8B in bf16 beside 0.9 of the memory: 16.4 GB of weights are there, a step takes 2 GB."""
    total = total_gib << 30
    held = 16_400_000_000
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (total - held, total))
    has = free_bytes(torch.device("cuda", 0), None) - 2_000_000_000
    each = block_bytes([LayerShape(8, 128, 128, torch.bfloat16)] * 36, 16)
    sizes = {"block_size": 16, "max_model_len": 40960, "max_num_seqs": 256}
    if fits is None:
        with pytest.raises(ConfigError, match="not enough memory for the KV cache: needs 5.6.* GiB"):
            choose_num_blocks(each, has, **sizes)
    elif fits < 40960 // 16 + 1:
        with pytest.raises(ConfigError, match="lower --max-model-len or free memory"):
            choose_num_blocks(each, has, **sizes)
        assert choose_num_blocks(each, has, **sizes | {"max_model_len": 4096}) == has // each
    else:
        assert choose_num_blocks(each, has, **sizes) == has // each == fits


def test_ranks_without_a_gpu_of_their_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of(RankPlace(0, 2, 1), "cuda") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="--tensor-parallel-size is 2: .* needs GPU 1, and torch sees 1"):
        device_of(RankPlace(1, 2, 1), "cuda")
