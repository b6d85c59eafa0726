"""Requests for the tests of the core."""

from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.core.policies import Fcfs, Policy
from sundog.actors.core.request import Request, Submit
from sundog.actors.core.step.state import SchedulerState

MAX_MODEL_LEN = 64


def submit(
    name: str = "a",
    prompt: tuple[int, ...] = (5, 6, 7),
    max_tokens: int = 8,
    *,
    arrival_s: float = 0.0,
    priority: int = 0,
    eos: int | None = None,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
    min_tokens: int = 0,
    salt: str | None = None,
) -> Submit:
    return Submit(
        request_id=name,
        arrival_s=arrival_s,
        num_prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        prompt_token_ids=prompt,
        sampling=Sampling(stop_token_ids=stop_token_ids, ignore_eos=ignore_eos, min_tokens=min_tokens),
        eos_token_id=eos,
        priority=priority,
        cache_salt=salt,
    )


def request(*args: object, **kwargs: object) -> Request:
    return Request(submit(*args, **kwargs), MAX_MODEL_LEN)  # type: ignore[arg-type]


def hash_by_value(
    parent: object, tokens: tuple[int, ...], salt: str | None, adapter: Adapter | None
) -> object:
    """Equal contents, equal keys."""
    return parent, tokens, salt, adapter


def scheduler_state(policy: Policy | None = None, **fields: object) -> SchedulerState:
    config = SchedulerConfig(
        **({"max_model_len": MAX_MODEL_LEN, "num_gpu_blocks": 65, "block_size": 4} | fields)  # type: ignore[arg-type]
    )
    return SchedulerState(config, policy or Fcfs(), KVCache(config, hash_by_value))
