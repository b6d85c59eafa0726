"""Options that serving and simulating share, under vLLM's names."""

from dataclasses import replace
from typing import Any

from sundog.actors.config import ConfigError, EngineConfig, SchedulerConfig
from sundog.actors.config.generation import parse_override
from sundog.actors.config.speculative import SpeculativeConfig, parse_speculative_config
from sundog.actors.core.config import VICTIMS
from sundog.actors.core.engine_version import NEWEST, decisions_of, is_async, weighs_kv
from sundog.actors.core.policies import POLICIES
from sundog.actors.core.records import dataclass
from sundog.actors.core.routers import ROUTERS
from sundog.actors.policy_file import find_policy, find_router
from sundog.options.row import ENGINE, SCHEDULER, AnyText, OneOf, Parsed, Real, Switch, Whole, option, rows

KV_CACHE = "KV cache"
SCHEDULING = "Engine, further"
REPLICAS = "Replicas and limits"
MOST_TOKENS = 2**27
MOST_BLOCKS = 2**24
"""Largest number of KV blocks: at 140 bytes each the pool takes 2.3 GB."""
UNKNOWN_CONTEXT = 4096
"""Tokens of a context if neither the model nor an option sets it."""
DEFAULT_LIMITS = (2048, 256)
"""vLLM's limits (max_num_batched_tokens, max_num_seqs) for unknown hardware."""

SIMULATED_ONLY = (
    "engine_version",
    "kv_cache_dtype",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "override_generation_config",
)
"""Rows of `EngineOptions` that the torch backend does not support, and that commands with a real model omit.
"""

OWN = SchedulerConfig()
"""Defaults of the configuration itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Engine that is served or simulated; None leaves a limit to the model or the hardware."""

    max_num_seqs: int | None = option(
        None, Whole(1, 2**20), "At most this many requests run at once.", to=SCHEDULER
    )
    max_num_batched_tokens: int | None = option(
        None, Whole(1, MOST_TOKENS), "Token budget of a step.", to=SCHEDULER
    )
    max_model_len: int | None = option(
        None, Whole(1, MOST_TOKENS), "Longest context; the model's own if not given.", to=SCHEDULER
    )
    num_gpu_blocks: int | None = option(
        None,
        Whole(2, MOST_BLOCKS),
        "KV blocks, the null block included; what fits into memory if not given.",
        to=SCHEDULER,
        names=("--num-gpu-blocks-override",),
    )
    tensor_parallel_size: int = option(
        1, Whole(1, 1024), "GPUs, or processes on a CPU, that share each layer.", names=("-tp",)
    )
    dtype: str = option("auto", AnyText("TYPE"), "Type of weights and activations; auto is the model's own.")
    quantization: str | None = option(
        None,
        AnyText("FORMAT"),
        "Format of weights: int8; int4 (served); fp8, awq, gptq, mxfp4, nvfp4 (simulated); else its own.",
    )
    policy: str = option(
        "fcfs",
        AnyText("POLICY", is_path=True),
        f"Order of the queue: {', '.join(POLICIES)}, or FILE.py:NAME; parameters follow as :KEY=VALUE,….",
        names=("--scheduling-policy",),
        completes=lambda: POLICIES,
    )
    async_scheduling: bool | None = option(
        None,
        Switch(),
        "Plan a step while the last one runs. Default: as the engine version if simulated, off on a CPU.",
        to=SCHEDULER,
    )
    engine_version: str = option(
        NEWEST, AnyText("X.Y"), "Version of vLLM to predict; below 0.14 scheduling is synchronous."
    )
    replicas: int = option(1, Whole(1, 4096), "Equal engines behind one router.", to=ENGINE)
    seed: int = option(
        0, Whole(0, 2**32 - 1), "Seed of everything random; the same seed gives the same results.", to=ENGINE
    )

    block_size: int = option(
        OWN.block_size, Whole(1, 8192), "Tokens per block.", section=KV_CACHE, to=SCHEDULER
    )
    kv_cache_dtype: str = option(
        "auto", AnyText("TYPE"), "Type of keys and values: auto (as activations) or fp8.", section=KV_CACHE
    )
    gpu_memory_utilization: float | None = option(
        None, Real(0, 1, above=True), "Share of the GPU's memory that may be used.", section=KV_CACHE
    )
    enable_prefix_caching: bool = option(
        OWN.enable_prefix_caching,
        Switch(),
        "Reuse the blocks of finished requests for prompts with the same beginning.",
        section=KV_CACHE,
        to=SCHEDULER,
    )
    prefix_caching_hash_algo: str = option(
        EngineConfig().prefix_caching_hash_algo,
        AnyText("NAME"),
        "Hash function for blocks in the prefix cache.",
        section=SCHEDULING,
        to=ENGINE,
        rare=True,
    )
    watermark: float = option(
        OWN.watermark,
        Real(0, 1, below=True),
        "Share of the blocks that admission leaves free.",
        section=KV_CACHE,
        to=SCHEDULER,
    )
    refuse_never_fit: bool = option(
        False,
        Switch(),
        "Allow a KV cache below the context; refuse requests that could outgrow it.",
        section=SCHEDULING,
        to=ENGINE,
        rare=True,
    )

    enable_chunked_prefill: bool = option(
        OWN.enable_chunked_prefill,
        Switch(),
        "Compute long prompts in parts, in the same steps as decodes.",
        section=SCHEDULING,
        to=SCHEDULER,
    )
    long_prefill_token_threshold: int = option(
        OWN.long_prefill_token_threshold,
        Whole(0, MOST_TOKENS),
        "Most tokens of one prompt in a step; 0 is no limit.",
        section=SCHEDULING,
        to=SCHEDULER,
        rare=True,
    )
    prefill_schedule_interval: int = option(
        OWN.prefill_schedule_interval,
        Whole(1, MOST_TOKENS),
        "While requests decode, compute prompts in every Nth step only; vLLM 0.32 ignores it.",
        section=SCHEDULING,
        to=SCHEDULER,
        rare=True,
    )
    preempt_for_priority: bool = option(
        OWN.preempt_for_priority,
        Switch(),
        "Let a waiting request take the place of less urgent running ones.",
        section=SCHEDULING,
        to=SCHEDULER,
    )
    max_overtakes: int = option(
        OWN.max_overtakes,
        Whole(0, 2**20),
        "Number of requests that may overtake one that lacks KV blocks.",
        section=SCHEDULING,
        to=SCHEDULER,
        rare=True,
    )
    victim: str = option(
        OWN.victim,
        OneOf(VICTIMS),
        "Request to preempt when KV blocks run out.",
        section=SCHEDULING,
        to=SCHEDULER,
        rare=True,
    )

    speculative_config: str | None = option(
        None,
        Parsed(parse_speculative_config, "JSON"),
        'Drafts: {"method": "ngram", "num_speculative_tokens": 4}, or a draft "model".',
        section=SCHEDULING,
    )

    override_generation_config: str | None = option(
        None,
        Parsed(parse_override, "JSON"),
        'Sampling defaults that override the model\'s own: {}, {"top_k": 20, "top_p": 0.9}.',
        section=SCHEDULING,
        rare=True,
    )

    pipeline_parallel_size: int = option(
        1,
        Whole(1, 1024),
        "Stages that the layers are split over.",
        section=REPLICAS,
        to=SCHEDULER,
        names=("-pp",),
    )
    data_parallel_size: int = option(
        1,
        Whole(1, 4096),
        "Data-parallel ranks: multiplies the replicas. Simulated ranks that share experts step together.",
        section=REPLICAS,
        names=("-dp",),
    )
    enable_expert_parallel: bool = option(
        False, Switch(), "Give each rank whole experts instead of a part of all.", section=REPLICAS
    )
    enforce_eager: bool = option(
        False,
        Switch(pair=False),
        "Launch every step kernel by kernel, without captured graphs; no effect where a model is computed.",
        section=SCHEDULING,
    )
    router: str | None = option(
        None,
        AnyText("ROUTER", is_path=True),
        f"Choice of the replica: {', '.join(ROUTERS)}, or FILE.py:NAME; parameters as of policies."
        " round-robin if not given, and data-parallel with --data-parallel-size.",
        section=REPLICAS,
        completes=lambda: ROUTERS,
    )
    router_replicas: int = option(
        1,
        Whole(1, 256),
        "Number of routers that take turns; each knows only the requests that it sent.",
        section=REPLICAS,
        to=ENGINE,
        rare=True,
    )
    max_waiting: int | None = option(
        None,
        Whole(1, 2**30),
        "Refuse requests while this many are unfinished (HTTP 429).",
        section=SCHEDULING,
        to=ENGINE,
    )
    debug: bool = option(
        False,
        Switch(pair=False),
        "Verify every invariant whenever an engine is idle: up to 0.4 s for a million KV blocks.",
        section=SCHEDULING,
        to=ENGINE,
        kept=False,
        rare=True,
    )

    def config(self, context: int | None, limits: tuple[int, int] = DEFAULT_LIMITS) -> EngineConfig:
        """Return the deployment for a model whose context is `context` tokens."""
        if self.max_model_len is not None and context is not None and self.max_model_len > context:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}, but the model's context is {context}:"
                " lower --max-model-len"
            )
        of_scheduler, of_engine = self._given(SCHEDULER), self._given(ENGINE)
        chosen = {
            "max_num_batched_tokens": limits[0],
            "max_num_seqs": limits[1],
            "max_model_len": context or UNKNOWN_CONTEXT,
            "engine_version": decisions_of(self.engine_version),
        }
        asked = self.speculation
        if asked is not None:
            chosen["num_speculative_tokens"] = asked.num_tokens
            chosen["num_lookahead_tokens"] = asked.num_lookahead_tokens
        scheduler = SchedulerConfig(**{**chosen, **of_scheduler})
        return EngineConfig(
            scheduler=scheduler,
            policy=find_policy(self.policy),
            router=find_router(self.chosen_router),
            speculation=asked,
            **of_engine,
        )

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Configuration of drafts; None without drafts."""
        text = self.speculative_config
        return None if text is None else parse_speculative_config(text)

    @property
    def drawing(self) -> dict[str, float] | None:
        """Sampling settings that replace the model's own; None samples greedily."""
        text = self.override_generation_config
        return None if text is None else parse_override(text)

    @property
    def chosen_router(self) -> str:
        """Chosen router, or else vLLM's own among data-parallel ranks, by its version."""
        if self.router is not None:
            return self.router
        if self.data_parallel_size == 1:
            return "round-robin"
        return "data-parallel" if weighs_kv(self.engine_version) else "data-parallel:rule=counts"

    def simulated(self) -> "EngineOptions":
        """Return the engine with its version's default of async scheduling; drafts switch it off."""
        if self.async_scheduling is not None:
            return self
        is_ahead = is_async(self.engine_version, self.pipeline_parallel_size)
        return replace(self, async_scheduling=is_ahead and not self.speculative_config)

    @property
    def drafts_ahead(self) -> bool:
        """Whether the engine version plans ahead with a draft model, too, so that the host's work
        overlaps.
        """
        asked = self.speculation
        return asked is not None and asked.model is not None and is_async(self.engine_version)

    @property
    def simulated_remarks(self) -> tuple[str, ...]:
        """A remark if drafts switch off the version's default of async scheduling in a simulation."""
        asked, is_given = self.speculation, self.async_scheduling is not None
        if asked is None or is_given or not is_async(self.engine_version):
            return ()
        if self.drafts_ahead:
            return (
                "with a draft model steps are planned one by one, while vLLM plans ahead; the host's work is"
                " assumed to overlap as in vLLM",
            )
        return ("async scheduling is off with n-gram drafts, as in vLLM",)

    def _given(self, part: str) -> dict[str, Any]:
        values = {row.name: getattr(self, row.name) for row in rows(EngineOptions) if row.to == part}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringOptions:
    """Options of measuring a model's engine."""

    device: str = option("cpu", OneOf(("cpu", "cuda")), "Device of the model.")
    num_threads: int | None = option(
        None, Whole(1, 4096), "Number of threads, for the engine and for the `sundog serve` that is measured."
    )
    seconds: float = option(
        30.0, Real(0, 86_400), "Seconds for which steps are measured, at least three repetitions."
    )
    http: bool = option(True, Switch(), "Measure what a server adds to steps and requests, too.")
