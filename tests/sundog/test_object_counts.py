"""A server keeps no objects of finished requests; objects are counted, since memory shows a leak too late.

The graph, the API and HTTP are those of `sundog emulate`, in this process.
"""

import gc
import random
import weakref
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial
from types import BuiltinMethodType

import pytest
import trio
import trio.testing

from sundog.actors.api.serve_graph import serve_graph
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.config.http import HttpSettings
from sundog.actors.metrics import metrics
from sundog.actors.metrics.measured import Recent
from sundog.builds.emulated import emulated
from sundog.builds.server import shown_model
from sundog.options.engine import EngineOptions
from sundog.options.serving import EmulatedServing
from sundog.options.simulation import CostOptions
from tests.patience import HANGS_S
from tests.soak.manners import MANNERS

CLIENTS, REQUESTS = 8, 160
MOST_LEFT = 0.2
"""Objects of one type that a request may leave behind: none is meant to."""
KEEP_ALIVE_S = 0.5
"""Hypercorn keeps connections without a request for so long, though their clients have left (docs/api.md)."""
FORGOTTEN_LATER = ("CancelScope", "CancelReason")
"""Trio drops the deadlines of scopes that are over, and the scopes with them, a thousand at a time."""


class Short(Recent):
    """What is shown of the latest requests is soon full."""

    def __init__(self) -> None:
        super().__init__()
        self.ttft_s, self.gaps, self.ended = deque(maxlen=8), deque(maxlen=8), deque(maxlen=8)


async def play(port: int, rng: random.Random, count: int) -> None:
    """Requests of all manners, a few at a time."""
    manners = rng.choices([*MANNERS], [*MANNERS.values()], k=count)

    async def client() -> None:
        while manners:
            await manners.pop()(port, rng)

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(client)


def is_of_classes(each: object) -> bool:
    """True for what `isinstance` remembers of a pair of classes: a weak reference, and what drops that.

    The first look for an abstract class remembers each of its subclasses, of which other tests import many.
    """
    if type(each) is weakref.ReferenceType:
        return isinstance(each(), type)
    return type(each) is BuiltinMethodType and each.__name__ == "_destroy"


def num_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def counted(num_tasks_idle: int) -> Counter[str]:
    """Objects by type, once all requests are over and no connection is kept any more."""
    with trio.fail_after(HANGS_S):
        while num_tasks() > num_tasks_idle:
            await trio.sleep(0.02)
    gc.collect()
    objects = (each for each in gc.get_objects() if not is_of_classes(each))
    kept = (each for each in objects if type(each).__name__ not in FORGOTTEN_LATER)
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in kept)


@pytest.mark.long(reason="counts the objects of thousands of requests")
@pytest.mark.wall_clock
async def test_requests_that_are_over_leave_no_objects_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of answers whole and streamed, of clients that leave, err and babble."""
    monkeypatch.setattr(metrics, "Recent", Short)
    served = emulated(
        "qwen3-8b",
        EmulatedServing(),
        EngineOptions(num_gpu_blocks=64, max_model_len=512),
        CostOptions(step_scale=0.1),
    )
    ready, stop, urls = trio.Event(), trio.Event(), []

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    serve = partial(
        serve_graph,
        served.config,
        served.new_engine,
        shown_model(served, served.config),
        served.tokenizer,
        served.vocabulary,
        ServerOptions(port=0, http=HttpSettings(keep_alive_s=KEEP_ALIVE_S)),
        on_ready=on_ready,
        stop=stop,
        emulation=served.emulation,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await ready.wait()
        port, rng = int(urls[0].rpartition(":")[2]), random.Random(1)
        await trio.testing.wait_all_tasks_blocked()  # Hypercorn has begun all of its own
        num_idle = num_tasks()
        await play(port, rng, REQUESTS)
        few = await counted(num_idle)
        await play(port, rng, REQUESTS)
        many = await counted(num_idle)
        stop.set()
    most = MOST_LEFT * REQUESTS
    assert not {name: count - few[name] for name, count in many.items() if count - few[name] > most}


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
async def test_what_is_remembered_of_classes_is_no_object_left_behind() -> None:
    """However many subclasses an abstract class has, in which a new class is looked for."""
    kinds = [type(f"Kind{number}", (Mapping,), {}) for number in range(REQUESTS)]
    one, other = (type(name, (), {})() for name in ("One", "Other"))  # which nobody has looked for
    assert not isinstance(one, Mapping)
    few = await counted(num_tasks())
    assert not isinstance(other, Mapping)
    many = await counted(num_tasks())
    assert sum((many - few).values()) < MOST_LEFT * len(kinds)
