"""The composed graph: order of start and end, the extent of a crash, and bounded mailboxes."""

from collections.abc import Iterator

import pytest
import trio

from sundog.actors.config import ConfigError
from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Actor, ActorDied
from sundog.actors.kernel.mailbox import Mailbox
from sundog.actors.messages import Accepted, Cancel, Generate, Sampling
from tests.actors.fakes import FakeBackend, Listener, engine_config, read


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every actor's name as it opens and as its mailbox closes."""
    seen: list[tuple[str, str]] = []

    async def opened(actor: Actor) -> None:
        seen.append(("opened", actor.name))

    def close(mailbox: Mailbox) -> None:
        seen.append(("closed", mailbox.name))
        close_mailbox(mailbox)

    close_mailbox = Mailbox.close
    monkeypatch.setattr(Actor, "opened", opened)
    monkeypatch.setattr(Mailbox, "close", close)
    return seen


def two_backends() -> list[FakeBackend]:
    return [FakeBackend(counts=True), FakeBackend(counts=True)]


def flat(error: BaseException) -> Iterator[BaseException]:
    """The errors in a tree of groups."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from flat(part)
    else:
        yield error


def before(seen: list[tuple[str, str]], event: str, first: str, second: str) -> bool:
    return seen.index((event, first)) < seen.index((event, second))


@pytest.mark.plain
async def test_actors_start_from_the_leaves_and_end_from_the_root(lives: list[tuple[str, str]]) -> None:
    """So whoever can be reached is there, and whoever ends has nobody above."""
    async with open_graph(engine_config(replicas=2), two_backends(), listeners=[Listener()]) as client:
        assert all(event == "opened" for event, _ in lives)
        await read(await client.ask(Generate(5, Sampling(max_tokens=3))))
    for replica in (0, 1):
        engine = [f"{part}-{replica}" for part in ("scheduler", "executor", "runner")]
        chain = ["async-llm", "router", *engine]
        chain[-1] += ".0"
        manager = f"kv-cache-manager-{replica}"
        for above, below in zip(chain, [*chain[1:]], strict=False):
            assert before(lives, "opened", below, above), (below, above)
            assert before(lives, "closed", above, below), (above, below)
        assert before(lives, "opened", manager, f"scheduler-{replica}")
        assert before(lives, "closed", "router", manager)
        assert before(lives, "opened", "listener", chain[-1])
        assert before(lives, "closed", chain[-1], "listener")
    for reader in ("prompt-reader-long", "prompt-reader-longest"):
        assert before(lives, "opened", reader, "async-llm")
        assert before(lives, "closed", "async-llm", reader)
    assert len(lives) == 2 * (2 * 4 + 5)


async def test_backends_are_loaded_before_and_closed_after_all_work() -> None:
    """Once each."""
    backends = two_backends()
    async with open_graph(engine_config(replicas=2), backends) as client:
        assert [backend.life for backend in backends] == [["load"], ["load"]]
        await read(await client.ask(Generate(5, Sampling(max_tokens=3))))
    assert [backend.life for backend in backends] == [["load", "close"], ["load", "close"]]


async def test_a_cancellation_fits_however_many_messages_wait() -> None:
    """Two thousand requests wait behind one, and all are cancelled at one instant."""
    listener = Listener()
    async with open_graph(
        engine_config(max_num_seqs=1), [FakeBackend(counts=True)], listeners=[listener]
    ) as client:
        accepted = [
            await client.ask(Generate(5, Sampling(max_tokens=100), request_id=f"r{number}"))
            for number in range(2000)
        ]
        await trio.sleep(0.1)
        for each in accepted:
            client.tell(Cancel(each.request_id))
        reasons = {(await read(each)).finish_reason for each in accepted}
    assert reasons == {"abort"}
    assert sum(len(output.finished) for output in listener.outputs) == 2000
    assert listener.outputs[-1].num_free_blocks == 256


async def test_a_crash_of_a_backend_leaves_the_graph_with_a_note() -> None:
    """All end together, and who waited for its answer is told that it died."""

    class Faulty(FakeBackend):
        async def execute(self, batch: Batch) -> StepResult:
            raise ZeroDivisionError("a bug in the backend")

    with pytest.raises(ExceptionGroup) as caught:
        async with open_graph(engine_config(), [Faulty()]) as client:
            accepted = await client.ask(Generate(5, Sampling(max_tokens=3)))
            assert isinstance(accepted, Accepted)
            await read(accepted)
    leaves = list(flat(caught.value))
    (bug,) = (error for error in leaves if isinstance(error, ZeroDivisionError))
    assert all(error is bug or isinstance(error, ActorDied) for error in leaves)
    assert "in actor runner-0.0, handling Batch(step=1" in bug.__notes__[0]


async def test_a_pool_too_small_for_one_full_request_is_refused_at_the_start() -> None:
    """Before anything is served."""
    with pytest.raises(ExceptionGroup) as caught:
        async with open_graph(engine_config(), [FakeBackend(num_blocks=32)]):
            raise AssertionError("it started")
    errors = caught.value.subgroup(ConfigError)
    assert errors is not None and "num_gpu_blocks is 32" in repr(errors)


@pytest.mark.wall_clock
async def test_the_same_graph_runs_on_the_wall_clock() -> None:
    """Nothing in it knows which clock it runs on; the fake's steps are the only waits."""
    backend = FakeBackend(counts=True)
    async with open_graph(engine_config(), [backend]) as client:
        whole = await read(await client.ask(Generate(5, Sampling(max_tokens=2))))
    assert whole.finish_reason == "length" and backend.life == ["load", "close"]
