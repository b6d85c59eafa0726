"""Configuration of the scheduler and the block pool: vLLM's names, checked and frozen."""

from typing import Literal

from sundog.actors.core.config_error import ConfigError as ConfigError
from sundog.actors.core.engine_version import DECISIONS, Decided, Decisions
from sundog.actors.core.records import dataclass

VICTIMS = ("policy", "least-recompute")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory for KV blocks of one engine, and the seconds to copy one block each way."""

    num_blocks: int
    load_s: float
    store_s: float


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and switches of one scheduler; every default is vLLM V1's.

    `num_gpu_blocks` includes the null block 0, so `num_gpu_blocks - 1` blocks are usable; None until the
    backend has reported how many fit (`EngineConfig.with_blocks`). `watermark` is a fraction of
    `num_gpu_blocks`; a threshold of 0 switches it off.

    Three options that vLLM lacks are off by default. `max_overtakes`: how often in one wait later requests
    may be admitted before a request that lacks KV blocks. `preempt_for_priority`: a waiting request may
    preempt running ones that are strictly less urgent. `victim` `least-recompute`: when blocks run out,
    preempt the request that loses the fewest computed tokens.

    `leaves_uncomputed` keeps a fault of vLLM's, to compare logs with: blocks given to a victim in the very
    step that preempts it stay in the prefix cache, though their tokens are never computed.

    With speculative decoding a decoding request computes up to `num_speculative_tokens` drafts a step besides
    its own token, and holds slots for `num_lookahead_tokens` more, which a draft model fills.

    With `pipeline_parallel_size` stages that many batches run at once, each at another stage, and one more is
    planned ahead under async scheduling. A request has one token in flight at a time: later steps leave it
    out until the token is back or, planned ahead, until it will be.

    With a `prefill_schedule_interval` above 1 prompts are computed only in one of so many steps while
    requests decode (`step/cadence.py`); vLLM 0.32 accepts the option and ignores it.

    With `host_memory` blocks are copied there, too (`blocks/host_tier.py`).

    With linear attention the engine `keeps_states`: a prefix is found only up to a block after which a state
    was kept, and chunks of prompts end there (`step/demand.py`), as in vLLM's `mamba_cache_mode` `align`.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    num_gpu_blocks: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    max_num_active_seqs: int | None = None
    engine_version: Decided = "0.33"
    max_overtakes: int = 0
    preempt_for_priority: bool = False
    victim: Literal["policy", "least-recompute"] = "policy"
    leaves_uncomputed: bool = False
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0
    pipeline_parallel_size: int = 1
    prefill_schedule_interval: int = 1
    host_memory: HostMemory | None = None
    keeps_states: bool = False

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "block_size",
            "pipeline_parallel_size",
            "prefill_schedule_interval",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} is {value}: it must be at least 1")
        if self.num_gpu_blocks is not None and self.num_gpu_blocks < 2:
            raise ConfigError(
                f"num_gpu_blocks is {self.num_gpu_blocks}: at least 2 are needed,"
                " because block 0 is the null block"
            )
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark is {self.watermark}: it must be in [0, 1)")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}:"
                " it must be 0 (off) or more"
            )
        if self.max_num_active_seqs is not None and self.max_num_active_seqs < 1:
            raise ConfigError(f"max_num_active_seqs is {self.max_num_active_seqs}: it must be at least 1")
        if self.max_overtakes < 0:
            raise ConfigError(f"max_overtakes is {self.max_overtakes}: it must be 0 (off) or more")
        if self.victim not in VICTIMS:
            raise ConfigError(f"victim is {self.victim!r}: known are {', '.join(VICTIMS)}")
        self._check_speculation()
        if self.host_memory is not None:
            _check_host_memory(self.host_memory, self.enable_prefix_caching)
        if self.keeps_states:
            self._check_states()
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than"
                f" max_model_len ({self.max_model_len}): without chunked prefill a long prompt"
                " could never run; raise it or enable chunked prefill"
            )

    def _check_states(self) -> None:
        if self.host_memory is not None:
            raise ConfigError(
                "kv_offloading_size: states of linear attention in the host's memory are not simulated;"
                " leave it out, or choose a model without linear attention"
            )
        if not self.enable_chunked_prefill:
            raise ConfigError(
                "enable_chunked_prefill is off: prefixes of linear attention are cached where chunks end;"
                " leave it on, or turn enable_prefix_caching off"
            )

    def _check_speculation(self) -> None:
        for name in ("num_speculative_tokens", "num_lookahead_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0 (off) or more")
        if self.num_speculative_tokens and self.async_scheduling:
            raise ConfigError(
                "async_scheduling and speculative decoding exclude each other: a step is planned when the"
                " accepted drafts of the last one are known; leave --async-scheduling out"
            )
        if self.num_speculative_tokens and self.pipeline_parallel_size > 1:
            raise ConfigError(
                f"pipeline_parallel_size is {self.pipeline_parallel_size}: drafts are verified by one stage"
                " alone; leave it at 1, or leave speculative decoding out"
            )

    @property
    def decisions(self) -> Decisions:
        """Decisions in which this engine version differs from others."""
        return DECISIONS[self.engine_version]

    @property
    def max_num_running(self) -> int:
        """Largest number of requests that run at once."""
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def max_concurrent_batches(self) -> int:
        """Largest number of planned steps whose results are not back."""
        return self.pipeline_parallel_size + self.async_scheduling


def _check_host_memory(memory: HostMemory, caches: bool) -> None:
    if memory.num_blocks < 1:
        raise ConfigError("kv_offloading_size is less than one KV block: give more")
    if not caches:
        raise ConfigError(
            "kv_offloading_size needs prefix caching, by which blocks in host memory are found: leave it on"
        )
