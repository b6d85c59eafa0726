"""Measured servers: one `MeasuredServer` per measured process, in stages of load.

Start options have vLLM's names, and none is ignored. If only a rate is known, arrivals are generated as load
generators do, and repeated prompts share what the prompts of a group share.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from sundog.actors.config.speculative import SpeculativeConfig, parse_speculative_config
from sundog.actors.core.config import ConfigError
from sundog.actors.core.engine_version import NEWEST
from sundog.sim.figures.distribution import distribution
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload import stream

NOT_MODELLED = (
    "compilation_config",
    "cpu_offload_gb",
    "decode_context_parallel_size",
    "enable_dbo",
    "enable_eplb",
    "enable_lora",
    "kv_transfer_config",
    "max_num_partial_prefills",
    "prefill_context_parallel_size",
)
"""Arguments that change the time of a step and are not modelled."""
SIZES = ("_size", "_prefills")
"""Suffixes of names of arguments that have no effect if they are 1."""


class RecordedOptions(BaseModel):
    """Options of an engine that determine how it is split over GPUs, and its formats."""

    model_config = ConfigDict(frozen=True)

    data_parallel_size: PositiveInt = 1
    pipeline_parallel_size: PositiveInt = 1
    enable_expert_parallel: bool = False
    enforce_eager: bool = False
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    block_size: PositiveInt = 16
    scheduling_policy: Literal["fcfs"] = "fcfs"
    speculative_config: dict[str, Any] | str | None = None
    override_generation_config: dict[str, float] | None = None
    """None for greedy clients; else settings that override the model's sampling defaults."""

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Configuration of drafts, if any. ConfigError if the acceptance is missing."""
        if self.speculative_config is None:
            return None
        given = self.speculative_config
        asked = parse_speculative_config(given if isinstance(given, str) else json.dumps(given))
        if not isinstance(asked.acceptance, float | int | tuple):
            raise ConfigError(
                "speculative_config: acceptance is missing: give the share of drafts that the server"
                " accepted, as in acceptance = 0.6"
            )
        return asked


def engine_options(given: Mapping[str, Any]) -> tuple[RecordedOptions, str | None]:
    """Return the engine's options, and the one that is wrong or not modelled, if any."""
    for name in NOT_MODELLED:
        value = given.get(name)
        if value and not (name.endswith(SIZES) and value == 1):
            return RecordedOptions(), f"{name} is {value!r:.60}: not modelled"
    known = {name: given[name] for name in RecordedOptions.model_fields if given.get(name) is not None}
    try:
        return RecordedOptions(**known), None
    except ValidationError as error:
        first = error.errors()[0]
        return RecordedOptions(), f"{first['loc'][0]} is {first['input']!r:.60}: {first['msg']}"


def exact_poisson(rate_per_s: float, count: int, seed: int, name: str) -> list[float]:
    """Return `count` arrivals with exponential gaps, rescaled to take exactly count / rate."""
    gaps = stream(seed, name).exponential(1.0, count)
    times = np.cumsum(gaps)
    scaled: list[float] = (times * (count / rate_per_s / times[-1])).round(9).tolist()
    return scaled


BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Rounds:
    """`groups` times `per_group` prompts that are sent in turn; those of a group share their first
    `shared_tokens`.
    """

    groups: int
    per_group: int
    shared_tokens: int

    def request(self, index: int, arrival_s: float, num_tokens: int, num_outputs: int) -> TraceRequest:
        """Return prompt number `index` of the cycle, with its blocks named by their contents."""
        prompt = index % (self.groups * self.per_group)
        num_shared = self.shared_tokens // BLOCK_SIZE
        ids = tuple(
            (prompt // self.per_group if block < num_shared else self.groups + prompt) * 10**6 + block
            for block in range(num_tokens // BLOCK_SIZE)
        )
        return TraceRequest(
            str(index), arrival_s, num_tokens, num_outputs, hash_ids=ids, hash_block_tokens=BLOCK_SIZE
        )


Figures = dict[str, float]
"""Seconds by name: `ttft mean`, `e2e p99` and the like; `throughput` is requests a second."""
THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class Stage:
    """Load and its measurements: the server's requests from `first` up to, not including, `stop`.

    `fitted` names the part of the simulator that was fitted to this stage; None for pure predictions.
    `num_gave_up` requests were cancelled by impatient clients; simulated clients never cancel, so figures of
    such a stage are shown but not counted.
    """

    name: str
    first: int
    stop: int
    rate_per_s: float
    figures: Figures
    fitted: str | None = None
    num_gave_up: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """Real server: its start options, its load, and the measurements of its stages.

    `num_gpu_blocks` is None if unrecorded, `gpu_memory_utilization` if it was the default. With `at_client`
    latencies were taken at an HTTP client, including the front end; `max_concurrency` is the clients' limit
    on unfinished requests, `client_timeout_s` their timeout. `options` are further start options; `refused`
    names those that are not modelled.
    """

    name: str
    model: str
    gpu: str
    tensor_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    num_gpu_blocks: int | None
    async_scheduling: bool
    at_client: bool
    requests: list[TraceRequest]
    stages: list[Stage]
    gpu_memory_utilization: float | None = None
    max_concurrency: int | None = None
    client_timeout_s: float | None = None
    refused: str | None = None
    engine_version: str = NEWEST
    options: RecordedOptions = field(default_factory=RecordedOptions)

    @property
    def plans_ahead(self) -> bool:
        """Whether its host's work overlaps with its steps: with n-gram drafts vLLM plans one by one."""
        asked = self.options.speculation
        return self.async_scheduling and (asked is None or asked.model is not None)


def model_of(name: str, folder: Path) -> str:
    """Return a path to a config, relative to the record's folder; else the hub's short name."""
    path = Path(name).expanduser()
    looks_like_one = name.startswith((".", "/", "~")) or name.endswith(".json")
    for candidate in (path, folder / path):
        is_model = (candidate / "config.json").is_file() or (looks_like_one and candidate.exists())
        if is_model:
            return str(candidate)
    return name if looks_like_one else name.rpartition("/")[2].lower().removesuffix("-hf")


Floats = NDArray[np.float64]


def figures_of(asked_s: Floats, first_s: Floats, last_s: Floats, num_tokens: Floats) -> Figures:
    """Return the figures of requests from their times in seconds and numbers of output tokens."""
    many = num_tokens > 1
    tpot_s = (last_s - first_s)[many] / (num_tokens[many] - 1)
    figures: Figures = {}
    for name, values in (("ttft", first_s - asked_s), ("tpot", tpot_s), ("e2e", last_s - asked_s)):
        found = distribution(values)
        if found is not None:
            for kind in ("mean", "p50", "p90", "p99"):
                figures[f"{name} {kind}"] = getattr(found, kind)
    span_s = float(last_s.max() - asked_s.min()) if len(last_s) else 0.0
    if span_s:
        figures[THROUGHPUT] = len(last_s) / span_s
    return figures
