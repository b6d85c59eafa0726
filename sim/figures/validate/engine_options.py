"""What a real server was started with, beside its limits: under vLLM's names, nothing ignored."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from actors.config.speculative import SpeculativeConfig, parse_speculative_config
from actors.core.config import ConfigError

NOT_MODELLED = (
    "compilation_config",
    "cpu_offload_gb",
    "decode_context_parallel_size",
    "enable_dbo",
    "enable_eplb",
    "enable_lora",
    "enforce_eager",
    "kv_transfer_config",
    "max_num_partial_prefills",
    "prefill_context_parallel_size",
)
"""Arguments that change what a step takes, and that no part of the simulator heeds."""
SIZES = ("_size", "_prefills")
"""Ends of names whose 1 asks for nothing."""


class EngineOptions(BaseModel):
    """How weights, keys and requests are split over GPUs, and what they are stored in."""

    model_config = ConfigDict(frozen=True)

    data_parallel_size: PositiveInt = 1
    pipeline_parallel_size: PositiveInt = 1
    enable_expert_parallel: bool = False
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    block_size: PositiveInt = 16
    scheduling_policy: Literal["fcfs"] = "fcfs"
    speculative_config: dict[str, Any] | str | None = None

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """How drafts are made, if at all. ConfigError where nobody says how many were accepted."""
        if self.speculative_config is None:
            return None
        given = self.speculative_config
        asked = parse_speculative_config(given if isinstance(given, str) else json.dumps(given))
        if not isinstance(asked.acceptance, float | int | tuple):
            raise ConfigError(
                "speculative_config: acceptance is not given: it says which share of the drafts the server"
                " accepted, as in acceptance = 0.6"
            )
        return asked


def engine_options(given: Mapping[str, Any]) -> tuple[EngineOptions, str | None]:
    """Those of engine arguments, and which of the arguments is wrong or not modelled, if any."""
    for name in NOT_MODELLED:
        value = given.get(name)
        if value and not (name.endswith(SIZES) and value == 1):
            return EngineOptions(), f"{name} is {value!r:.60}: not modelled"
    known = {name: given[name] for name in EngineOptions.model_fields if given.get(name) is not None}
    try:
        return EngineOptions(**known), None
    except ValidationError as error:
        first = error.errors()[0]
        return EngineOptions(), f"{first['loc'][0]} is {first['input']!r:.60}: {first['msg']}"
