"""Configuration of one deployment: the scheduler's limits, and everything around the scheduler."""

from dataclasses import field, replace

from sundog.actors.config.front_costs import NO_FRONT, FrontCosts
from sundog.actors.config.hop_costs import NO_HOPS, HopCosts
from sundog.actors.config.pools import EnginePool, check_pools
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.core.policies import Fcfs, Policy, has_urgency
from sundog.actors.core.predictors import LengthPredictor
from sundog.actors.core.queue.policy import class_name, defines
from sundog.actors.core.records import dataclass
from sundog.actors.core.routers import RoundRobin, RouterPolicy
from sundog.actors.core.routers.fleet_state import Role

__all__ = ["ConfigError", "EngineConfig", "SchedulerConfig"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of a deployment: `replicas` equal engines behind one `router`.

    `scheduler.num_gpu_blocks` None leaves the size of the KV cache to the backend. With `max_waiting`
    unfinished requests further ones are refused (HTTP 429); None sets no limit. With `refuse_never_fit` a KV
    cache too small for one request of the full context is allowed: requests that could outgrow it are refused
    one by one, where vLLM would queue them. `max_logprobs` limits how many likeliest tokens a request may
    list per token; -1 is no limit. `lockstep` and `decode_runs` change the cost of a run and none of its
    results; the latter is for backends that only count tokens. Policies' random numbers depend on `seed`.
    With `debug` every invariant of the queues and the pool is checked whenever an engine becomes idle.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    policy: Policy = field(default_factory=Fcfs)
    replicas: int = 1
    router: RouterPolicy = field(default_factory=RoundRobin)
    router_replicas: int = 1
    """Number of Routers, which receive requests in turn; each counts only the requests that it sent."""
    max_waiting: int | None = None
    prefix_caching_hash_algo: str = "sha256"
    refuse_never_fit: bool = False
    max_logprobs: int = 20
    lockstep: bool = True
    decode_runs: bool = False
    seed: int = 0
    debug: bool = False
    speculation: SpeculativeConfig | None = None
    hops: HopCosts = NO_HOPS
    front: FrontCosts = NO_FRONT
    publishes_kv_events: bool = False
    """Whether engines report the tokens of the blocks in their prefix caches, for external readers."""
    predictor: LengthPredictor | None = None
    """Predictor of answer lengths that clients do not predict."""
    pools: tuple[EnginePool, ...] = ()
    """Engines by pool, if they are not equal; `replicas` counts all of them, and `scheduler` has the
    limits of a whole request.
    """

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"replicas is {self.replicas}: it must be at least 1")
        if self.max_waiting is not None and self.max_waiting < 1:
            raise ConfigError(f"max_waiting is {self.max_waiting}: it must be at least 1")
        if self.router_replicas < 1:
            raise ConfigError(f"router_replicas is {self.router_replicas}: it must be at least 1")
        if self.router_replicas > 1 and self.moves:
            raise ConfigError(
                f"router_replicas is {self.router_replicas}, and {class_name(self.router)} moves requests,"
                " which only a single router can: leave it at 1"
            )
        if self.max_logprobs < -1:
            raise ConfigError(f"max_logprobs is {self.max_logprobs}: give -1 for no bound, or at least 0")
        if self.scheduler.preempt_for_priority and not has_urgency(self.policy):
            raise ConfigError(
                f"preempt_for_priority needs a policy that defines an urgency, and"
                f" {class_name(self.policy)} does not: try priority, earliest-deadline,"
                " shortest-remaining or mlfq"
            )
        if defines(self.policy, "quota") and not self.scheduler.enable_chunked_prefill:
            raise ConfigError(
                f"policy {class_name(self.policy)} gives quotas, which need chunked prefill: enable it"
            )

        if self.pools:
            check_pools(self.pools)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Role of each replica."""
        whole: Role = "both"
        if not self.pools:
            return (whole,) * self.replicas
        return tuple(pool.role for pool in self.pools for _ in range(pool.replicas))

    @property
    def has_host_memory(self) -> bool:
        """Whether any engine also keeps KV blocks in host memory."""
        schedulers = [self.scheduler, *(pool.scheduler for pool in self.pools)]
        return any(scheduler.host_memory is not None for scheduler in schedulers)

    @property
    def hands_over(self) -> bool:
        """Whether some engines compute prompts and other engines the answers."""
        return any(pool.role == "prefill" for pool in self.pools)

    @property
    def moves(self) -> bool:
        """Whether the router may move requests between replicas."""
        return defines(self.router, "moves", RouterPolicy)

    @property
    def passes_on(self) -> bool:
        """Whether several engines may work on a request, one after another."""
        return self.hands_over or self.moves

    def of_replica(self, replica: int) -> "EngineConfig":
        """Return the configuration of one engine, with the limits of its pool."""
        if not self.pools:
            return self
        schedulers = [pool.scheduler for pool in self.pools for _ in range(pool.replicas)]
        return replace(self, scheduler=schedulers[replica])

    def with_blocks(self, num_blocks: int) -> SchedulerConfig:
        """Return the scheduler's limits with a pool of `num_blocks`, including the null block.

        Raises ConfigError if one request of the full length would not fit; with `refuse_never_fit` the length
        is reduced to what fits.
        """
        config = replace(self.scheduler, num_gpu_blocks=num_blocks)
        needed = -(-config.max_model_len // config.block_size) + 1
        if num_blocks < needed and self.refuse_never_fit:
            return replace(config, max_model_len=(num_blocks - 1) * config.block_size)
        if num_blocks < needed:
            raise ConfigError(
                f"num_gpu_blocks is {num_blocks}, but one request of max_model_len"
                f" {config.max_model_len} needs {needed} (the null block included):"
                f" lower --max-model-len to {(num_blocks - 1) * config.block_size} or give the"
                " KV cache more memory"
            )
        return config
