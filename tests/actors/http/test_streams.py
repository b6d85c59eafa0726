"""What many connections share: the pass that writes streams, requests that begin by and by, unread bodies."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio

from actors.http.exchange import MOST_UNREAD_BYTES, RequestBody
from actors.http.server import BEGUN_AT_A_TIME, HttpSettings, Server
from actors.http.streams import AT_A_TIME, LAST_CHUNK, StreamedBody, WritePass


class _Feed:
    """One piece at a time."""

    def __init__(self, name: bytes, num_pieces: int = 1000) -> None:
        self._name, self._num_left = name, num_pieces
        self.on_unread: Callable[[], None] = lambda: None

    @property
    def is_over(self) -> bool:
        return not self._num_left

    def watch(self, on_unread: Callable[[], None]) -> None:
        self.on_unread = on_unread
        on_unread()

    def take(self) -> bytes:
        if self.is_over:
            return b""
        self._num_left -= 1
        return self._name


class _Kept:
    """A connection that keeps what is written, in the order of all; it takes `most` bytes at once."""

    def __init__(self, written: list[bytes], most: int = 1000) -> None:
        self._written, self._most = written, most

    def write_now(self, data: bytes) -> int:
        self._written.append(data[: self._most])
        return min(len(data), self._most)

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._written.append(data)


@pytest.mark.wall_clock
async def test_first_tokens_are_written_before_others() -> None:
    """However many streams have something new: they have waited for longest, and no stream is left out."""
    writes, written = WritePass(), list[bytes]()
    old = [StreamedBody(_Kept(written), writes, _Feed(b"old")) for _ in range(2 * AT_A_TIME)]
    for body in old:
        body.write()
    written.clear()
    new = [StreamedBody(_Kept(written), writes, _Feed(b"new")) for _ in range(AT_A_TIME + 1)]
    for body in (*old, *new):
        writes.add(body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writes.run)
        with trio.fail_after(5):
            while len(written) < len(old) + len(new):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert written == [b"3\r\nnew\r\n"] * len(new) + [b"3\r\nold\r\n"] * len(old)


@pytest.mark.wall_clock
@pytest.mark.parametrize("most", [1000, 3])
async def test_a_stream_is_written_in_order_whatever_its_socket_takes(most: int) -> None:
    """To its last chunk, which leaves with the last piece."""
    writes, written, feed = WritePass(), list[bytes](), _Feed(b"word", 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writes.run)
        nursery.start_soon(StreamedBody(_Kept(written, most), writes, feed).run)
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            if not feed.is_over:
                feed.on_unread()
        nursery.cancel_scope.cancel()
    assert b"".join(written) == b"4\r\nword\r\n" * 3 + LAST_CHUNK
    assert most == 3 or written[-1].endswith(b"word\r\n" + LAST_CHUNK)


class _Begun:
    """A request that notes when it begins."""

    def __init__(self, number: int, begun: list[int]) -> None:
        self._number, self._begun = number, begun

    async def run(self, app: object) -> None:
        self._begun.append(self._number)


@pytest.mark.wall_clock
async def test_requests_that_come_at_once_begin_by_and_by() -> None:
    """In their order, and others have their turn between."""
    app: Any = None
    server, begun, turns = Server(app, HttpSettings()), list[int](), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        for number in range(9):
            request: Any = _Begun(number, begun)
            server.begin(request)
        while len(begun) < 9:
            turns.append(len(begun))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert sorted(begun) == list(range(9))
    assert all(later - sooner <= 2 * BEGUN_AT_A_TIME for sooner, later in pairwise(turns))


async def test_a_body_waits_for_an_app_that_is_slow_to_read_it() -> None:
    """So that no client fills the memory of a server."""
    body, num_put = RequestBody(), 0

    async def put_all() -> None:
        nonlocal num_put
        for _ in range(5):
            body.put(b"x" * MOST_UNREAD_BYTES)
            num_put += 1
            await body.until_room()
        body.put(b"", is_last=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_all)
        await trio.sleep(1)
        assert num_put == 2
        num_bytes, is_more = 0, True
        while is_more:
            data, is_more = await body.read()
            num_bytes += len(data)
            await trio.sleep(1)
    assert num_bytes == 5 * MOST_UNREAD_BYTES
