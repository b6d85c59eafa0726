"""What a Ray cluster refuses an engine, and who may connect to the server in its stead."""

import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

pytest.importorskip("ray", reason="the ray extra is not installed")
pytest.importorskip("torch", reason="the engine extra is not installed")

from actors.config import ConfigError
from runtime.ray import place as place_module
from runtime.ray.cluster import Cluster, joined
from runtime.ray.place import Orders, RayPlace, RayProcess
from runtime.wire.sockets import Address, listen
from sundog import engine_process
from sundog.options.engine import Engine
from sundog.options.serving import Serving

pytestmark = [pytest.mark.ray, pytest.mark.wall_clock]
LIFE = "sundog.engine_process:engine_life"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with joined(None, 2) as running:
        yield running


@pytest.fixture
def place_of(cluster: Cluster, request: pytest.FixtureRequest) -> "partial[RayPlace]":
    """Places on it, which are closed at the end."""

    def made(
        model: str | None = None, prepare: str = LIFE, cpus: float = 1.0, wait_s: float = 60.0
    ) -> RayPlace:
        orders = engine_process.Orders(model=model, serving=Serving(), engine=Engine(max_num_seqs=2))
        place = RayPlace(cluster, Orders(prepare, orders.packed()), {"CPU": cpus}, wait_s, None)
        request.addfinalizer(place.close)
        return place

    return partial(made)


async def test_a_folder_that_is_not_on_the_node_is_refused_by_node_and_path(
    cluster: Cluster, place_of: "partial[RayPlace]"
) -> None:
    """In a line; the server's own folder does not help."""
    with pytest.raises(ConfigError, match=rf"node {cluster.host}: .*/no/such/model") as refused:
        await place_of("/no/such/model").begin(0)
    assert "\n" not in str(refused.value)


async def test_a_node_with_another_sundog_is_refused(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, place_of: "partial[RayPlace]"
) -> None:
    """By what differs, before the engine is begun."""
    ours = (("Sundog", "9.9"), *place_module.versions()[1:])
    monkeypatch.setattr(place_module, "versions", lambda: ours)
    with pytest.raises(ConfigError, match=rf"node {cluster.host} has Sundog .*, and this one 9.9"):
        await place_of().begin(0)


async def test_a_node_where_sundog_does_not_even_begin_is_refused(place_of: "partial[RayPlace]") -> None:
    """What the process raised is the reason."""
    with pytest.raises(ConfigError, match=r"engine 0 cannot begin: .*no_such_life"):
        await place_of(prepare="sundog.engine_process:no_such_life").begin(0)


async def test_more_than_this_machine_has_is_refused(place_of: "partial[RayPlace]") -> None:
    """Nobody will add to a cluster of our own, however long one waits."""
    with pytest.raises(ConfigError, match="this machine has no 64 CPU for engine 0"):
        await place_of(cpus=64.0).begin(0)


async def test_who_does_not_know_the_secret_is_not_taken_for_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place_of: "partial[RayPlace]"
) -> None:
    """A stranger who comes first is turned away, and the engine is let in after it."""

    def intruded(address: Address, secret: bytes) -> socket.socket:
        listening = listen(address, secret)
        stranger = socket.create_connection(listening.getsockname())
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: there, and much more than a greeting has\r\n\r\n")
        threading.Timer(1.0, stranger.close).start()
        return listening

    monkeypatch.setattr(place_module, "listen", intruded)
    process = await place_of().begin(0)
    assert isinstance(process, RayProcess) and "a caller is not let in" in caplog.text
    process.connected.close()
    assert "ended" in await process.ended()


async def test_an_actor_that_others_kill_for_good_is_replaced(place_of: "partial[RayPlace]") -> None:
    """`ray.kill` says that Ray shall not begin it again; another begins in its group."""
    import ray

    place = place_of()
    first = await place.begin(0)
    ray.kill(place._homes[0].actor)
    first.connected.close()
    assert "ended" in await first.ended()
    second = await place.begin(0)
    second.connected.close()
    assert second.facts.process != first.facts.process
