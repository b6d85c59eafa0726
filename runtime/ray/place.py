"""Ray as a place for engine processes: each replica is an actor in its own placement group (STRICT_PACK).

Ray restarts an actor whose process or node is gone, in the same group, wherever that is then; the server's
EngineSupervisor restarts the engine process, which the actor forks, and with it the replica's ranks.
"""

import logging
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import trio
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from sundog.actors.config import ConfigError
from sundog.runtime.ray.actor import EngineActor, Facts, kill_process, versions
from sundog.runtime.ray.cluster import Cluster
from sundog.runtime.ray.promises import answered, end_of, why
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.sockets import first_accepted, listen
from sundog.runtime.worker.clock import set_clock
from sundog.runtime.worker.life import ended_or_killed
from sundog.runtime.worker.messages import WORKER_MESSAGES

LEAVE_S = 30.0
"""Seconds within which Ray's process must report how an engine ended."""
KILL_S = 120.0
"""Seconds for a task that kills Ray's process; the task needs a process of its own."""


@dataclass(frozen=True, slots=True)
class RayProcess:
    """Engine process on the cluster (`RunningProcess`)."""

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
    """End a process by a task on its node: a restarted actor has another process."""
    node = NodeAffinitySchedulingStrategy(facts.node, soft=False)
    task = ray.remote(kill_process).options(num_cpus=0, max_retries=0, scheduling_strategy=node)
    task.remote(facts.process)


log = logging.getLogger("sundog.ray")

LOOK_S = 5.0
"""Seconds between two log lines that an engine has no place yet."""
START_S = 660.0
"""Seconds for an actor to start; its fork server has 600 to import everything (`forks.READY_S`)."""
AGAIN_S = 0.1
MEET_S = 60.0
"""Seconds to connect to the server, handshake included."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders of an actor: `module`, started with `packed`, is the fork server of its engines."""

    module: str
    packed: bytes


@dataclass(slots=True)
class Home:
    """Placement group of a replica, and its actor if one has started."""

    group: Any
    actor: Any = None


class RayPlace:
    """Place of engine processes on a cluster (`Launcher`), until `close`.

    Each gets the resources `demand` on one node, waiting up to `wait_s`. They connect to `host`, this
    machine's address for them.
    """

    def __init__(
        self, cluster: Cluster, orders: Orders, demand: Mapping[str, float], wait_s: float, host: str | None
    ) -> None:
        self._cluster = cluster
        self._orders = orders
        self._demand = dict(demand)
        self._wait_s = wait_s
        self._host = host or cluster.host
        self._homes: dict[int, Home] = {}

    async def begin(self, replica: int) -> RayProcess:
        """Start an engine process in the replica's group; ConfigError if that is impossible."""
        home = await self._home(replica)
        facts = await self._ready(replica, home)
        secret = secrets.token_bytes(32)
        try:
            listening = listen((self._host, 0), secret)
        except OSError as error:
            raise ConfigError(
                f"--ray-host is {self._host}, where this machine cannot listen: {error}"
            ) from None
        with listening:
            port = listening.getsockname()[1]
            promise = home.actor.begin.remote(replica, self._host, port, secret)
            try:
                connected = await _met(listening, secret, promise, facts)
            except BaseException:
                kill(facts)
                raise
        try:
            process = RayProcess(facts, home.actor, await _forked(promise, facts), connected)
        except BaseException:
            connected.close()
            raise
        try:
            await set_clock(connected, is_here=False)
        except BaseException:
            connected.close()
            process.kill()
            raise
        return process

    def tend(self) -> None:
        """Do nothing: Ray restarts its actors, and an actor its fork server."""

    def close(self) -> None:
        """End all actors, and release their groups."""
        for home in self._homes.values():
            with suppress(ray.exceptions.RayError):  # the cluster may be gone itself
                if home.actor is not None:
                    ray.kill(home.actor)
                remove_placement_group(home.group)
        self._homes.clear()

    async def _home(self, replica: int) -> Home:
        if replica not in self._homes:
            self._homes[replica] = Home(placement_group([self._demand], strategy="STRICT_PACK"))
        home = self._homes[replica]
        asked = " and ".join(f"{number:g} {name}" for name, number in self._demand.items())
        waited_s = 0.0
        while not await trio.to_thread.run_sync(home.group.wait, LOOK_S, abandon_on_cancel=True):
            waited_s += LOOK_S
            if self._cluster.is_ours and not self._cluster.fits(self._demand):
                raise ConfigError(f"--on ray: this machine has no {asked} for engine {replica}")
            if waited_s >= self._wait_s:
                raise ConfigError(
                    f"--on ray: no node had {asked} free for engine {replica} within {self._wait_s:g} s;"
                    " give it longer by --ray-wait, or ask for less"
                )
            log.info("engine %d waits for a node with %s", replica, asked)
        return home

    async def _ready(self, replica: int, home: Home) -> Facts:
        is_new = home.actor is None
        if home.actor is None:
            home.actor = self._actor(home)
        with trio.move_on_after(START_S):
            while True:
                try:
                    facts: Facts = await answered(home.actor.facts.remote())
                except ray.exceptions.ActorUnavailableError:
                    await trio.sleep(AGAIN_S)
                except ray.exceptions.RayError as error:
                    if is_new:
                        raise ConfigError(f"--on ray: engine {replica} cannot begin: {why(error)}") from error
                    home.actor, is_new = self._actor(home), True
                else:
                    _check(facts)
                    return facts
        raise WireError(f"Ray does not begin engine {replica}")

    def _actor(self, home: Home) -> Any:
        demand = dict(self._demand)
        return (
            ray.remote(EngineActor)
            .options(
                num_cpus=demand.pop("CPU", 0),
                num_gpus=demand.pop("GPU", 0),
                max_restarts=-1,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(home.group, 0),
            )
            .remote(self._orders.module, self._orders.packed, os.getcwd())
        )


async def _forked(promise: Any, facts: Facts) -> int:
    try:
        with trio.fail_after(MEET_S):
            return int(await answered(promise))
    except trio.TooSlowError:
        kill(facts)
        raise WireError(f"Ray's process {facts.process} on node {facts.host} does not answer") from None
    except ray.exceptions.RayError as error:
        raise WireError(f"node {facts.host} cannot begin it: {why(error)}") from error


async def _met(listening: socket.socket, secret: bytes, promise: Any, facts: Facts) -> socket.socket:
    met: list[socket.socket] = []
    ends: list[str] = []
    async with trio.open_nursery() as nursery:

        async def over() -> None:
            try:
                await answered(promise)
            except ray.exceptions.RayError as error:
                ends.append(why(error))
                nursery.cancel_scope.cancel()

        def refused(error: WireError) -> None:
            log.warning("a caller is not let in where an engine is waited for: %s", error)

        nursery.start_soon(over)
        with trio.move_on_after(MEET_S):
            met.append(await first_accepted(listening, WORKER_MESSAGES, secret, refused))
        nursery.cancel_scope.cancel()
    if met:
        return met[0]
    how = ends[0] if ends else f"nothing within {MEET_S:g} s: can it reach this machine's address?"
    raise WireError(f"no connection from node {facts.host}: {how}")


def _check(facts: Facts) -> None:
    for (name, ours), (_, theirs) in zip(versions(), facts.versions, strict=True):
        if ours != theirs:
            raise ConfigError(
                f"--on ray: node {facts.host} has {name} {theirs}, and this one {ours}: install one on all"
            )
    if facts.refusal is not None:
        raise ConfigError(f"--on ray: node {facts.host}: {facts.refusal}")
