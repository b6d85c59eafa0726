"""Authentication of links: both ends prove the secret before the first frame."""

import socket
import stat
from pathlib import Path

import pytest
import trio

from sundog.actors.config import ConfigError
from sundog.runtime.wire import handshake
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.handshake import GREETING, shake_hands
from sundog.runtime.wire.sockets import connected, first_accepted, listen
from tests.actors.places import MESSAGES

pytestmark = pytest.mark.wall_clock


async def both(
    secrets: tuple[bytes, bytes],
    messages: tuple[type, ...] = MESSAGES,
    called: tuple[bool, bool] = (True, False),
) -> list[str]:
    """What each of two ends says of the other; nothing if it trusts it."""
    ends = socket.socketpair()
    said: list[str] = []

    async def one(n: int) -> None:
        with ends[n]:
            try:
                await shake_hands(ends[n], (MESSAGES, messages)[n], secrets[n], called=called[n])
            except WireError as error:
                said.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 0)
        nursery.start_soon(one, 1)
    return said


async def test_ends_that_know_the_same_secret_trust_each_other() -> None:
    """And the empty one is a secret like any other."""
    assert await both((b"sesame", b"sesame")) == []
    assert await both((b"", b"")) == []


@pytest.mark.parametrize("other", [b"", b"sesam", b"sesame\0", b"x" * 1000])
async def test_another_secret_is_refused_by_both_ends(other: bytes) -> None:
    """Whichever is asked first."""
    said = await both((b"sesame", other))
    assert "the other end does not have the secret" in said and len(said) == 2


async def test_another_version_or_other_messages_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade under a running server."""
    said = await both((b"", b""), (int,))
    assert "another Sundog (wire 3, here 3): install the same at both ends" in said[0]


async def test_an_end_is_not_taken_for_itself() -> None:
    """What one end said proves nothing when it is sent back."""
    assert "the other end is not Sundog" in await both((b"", b""), called=(True, True))
    mirror, end = socket.socketpair()
    with mirror, end:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reflect, mirror)
            with pytest.raises(WireError, match="not Sundog"):
                await shake_hands(end, MESSAGES, b"sesame", called=True)
            nursery.cancel_scope.cancel()


async def reflect(mirror: socket.socket) -> None:
    mirror.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(mirror)
        mirror.send(mirror.recv(1000))


@pytest.mark.parametrize("said", [b"", b"SUNDOG", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 60])
async def test_who_says_nothing_or_something_else_is_dropped_in_time(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port scanner holds nothing up."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    stranger, end = socket.socketpair()
    with stranger, end:
        stranger.send(said)
        with pytest.raises(WireError, match="no greeting within 0.1 s|not Sundog"):
            await shake_hands(end, MESSAGES, b"sesame", called=True)


def test_a_greeting_has_a_fixed_size() -> None:
    """So that nobody is read further before it is trusted."""
    assert GREETING.size == 57


def test_unix_sockets_are_private_and_tcp_needs_a_secret(tmp_path: Path) -> None:
    """Mode 0600, in a folder that is its user's alone."""
    tmp_path.chmod(0o700)
    with listen(tmp_path / "socket", b""):
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="not private"):
        listen(tmp_path / "another", b"")
    with pytest.raises(ConfigError, match="over TCP, which needs a secret"):
        listen(("127.0.0.1", 0), b"")


async def test_a_caller_that_says_nothing_holds_up_nobody() -> None:
    """One that knows the secret is let in at once, though two strangers called before."""
    refused: list[WireError] = []
    with listen(("127.0.0.1", 0), b"sesame") as listening, trio.fail_after(handshake.HANDSHAKE_S / 2):
        address = listening.getsockname()
        with socket.create_connection(address), socket.create_connection(address) as stranger:
            stranger.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 60)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, address)
                ours = await first_accepted(listening, MESSAGES, b"sesame", refused.append)
    ours.close()
    assert "not Sundog" in str(refused[0])


async def call(address: tuple[str, int]) -> None:
    (await connected(address, MESSAGES, b"sesame")).close()
