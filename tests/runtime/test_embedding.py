"""Embedding vectors equal those of transformers' forward pass, in any batch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sundog.actors.config import ConfigError
from sundog.actors.config.pooler import PoolingType, parse_pooler_config
from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.embedding.backend import Encoder
from sundog.runtime.embedding.settings import (
    EmbeddingSettings,
    longest_prompt,
    makes_vectors,
    read_settings,
    vector_sizes,
)
from tests.runtime.embedders import KINDS, as_sentence_transformer, make_embedder, states
from tests.runtime.models import random_prompt

POOLED: dict[PoolingType, Callable[[Tensor], Tensor]] = {
    PoolingType.CLS: lambda states_LH: states_LH[0],
    PoolingType.MEAN: lambda states_LH: states_LH.mean(0),
    PoolingType.LAST: lambda states_LH: states_LH[-1],
}
PROMPTS = [random_prompt(seed, length) for seed, length in enumerate((5, 40, 41, 7, 1, 6, 90))]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_librarys_own_forward(kind: str, tmp_path: Path) -> None:
    """Prompts of many lengths at once, against each alone and unpadded."""
    model = make_embedder(kind, tmp_path)
    expected = [states(model, prompt) for prompt in PROMPTS]
    for pooling, pool in POOLED.items():
        vectors = Encoder(tmp_path, EmbeddingSettings(pooling)).vectors(PROMPTS)
        for vector, states_LH in zip(vectors, expected, strict=True):
            torch.testing.assert_close(vector, pool(states_LH), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "pooling"), [("bert", PoolingType.CLS), ("qwen3", PoolingType.LAST)])
def test_without_files_that_say_pooling_follows_the_architecture(
    kind: str, pooling: PoolingType, tmp_path: Path
) -> None:
    """As in vLLM: the first token of an encoder, the last of a decoder."""
    model = make_embedder(kind, tmp_path)
    assert makes_vectors(tmp_path)
    (vector,) = Encoder(tmp_path, read_settings(tmp_path)).vectors(PROMPTS[:1])
    torch.testing.assert_close(vector, POOLED[pooling](states(model, PROMPTS[0])), rtol=1e-4, atol=1e-5)


def test_dense_layers_follow_the_pooling(tmp_path: Path) -> None:
    model = make_embedder("bert", tmp_path)
    as_sentence_transformer(tmp_path, "mean_tokens", "Dense", "Normalize")
    weight, bias = torch.randn(8, 64), torch.randn(8)
    part = tmp_path / "2_Dense"
    save_file({"linear.weight": weight, "linear.bias": bias}, part / "model.safetensors")
    (part / "config.json").write_text(
        '{"out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}'
    )
    settings = read_settings(tmp_path)
    assert settings.normalises
    (vector,) = Encoder(tmp_path, settings).vectors(PROMPTS[:1])
    expected = torch.tanh(weight @ states(model, PROMPTS[0]).mean(0) + bias)
    torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-4)


def test_files_say_how_states_become_vectors(tmp_path: Path) -> None:
    make_embedder("roberta", tmp_path)
    assert longest_prompt(tmp_path, read_settings(tmp_path), 514) == 512
    as_sentence_transformer(tmp_path, "mean_tokens", max_tokens=128, do_lower_case=True)
    settings = read_settings(tmp_path)
    assert (settings.pooling, settings.normalises, settings.lowercases) == (PoolingType.MEAN, False, True)
    assert longest_prompt(tmp_path, settings, 514) == 128
    given = read_settings(tmp_path, parse_pooler_config('{"pooling_type": "CLS", "use_activation": true}'))
    assert (given.pooling, given.normalises) == (PoolingType.CLS, True)


@pytest.mark.parametrize(
    ("mode", "further", "reason"),
    [
        ("max_tokens", (), "pooling by pooling_mode_max_tokens is not served"),
        ("weightedmean_tokens", (), "pooling by nothing is not served"),
        ("mean_tokens", ("LayerNorm",), "has a module LayerNorm: only Transformer, Pooling"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    mode: str, further: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    make_embedder("bert", tmp_path)
    as_sentence_transformer(tmp_path, mode, *further)
    with pytest.raises(LoadError, match=reason):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "give a JSON object like"),
        ('{"pooling_type": "MAX"}', "give CLS, MEAN, LAST"),
        ('{"normalize": true}', "normalize was renamed"),
        ('{"max_embed_len": 3}', "max_embed_len is not supported"),
        ('{"dimensions": 0}', "dimensions is 0: give a whole number of at least 1"),
    ],
)
def test_a_pooler_config_is_refused_by_field(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_pooler_config(text)


def test_vectors_are_cut_only_where_the_model_was_trained_for_it(tmp_path: Path) -> None:
    """`is_matryoshka` allows any length, `matryoshka_dimensions` those it names."""
    settings = EmbeddingSettings(dimensions=16)
    make_embedder("bert", tmp_path)
    with pytest.raises(
        ConfigError, match="dimensions is 16: this model's vectors have 64 numbers and cannot"
    ):
        vector_sizes(tmp_path, settings)
    make_embedder("bert", tmp_path, is_matryoshka=True)
    assert vector_sizes(tmp_path, settings).why_not(65) == "give 1 to 64"
