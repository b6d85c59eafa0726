"""DeltaStream: no delta is lost, and only the reader waits."""

import pytest
import trio

from sundog.actors.kernel.stream import Delta, DeltaStream


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


class Costly(str):
    """Counts how often it is copied into a longer one."""

    num_copies = 0

    def __add__(self, other: str) -> "Costly":
        Costly.num_copies += 1
        return Costly(str(self) + other)


async def test_a_slow_reader_costs_nothing_but_what_it_reads() -> None:
    """32,000 unread tokens: no write copies what is unread, and one read joins it once."""
    stream = DeltaStream()
    for number in range(32_000):
        stream.put(Delta(Costly("ab"), (number,), 1, times_s=(float(number),)))
    assert Costly.num_copies == 0
    whole = await anext(stream)
    assert (len(whole.text), len(whole.token_ids), len(whole.times_s)) == (64_000, 32_000, 32_000)
    assert whole.num_tokens == 32_000 and Costly.num_copies == 0


async def test_a_second_reader_raises_instead_of_hanging() -> None:
    """The first still gets what comes."""
    stream = DeltaStream()
    got: list[int] = []

    async def read() -> None:
        got.append((await anext(stream)).num_tokens)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, name="the-reader")
        await trio.sleep(1)
        with pytest.raises(RuntimeError, match="one reader, and the task the-reader reads"):
            await anext(stream)
        stream.put(token(1))
    assert got == [1]


def test_a_watcher_by_intervals_has_the_first_delta_the_last_and_what_is_enough_between() -> None:
    """As vLLM's output processor sends: finished, or first, or `stream_interval` tokens since the last."""
    stream, taken = DeltaStream(), list[int]()

    def take() -> None:
        delta = stream.take()
        assert delta is not None
        taken.append(delta.num_tokens)

    stream.watch(take, 4)
    for number in range(10):
        stream.put(Delta("x", (number,), 1, "length" if number == 9 else None))
        assert stream.take() is None
    assert taken == [1, 4, 4, 1]
