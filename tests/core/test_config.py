"""Settings that cannot work raise an error that names the field."""

import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.core.config import ConfigError, SchedulerConfig

WRONG = [
    {"max_num_seqs": 0},
    {"max_num_batched_tokens": 0},
    {"max_model_len": 0},
    {"block_size": 0},
    {"num_gpu_blocks": 1},
    {"watermark": 1.0},
    {"watermark": -0.1},
    {"long_prefill_token_threshold": -1},
    {"max_num_active_seqs": 0},
    {"max_num_batched_tokens": 100, "max_model_len": 200, "enable_chunked_prefill": False},
]


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_a_wrong_scheduler_setting_is_named(fields: dict[str, int]) -> None:
    """With the value it has."""
    name, value = next(iter(fields.items()))
    with pytest.raises(ConfigError, match=f"^{name} is {value}"):
        SchedulerConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"replicas": 0}, {"max_waiting": 0}], ids=str)
def test_a_wrong_engine_setting_is_named(fields: dict[str, object]) -> None:
    """With the value it has."""
    name = next(iter(fields))
    with pytest.raises(ConfigError, match=f"^{name} is "):
        EngineConfig(**fields)  # type: ignore[arg-type]


def test_a_misspelt_setting_is_an_error_that_names_it() -> None:
    """Nothing is silently ignored."""
    with pytest.raises(TypeError, match="max_num_sequences"):
        SchedulerConfig(max_num_sequences=3)  # type: ignore[call-arg]


def test_the_defaults_work() -> None:
    """Both configurations can be made of nothing."""
    assert EngineConfig().scheduler == SchedulerConfig()


def test_a_pool_must_hold_one_request_of_the_full_length() -> None:
    """64 tokens in blocks of 16 need four and the null block; the message says the way out."""
    config = EngineConfig(SchedulerConfig(max_model_len=64, block_size=16))
    assert config.with_blocks(5).num_gpu_blocks == 5
    with pytest.raises(ConfigError, match=r"num_gpu_blocks is 4.*needs 5.*--max-model-len to 48"):
        config.with_blocks(4)


def test_a_configuration_never_changes() -> None:
    """It is checked once, so it must stay what was checked."""
    with pytest.raises(AttributeError):
        SchedulerConfig().max_num_seqs = 3  # type: ignore[misc]
