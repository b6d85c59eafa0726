"""A step of the scheduler: plan a batch, commit it, and update the requests with its result.

Example:
    >>> from sundog import Fcfs, Submit
    >>> from sundog.actors.core.blocks.kv_cache import KVCache
    >>> from sundog.actors.core.config import SchedulerConfig
    >>> from sundog.actors.core.step.plan import plan
    >>> from sundog.actors.core.step.state import SchedulerState
    >>> config = SchedulerConfig(num_gpu_blocks=100, max_model_len=256)
    >>> state = SchedulerState(config, Fcfs(), KVCache(config))
    >>> _ = state.arrive(Submit("r1", arrival_s=0.0, num_prompt_tokens=20, max_tokens=4))
    >>> batch, blocked = plan(state)
    >>> batch.chunks[0].num_tokens, batch.chunks[0].samples, blocked
    (20, True, None)
"""
