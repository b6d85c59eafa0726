"""Handshake of two ends of a connection, before the first frame.

Both send a greeting of 57 bytes: `SUNDOG`, the version of the wire, the fingerprint of the messages, the
end's role, and 32 random bytes. Then each proves possession of the secret, by an HMAC over its own greeting
and the other's, compared in constant time. The secret itself is never sent. A socket that only processes of
one user can reach has the empty secret.
"""

import hashlib
import hmac
import secrets
import socket
import struct
from collections.abc import Sequence

import trio

from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.records import fingerprint

VERSION = 3
GREETING = struct.Struct("<6sH8s9s32s")
HANDSHAKE_S = 10.0


async def shake_hands(
    connected: socket.socket, messages: Sequence[type], secret: bytes, *, called: bool
) -> None:
    """Verify that the other end is one of ours; `called` is the end that was connected to.

    Raises WireError, in one line, if it is not, or does not prove it in time.
    """
    connected.setblocking(False)
    stream = trio.socket.from_stdlib_socket(connected.dup())
    try:
        with trio.fail_after(HANDSHAKE_S):
            await _shake(stream, messages, secret, called)
    except trio.TooSlowError:
        raise WireError(f"no greeting within {HANDSHAKE_S:g} s") from None
    except OSError as error:
        raise WireError(f"no greeting: {error}") from error
    finally:
        stream.close()


async def _shake(
    stream: trio.socket.SocketType, messages: Sequence[type], secret: bytes, called: bool
) -> None:
    ours, theirs = (b"called", b"calling") if called else (b"calling", b"called")
    own = GREETING.pack(b"SUNDOG", VERSION, fingerprint(messages), ours, secrets.token_bytes(32))
    await _send(stream, own)
    other = await _receive(stream, GREETING.size)
    magic, version, declared, role, _ = GREETING.unpack(other)
    if magic != b"SUNDOG" or role.rstrip(b"\0") != theirs:
        raise WireError("the other end is not Sundog")
    if version != VERSION or declared != fingerprint(messages):
        raise WireError(
            f"the other end is another Sundog (wire {version}, here {VERSION}): install the same at both ends"
        )
    key = hashlib.sha256(secret).digest()  # HMAC itself takes keys for equal that differ in zeros at the end
    await _send(stream, hmac.digest(key, own + other, "sha256"))
    proof = await _receive(stream, 32)
    if not hmac.compare_digest(proof, hmac.digest(key, other + own, "sha256")):
        raise WireError("the other end does not have the secret")


async def _send(stream: trio.socket.SocketType, data: bytes) -> None:
    while data:
        data = data[await stream.send(data) :]


async def _receive(stream: trio.socket.SocketType, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await stream.recv(size - len(data))
        if not more:
            raise WireError("the other end hung up in the handshake")
        data += more
    return data
