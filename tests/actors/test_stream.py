"""The stream to one reader: nothing is lost, and nobody waits but the reader."""

import pytest
import trio

from actors.stream import Delta, DeltaStream


def token(number: int, finish_reason: str | None = None) -> Delta:
    return Delta(f"{number} ", (number,), 1, finish_reason, times_s=(float(number),))


async def test_unread_deltas_merge_into_one() -> None:
    """As if they had been written at once, the end included."""
    stream = DeltaStream()
    for number in range(3):
        stream.put(token(number))
    stream.put(Delta(finish_reason="stop", stop_reason="END", num_cached_tokens=4))
    deltas = [delta async for delta in stream]
    assert deltas == [Delta("0 1 2 ", (0, 1, 2), 3, "stop", "END", 4, (0.0, 1.0, 2.0))]


async def test_the_last_delta_comes_exactly_once() -> None:
    """After it the stream is over, however often it is asked."""
    stream = DeltaStream()
    stream.put(token(1, "length"))
    assert (await anext(stream)).finish_reason == "length"
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_reader_that_waits_gets_each_delta_when_it_comes() -> None:
    """And one that is slow gets them together."""
    stream = DeltaStream()
    got: list[tuple[float, int]] = []

    async def read() -> None:
        async for delta in stream:
            got.append((trio.current_time(), delta.num_tokens))
            await trio.sleep(2.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for number in range(6):
            await trio.sleep(1)
            stream.put(token(number, "stop" if number == 5 else None))
    assert got == [(1.0, 1), (3.5, 2), (6.0, 3)]


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    """Whoever reads next gets all that came."""
    stream = DeltaStream()
    with trio.move_on_after(1):
        await anext(stream)
    stream.put(token(1))
    stream.put(token(2, "stop"))
    assert [delta.token_ids async for delta in stream] == [(1, 2)]


async def test_a_write_never_waits() -> None:
    """Even where nothing may."""
    stream = DeltaStream()
    with trio.CancelScope() as scope:
        scope.cancel()
        for number in range(100):
            stream.put(token(number))
    assert (await anext(stream)).num_tokens == 100
