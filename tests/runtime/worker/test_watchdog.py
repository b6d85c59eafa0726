"""The watchdog thread reports a stalled engine in the server's own process."""

import re

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

import trio

from sundog.actors.kernel.actor import Actor, Handled, answer
from sundog.actors.messages import Capacity, Load
from sundog.runtime.worker.watchdog import WatchedBackend
from tests.actors.fakes import FakeBackend
from tests.live import live
from tests.runtime.worker.slow_steps import SLOW

SERVE = ("tests.runtime.worker.slow_steps", "serve", "--in-process", "--port", "0", "--max-num-seqs", "2")


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_step_that_takes_long_is_said_with_what_each_actor_does_and_that_it_goes_on() -> None:
    """And where its thread is; the answer comes all the same, and steps that take no time are not said."""
    with live(*SERVE, "--stall-timeout", "2") as server:
        assert server.complete(max_tokens=4, seed=1).status_code == 200
        assert "does not go on" not in "".join(server.said)
        answer = server.complete(max_tokens=4, seed=SLOW).json()["choices"][0]
        assert answer["finish_reason"] == "length"
        server.until_it_says("the engine goes on")
        said = "".join(server.said)
        assert re.search(r"does not go on: runner-0\.0: handling Batch of step \d+ for [2-5]\.\d s", said), (
            said
        )
        for line in ("scheduler-0: ", "kv-cache-manager-0: ", "executor-0: ", "thread "):
            assert f"    {line}" in said
        assert "in slow_launch" in said
        assert server.stop() == 0


class Loader(Actor[Load]):
    """Takes a second to load."""

    def handle(self, message: Load) -> Handled:
        return answer(message, self._loaded())

    async def _loaded(self) -> Capacity:
        await trio.sleep(1.0)
        return Capacity(1, 1)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.wall_clock
@pytest.mark.parametrize(("stall_s", "load_s", "is_said"), [(0.1, 60.0, False), (60.0, 0.6, True)])
async def test_a_load_is_given_its_own_time(
    caplog: pytest.LogCaptureFixture, stall_s: float, load_s: float, is_said: bool
) -> None:
    """However little a step is given; what is said of it is that it does not go on, and that it does."""
    watched, loader = WatchedBackend(FakeBackend(), stall_s, load_s), Loader("runner-0.0")
    async with trio.open_nursery() as nursery:
        ref = loader.ref("test")
        await nursery.start(loader.live)
        watched.watch([loader])
        await ref.ask(Load())
        await trio.sleep(1.0)
        ref.close()
    await watched.close()
    said = [record.getMessage() for record in caplog.records if record.name == "sundog.engine"]
    if is_said:  # once or, on a slow machine, again
        assert "does not go on: runner-0.0: handling Load" in said[0] and "goes on" in said[-1]
    else:
        assert not said
