"""KV events as subscribers get them: the frames, what they say, and what was missed."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from sundog.actors.block_hash import block_hasher
from sundog.actors.config import EngineConfig
from sundog.actors.config.kv_events import parse_kv_events_config
from sundog.actors.core.params.sampling import Adapter
from sundog.builds.served import as_served
from sundog.options.serving import Serving
from tests.live import EMULATED, Live, live
from tests.ports import free_ports
from tests.sundog.test_runs import refused, sundog

CONFIG = {
    "enable_kv_cache_events": True,
    "endpoint": "tcp://*:0",
    "replay_endpoint": "tcp://*:0",
    "topic": "kv",
    "buffer_steps": 1000,
}
PROMPT = list(range(300, 340))
"""Two full blocks and a half."""
END = b"\xff" * 8


@dataclass
class Subscriber:
    """What comes at an engine's address, folded as a router folds it."""

    socket: Any
    known: set[int]
    events: list[dict[str, Any]]
    numbers: list[int]
    ranks: set[int]

    def read(self, until: str) -> dict[str, Any]:
        """Read to the next event of this type."""
        while self.socket.poll(20_000):
            topic, number, batch = self.socket.recv_multipart()
            assert topic == b"kv"
            if event := self.take(number, batch, until):
                return event
        raise AssertionError(f"no {until} in {self.events}")

    def take(self, number: bytes, batch: bytes, until: str) -> dict[str, Any] | None:
        """Fold a batch; its last event of this type."""
        self.numbers.append(int.from_bytes(number, "big"))
        ts, events, rank = msgspec.msgpack.decode(batch)
        assert ts > 1.7e9
        self.ranks.add(rank)
        found = None
        for event in events:
            self.events.append(event)
            match event["type"]:
                case "BlockStored":
                    self.known |= set(event["block_hashes"])
                case "BlockRemoved":
                    self.known -= set(event["block_hashes"])
                case "AllBlocksCleared":
                    self.known.clear()
            found = event if event["type"] == until else found
        return found


@contextmanager
def subscribed(server: Live, rank: int) -> Iterator[Subscriber]:
    (line,) = [line for line in server.said if "KV events are published at" in line]
    port = re.findall(r"tcp://[\d.]+:(\d+)", line)[rank]
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.setsockopt(zmq.SUBSCRIBE, b"kv")
        heard = Subscriber(socket, set(), [], [], set())
        until_subscribed(server, heard)
        yield heard


def test_an_address_that_is_connected_to_must_be_bound() -> None:
    """The server says so: a subscriber that connects, too, would hear nothing."""
    config = CONFIG | {"endpoint": "tcp://127.0.0.1:5999", "replay_endpoint": None}
    with live(*EMULATED, "--kv-events-config", json.dumps(config)) as server:
        said = [line.strip() for line in server.said if "KV events" in line]
        assert said == ["KV events are sent to tcp://127.0.0.1:5999, which must be bound"]
        assert server.stop() == 0


@pytest.fixture(scope="module", params=["simulate", "torch"])
def server(request: pytest.FixtureRequest) -> Iterator[Live]:
    """One that publishes; torch's engine is a process of its own."""
    own = EMULATED if request.param == "simulate" else ("sundog", "serve", "--port", "0")
    config = ("--kv-events-config", json.dumps(CONFIG), "--admin-key", "k", "--num-gpu-blocks", "300")
    with live(*own, *config, "--max-model-len", "512", "--enable-lora") as running:
        yield running
        assert running.stop() == 0


def ask(server: Live, prompt: list[int], **fields: object) -> None:
    answer = server.complete(prompt, max_tokens=2, ignore_eos=True, **fields)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text


def hashes(tokens: list[int], salt: str | None = None, adapter: Adapter | None = None) -> list[int]:
    """What vLLM publishes of the full blocks of a prompt: the last 64 bits of the chain of hashes."""
    hash_block, keys = block_hasher("sha256"), list[Any]()
    for start in range(0, len(tokens) - 15, 16):
        block = tuple(tokens[start : start + 16])
        keys.append(hash_block(keys[-1] if keys else None, block, salt, adapter))
    return [int.from_bytes(key[-8:], "big") for key in keys]


def until_subscribed(server: Live, subscriber: Subscriber) -> None:
    """ZMQ does not say when a subscription has arrived: ask for new prompts until one is heard of."""
    for number in range(100):
        ask(server, [400 + number] * 16 + [5])
        if subscriber.socket.poll(200):
            return
    raise AssertionError("nothing is published")


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_what_is_stored_is_said_with_its_tokens(server: Live) -> None:
    """Prompt and answer, block by block, each behind its parent; what is there already is not said again."""
    with subscribed(server, 0) as heard:
        check_stored(server, heard)


def check_stored(server: Live, heard: Subscriber) -> None:
    prompt = list(range(600, 640))  # of no other test
    ask(server, prompt)
    while (event := heard.read("BlockStored"))["token_ids"] != prompt[:32]:
        pass
    assert event["block_hashes"] == hashes(prompt) and event["parent_block_hash"] is None
    assert (event["block_size"], event["medium"], event["lora_id"], event["lora_name"]) == (
        16,
        "GPU",
        None,
        None,
    )
    assert event["group_idx"] == 0 and event["extra_keys"] == [None, None]
    longer = [*prompt[:32], *range(500, 517)]
    ask(server, longer, cache_salt=None)
    event = heard.read("BlockStored")
    assert event["token_ids"] == longer[32:48] and event["parent_block_hash"] == hashes(prompt)[1]
    ask(server, prompt, cache_salt="s")
    event = heard.read("BlockStored")
    assert event["extra_keys"] == [["s"], None] and event["block_hashes"] == hashes(prompt, "s")
    assert heard.numbers == list(range(heard.numbers[0], heard.numbers[-1] + 1)) and heard.ranks == {0}


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_what_is_reused_is_said_to_be_gone(server: Live) -> None:
    """More prompts than fit: blocks of the first ones are removed, and a reset clears them all."""
    with subscribed(server, 0) as heard:
        check_removed(server, heard)


def check_removed(server: Live, heard: Subscriber) -> None:
    for number in range(12):
        ask(server, [600 + number] * 480)
    event = heard.read("BlockRemoved")
    assert event["block_hashes"] and event["medium"] == "GPU"
    assert hashes([611] * 480)[-1] in heard.known or heard.read("BlockStored")
    reset = httpx.post(f"{server.url}/reset_prefix_cache", headers={"Authorization": "Bearer k"})
    assert reset.json() == {"success": True}
    ask(server, PROMPT)
    assert heard.read("AllBlocksCleared") == {"type": "AllBlocksCleared"}


def sent_again(port: int, first: int) -> list[list[bytes]]:
    """What is answered to who asks for batches from a number on, to the mark of the end."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send_multipart((b"", first.to_bytes(8, "big")))
        frames: list[list[bytes]] = []
        while not frames or frames[-1][1] != END:
            frames.append(socket.recv_multipart()[1:])
        return frames


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_an_engine_publishes_at_its_own_port_and_sends_again_what_was_missed() -> None:
    """Ranks add to the port; who asks from a number on gets batches from there and the end."""
    base = free_ports(4, 30_000)
    replays = base + 2
    config = {**CONFIG, "endpoint": f"tcp://*:{base}", "replay_endpoint": f"tcp://*:{replays}"}
    command = (*EMULATED, "--replicas", "2", "--kv-events-config", json.dumps(config))
    with live(*command) as server:
        for number in range(4):
            ask(server, [700 + number] * 20)
        for rank in range(2):
            frames = sent_again(replays + rank, 1)
            heard = Subscriber(None, set(), [], [], set())
            heard.take(frames[0][1], frames[0][2], "")
            assert heard.numbers == [1] and heard.ranks == {rank} and frames[0][0] == b"kv"
            (event,) = heard.events
            assert event["token_ids"][0] in range(700, 704)
            assert frames[1:] == [[b"", END, b""]]
            assert sent_again(replays + rank, 2) == [[b"", END, b""]]
        refused(
            sundog("emulate", "--gpu", "h100", "--port", 0, "--kv-events-config", json.dumps(config)),
            f"cannot listen at tcp://*:{base}",
        )
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("[]", "give a JSON object like"),
        ('{"endpoint": "localhost:5557"}', 'endpoint is "localhost:5557": give an address like tcp://*:5557'),
        ('{"publisher": "kafka"}', 'publisher is "kafka": give zmq or null'),
        ('{"hwm": -1}', "hwm is -1: give a whole number"),
        ('{"topics": "a"}', "topics is not supported: give enable_kv_cache_events"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line(config: str, reason: str) -> None:
    refused(sundog("emulate", "--gpu", "h100", "--kv-events-config", config), reason)


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        ({"endpoint": "tcp://*:65534"}, ("--replicas", 3), "endpoint is tcp://*:65534, and engine 2 needs"),
        (
            {"endpoint": "ipc:///tmp/e", "replay_endpoint": "tcp://*:65535"},
            ("--data-parallel-rank", 1),
            "replay_endpoint is tcp://*:65535, and engine 1 needs the port 1 after it: give a port of",
        ),
    ],
)
def test_an_engine_without_a_port_is_refused(
    config: dict[str, Any], options: tuple[object, ...], reason: str
) -> None:
    """Before anything begins, in one line that says which port would do."""
    text = json.dumps({"enable_kv_cache_events": True, **config})
    done = sundog("emulate", "--gpu", "h100", "--port", 0, "--kv-events-config", text, *options)
    refused(done, f"--kv-events-config: {reason}")


def test_engines_share_no_port_that_nobody_publishes_at() -> None:
    """The last port is one; a free port, and a path, have room for any number."""
    for fields, last in (
        ({"endpoint": "tcp://*:65535"}, 0),
        ({"endpoint": "tcp://*:0", "replay_endpoint": "ipc:///tmp/65535"}, 70_000),
    ):
        parse_kv_events_config(json.dumps(fields)).check_ranks(last)
    config = as_served(EngineConfig(replicas=3), Serving(kv_events_config='{"endpoint": "tcp://*:65535"}'))
    assert not config.publishes_kv_events
