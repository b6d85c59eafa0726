"""Refusals of a Ray cluster as a place for engines, and authentication of connections to the server."""

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
import trio

pytest.importorskip("ray", reason="the ray extra is not installed")
pytest.importorskip("torch", reason="the engine extra is not installed")

from sundog.actors.config import ConfigError
from sundog.builds import engine_process
from sundog.options.engine import EngineOptions
from sundog.options.serving import RealServing
from sundog.runtime.ray import place as place_module
from sundog.runtime.ray import place as process_module
from sundog.runtime.ray.cluster import Cluster, joined
from sundog.runtime.ray.place import Orders, RayPlace, RayProcess
from sundog.runtime.wire.sockets import Address, listen

pytestmark = [pytest.mark.ray, pytest.mark.wall_clock]
MODULE = "sundog.builds.engine_process"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with joined(None, 2) as running:
        yield running


def new_place(
    cluster: Cluster, model: str | None = None, module: str = MODULE, cpus: float = 1.0, wait_s: float = 60.0
) -> RayPlace:
    """A place on it; whoever has it closes it."""
    orders = engine_process.ServeOrders(
        model=model, serving=RealServing(on="ray"), engine=EngineOptions(max_num_seqs=2)
    )
    return RayPlace(cluster, Orders(module, orders.packed()), {"CPU": cpus}, wait_s, None)


@pytest.fixture(scope="module")
def place(cluster: Cluster) -> Iterator[RayPlace]:
    """A place where engines begin; its actor goes on from test to test."""
    with closing(new_place(cluster)) as place:
        yield place


async def refused(place: RayPlace, why: str) -> str:
    """What is said instead of an engine, at a place that is closed then."""
    with closing(place), pytest.raises(ConfigError, match=why) as caught:
        await place.begin(0)
    return str(caught.value)


async def test_a_folder_that_is_not_on_the_node_is_refused_by_node_and_path(cluster: Cluster) -> None:
    """In a line; the server's own folder does not help."""
    said = await refused(new_place(cluster, "/no/such/model"), rf"node {cluster.host}: .*/no/such/model")
    assert "\n" not in said


async def test_a_node_with_another_sundog_is_refused(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, place: RayPlace
) -> None:
    """By what differs, before the engine is begun."""
    ours = (("Sundog", "9.9"), *place_module.versions()[1:])
    monkeypatch.setattr(place_module, "versions", lambda: ours)
    with pytest.raises(ConfigError, match=rf"node {cluster.host} has Sundog .*, and this one 9.9"):
        await place.begin(0)


async def test_a_node_where_sundog_does_not_even_begin_is_refused(cluster: Cluster) -> None:
    """What the process raised is the reason."""
    place = new_place(cluster, module="sundog.no_such_module")
    await refused(place, r"engine 0 cannot begin: .*no_such_module")


async def test_more_than_this_machine_has_is_refused(cluster: Cluster) -> None:
    """Nobody will add to a cluster of our own, however long one waits."""
    await refused(new_place(cluster, cpus=64.0), "this machine has no 64 CPU for engine 0")


async def test_who_does_not_know_the_secret_is_not_taken_for_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: RayPlace
) -> None:
    """A stranger who comes first is turned away, and the engine is let in after it."""

    def intruded(address: Address, secret: bytes) -> socket.socket:
        listening = listen(address, secret)
        stranger = socket.create_connection(listening.getsockname())
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: there, and much more than a greeting has\r\n\r\n")
        threading.Timer(1.0, stranger.close).start()
        return listening

    monkeypatch.setattr(place_module, "listen", intruded)
    process = await place.begin(0)
    assert isinstance(process, RayProcess) and "a caller is not let in" in caplog.text
    await end(process)


async def test_another_engine_is_forked_of_the_same_process_of_ray(place: RayPlace) -> None:
    """Which says how the one before ended; if that from which it forks has died, there is another first."""
    first = await place.begin(0)
    os.kill(first.process, signal.SIGKILL)
    first.connected.close()
    assert await first.ended() == "was killed by SIGKILL (signal 9)"
    second = await place.begin(0)
    assert second.process != first.process and second.facts == first.facts
    (forks,) = [
        each for each in psutil.Process(first.facts.process).children() if each.name() == "sundog engines"
    ]
    forks.kill()
    second.connected.close()
    assert await second.ended() == "exited with code 1"
    third = await place.begin(0)
    assert third.facts == first.facts
    await end(third)


async def test_a_process_of_ray_that_stands_still_is_replaced(
    monkeypatch: pytest.MonkeyPatch, place: RayPlace
) -> None:
    """It does not say how its engine ended, and is ended with it; Ray begins another."""
    first = await place.begin(0)
    monkeypatch.setattr(process_module, "LEAVE_S", 5.0)
    os.kill(first.facts.process, signal.SIGSTOP)
    first.kill()
    await end(first)
    second = await place.begin(0)
    assert second.facts.process != first.facts.process
    await end(second)
    with trio.fail_after(60):
        while psutil.pid_exists(first.process):
            await trio.sleep(0.05)


async def test_an_actor_that_others_kill_for_good_is_replaced(place: RayPlace) -> None:
    """`ray.kill` says that Ray shall not begin it again; another begins in its group."""
    import ray

    first = await place.begin(0)
    ray.kill(place._homes[0].actor)
    await end(first)
    second = await place.begin(0)
    assert second.facts.process != first.facts.process
    await end(second)


async def end(process: RayProcess) -> None:
    """Hang up on an engine process; it ends, or is ended."""
    process.connected.close()
    with trio.fail_after(180):
        assert re.search("^(exited|was killed|ended)", await process.ended())
