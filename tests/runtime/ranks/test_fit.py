"""Which models ranks can share; unsupported ones are refused with the reason (`docs/ranks.md`)."""

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from transformers import AutoConfig

from sundog.actors.config import ConfigError
from sundog.builds.engine_process import ServeOrders
from sundog.options.engine import EngineOptions
from sundog.options.serving import RealServing
from sundog.runtime.ranks.fit import why_not_shared
from tests.runtime.models import ARCHITECTURES, COMMON


@pytest.mark.parametrize(
    ("architecture", "settings", "num_ranks", "words"),
    [
        ("llama", {}, 3, "has 2 KV heads, fewer than ranks: give at most 2"),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 8}, 3, "give 2, 4, 8"),
        ("llama", {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}, 2, "give 3"),
        ("gpt_oss", ARCHITECTURES["gpt_oss"], 2, "has no tp_plan"),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, 2, "is quantised"),
        ("llama", {"base_model_tp_plan": {"layers.*.mlp": "sequence_parallel"}}, 2, "as sequence_parallel"),
    ],
)
def test_a_model_that_ranks_cannot_share_is_refused(
    architecture: str, settings: dict[str, object], num_ranks: int, words: str
) -> None:
    """And what would do is said where something would."""
    plan = settings.get("base_model_tp_plan")
    config = AutoConfig.for_model(architecture, **{**COMMON, **settings})
    if plan is not None:
        config.base_model_tp_plan = plan
    reason = why_not_shared(config, num_ranks)
    assert reason is not None and words in reason


@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES} - {"gpt2", "gpt_oss"}))
def test_models_with_heads_enough_are_shared(architecture: str) -> None:
    """All architectures that are tested, but those without a plan."""
    assert (
        why_not_shared(AutoConfig.for_model(architecture, **{**COMMON, **ARCHITECTURES[architecture]}), 2)
        is None
    )


@pytest.mark.parametrize(
    ("engine", "serving", "words"),
    [
        ({}, {"in_process": True}, "--in-process"),
        ({}, {"enable_lora": True}, "--enable-lora"),
        ({"quantization": "int8"}, {}, "--quantization"),
        (
            {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}'},
            {},
            "--speculative-config",
        ),
    ],
)
def test_what_ranks_cannot_do_is_refused_by_its_option(
    engine: dict[str, object], serving: dict[str, object], words: str
) -> None:
    """Before a process begins."""
    asked = EngineOptions(tensor_parallel_size=2, **engine)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        ServeOrders(model=None, serving=RealServing(**serving), engine=asked).open()  # type: ignore[arg-type]
