"""The EngineCore: the nursery in which one replica's four actors live and die together."""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from actors.actor import Actor, Ref, Tap
from actors.block_hash import block_hasher
from actors.config import EngineConfig
from actors.core.state import SchedulerState
from actors.engine.executor import Executor
from actors.engine.kv_cache_manager import KVCacheManager
from actors.engine.runner import Backend, Runner
from actors.engine.scheduler import Scheduler
from actors.messages import Capacity, Load


@dataclass(frozen=True, slots=True)
class EngineRefs:
    """Where to reach a started engine. Closing both lets it end."""

    scheduler: Ref
    kv_cache_manager: Ref
    capacity: Capacity


async def run_engine_core(
    replica: int,
    config: EngineConfig,
    backends: Sequence[Backend],
    listeners: Sequence[Actor],
    tap: Tap | None = None,
    *,
    task_status: trio.TaskStatus[EngineRefs] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Start from the leaves, report the addresses, and end when all actors have.

    `backends` is one per rank. Raises ConfigError if the KV cache cannot hold one full request.
    """
    async with trio.open_nursery() as nursery:

        async def start(actor: Actor) -> None:
            await nursery.start(actor.live, name=actor.name)

        runners = [
            Runner(f"runner-{replica}.{rank}", backend, tap=tap) for rank, backend in enumerate(backends)
        ]
        executor = Executor(
            f"executor-{replica}", [runner.ref(f"executor-{replica}") for runner in runners], tap=tap
        )
        scheduler_name = f"scheduler-{replica}"
        executor_ref = executor.ref(scheduler_name)
        for actor in (*runners, executor):
            await start(actor)
        capacity: Capacity = await executor_ref.ask(Load())
        scheduler_config = config.with_blocks(capacity.num_blocks)
        manager = KVCacheManager(
            f"kv-cache-manager-{replica}",
            scheduler_config,
            block_hasher(config.prefix_caching_hash_algo),
            tap=tap,
        )
        scheduler = Scheduler(
            scheduler_name,
            replica,
            SchedulerState(
                scheduler_config,
                config.policy,
                manager.lend(),
                lockstep_enabled=config.lockstep,
                decode_runs=config.decode_runs,
            ),
            executor_ref,
            [listener.ref(scheduler_name, counted=False) for listener in listeners],
            checks_when_idle=config.debug,
            tap=tap,
        )
        manager.connect(scheduler.ref(manager.name))
        refs = EngineRefs(scheduler.ref("router"), manager.ref("router"), capacity)
        await start(manager)
        await start(scheduler)
        task_status.started(refs)
