"""Sockets of links: a pair of sockets, a Unix socket in a private folder, or TCP with a secret."""

import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from sundog.actors.config import ConfigError
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.handshake import shake_hands
from sundog.runtime.wire.link import Link

Address = Path | tuple[str, int]
"""File of a Unix socket, or a host and a port."""


def listen(address: Address, secret: bytes) -> socket.socket:
    """Return a listening socket for other processes of this user, or ones with the secret.

    A Unix socket has mode 0600, in a folder that is this user's alone. TCP needs a secret.
    """
    if isinstance(address, Path):
        _check_private(address.parent)
        listening = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            listening.bind(os.fspath(address))
        finally:
            os.umask(before)
    else:
        _check_secret(address, secret)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listening = socket.create_server(address, family=family)
    listening.listen()
    listening.setblocking(False)
    return listening


async def accept(listening: socket.socket, messages: Sequence[type], secret: bytes, peer: str) -> Link:
    """Return the link of the next incoming connection; raises WireError if the caller is not one of ours."""
    return Link(await accepted(listening, messages, secret), messages, peer)


async def connect(address: Address, messages: Sequence[type], secret: bytes, peer: str) -> Link:
    """Return a link to the process that listens at an address; raises WireError if it is not one of ours."""
    return Link(await connected(address, messages, secret), messages, peer)


async def accepted(listening: socket.socket, messages: Sequence[type], secret: bytes) -> socket.socket:
    """Return the next incoming connection after the handshake; WireError if the caller is not one of ours."""
    await trio.lowlevel.wait_readable(listening)
    caller, _ = listening.accept()
    return await _shaken(caller, messages, secret, called=True)


async def first_accepted(
    listening: socket.socket, messages: Sequence[type], secret: bytes, on_refused: Callable[[WireError], None]
) -> socket.socket:
    """Return the first incoming connection that passes the handshake. A slow or foreign caller does not
    delay others.
    """
    found: list[socket.socket] = []
    async with trio.open_nursery() as nursery:

        async def greet(caller: socket.socket) -> None:
            try:
                found.append(await _shaken(caller, messages, secret, called=True))
                nursery.cancel_scope.cancel()
            except WireError as error:
                on_refused(error)

        while True:
            await trio.lowlevel.wait_readable(listening)
            caller, _ = listening.accept()
            nursery.start_soon(greet, caller)
    return found[0]


async def connected(address: Address, messages: Sequence[type], secret: bytes) -> socket.socket:
    """Return a connection, after the handshake, to the process that listens at an address; raises WireError
    if it is not ours.
    """
    if isinstance(address, Path):
        trio_socket = trio.socket.socket(socket.AF_UNIX)
        await trio_socket.connect(os.fspath(address))
    else:
        _check_secret(address, secret)
        stream = await trio.open_tcp_stream(*address)
        trio_socket = stream.socket
    called = socket.socket(fileno=trio_socket.detach())
    return await _shaken(called, messages, secret, called=False)


async def _shaken(
    other: socket.socket, messages: Sequence[type], secret: bytes, *, called: bool
) -> socket.socket:
    try:
        await shake_hands(other, messages, secret, called=called)
    except BaseException:
        other.close()
        raise
    if other.family != socket.AF_UNIX:
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return other


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"{folder} is not private: sockets lie in a folder of mode 0700")


def _check_secret(address: Address, secret: bytes) -> None:
    if not secret:
        raise ConfigError(f"{address} is reached over TCP, which needs a secret that both ends know")
