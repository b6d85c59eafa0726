"""An engine process on a Ray cluster, as the server sees it: where it is, and how it ends."""

import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runtime.ray.actor import Facts, kill_process
from runtime.ray.promises import end_of
from runtime.worker.life import ended_or_killed

LEAVE_S = 30.0
"""How long the process of Ray may take to say how an engine has ended."""
KILL_S = 120.0
"""How long a task that kills the process of Ray may take, which needs a process itself."""


@dataclass(frozen=True, slots=True)
class RayProcess:
    """An engine process on the cluster (`RunningProcess`)."""

    facts: Facts
    actor: Any
    process: int
    connected: socket.socket

    @property
    def name(self) -> str:
        return f"the engine process {self.process} on node {self.facts.host}"

    def kill(self) -> None:
        self.actor.kill.remote(self.process)

    async def ended(self) -> str:
        reaped = self.actor.reap.remote(self.process)
        how = await ended_or_killed(partial(end_of, reaped), partial(kill, self.facts), LEAVE_S, KILL_S)
        return "does not end" if how is None else how


def kill(facts: Facts) -> None:
    """End a process by a task on its node: an actor that Ray has begun again by now is another process."""
    node = NodeAffinitySchedulingStrategy(facts.node, soft=False)
    task = ray.remote(kill_process).options(num_cpus=0, max_retries=0, scheduling_strategy=node)
    task.remote(facts.process)
