"""Engine under the scheduler's own decisions, without actors, clock or threads; needs only torch."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.params.logprobs import TokenLogprobs
from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.core.policies.orders import Fcfs
from sundog.actors.core.request import Request, Submit
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import cut, update
from sundog.runtime.engine.engine import Engine, Flight
from tests.core.requests import hash_by_value
from tests.core.work import has_work

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Asked:
    """A request, and the step in which it arrives, or is aborted before it has its tokens."""

    prompt: list[int]
    num_tokens: int = 14
    sampling: Sampling = GREEDY
    arrives: int = 0
    aborted: int | None = None
    adapter: Adapter | None = None


@dataclass
class Said:
    """What came of the requests, and what happened on the way."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    num_preempted: int = 0
    num_hits: int = 0
    most_under_way: int = 0


@dataclass(frozen=True)
class Ended:
    """A batch, and when its step had ended."""

    batch: Batch
    end_s: float


class Timed:
    """An engine that notes when each of its steps ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ended: list[Ended] = []

    def launch(self, batch: Batch) -> Flight:
        return self._engine.launch(batch)

    def finish(self, flight: Flight, end_s: float) -> StepResult:
        result = self._engine.finish(flight, end_s)
        self.ended.append(Ended(flight.batch, time.perf_counter()))
        return result


def chain(prompt: list[int], block_size: int) -> tuple[object, ...]:
    """The keys of the prompt's full blocks."""
    keys: list[object] = []
    for end in range(block_size, len(prompt) + 1, block_size):
        tokens = tuple(prompt[end - block_size : end])
        keys.append(hash_by_value(keys[-1] if keys else None, tokens, None, None))
    return tuple(keys)


def answers(engine: Engine | Timed, requests: Mapping[str, Asked], config: SchedulerConfig) -> Said:
    """Every request to its end; with async scheduling a step is launched before the last has come back."""
    state = SchedulerState(config, Fcfs(), KVCache(config, hash_by_value))
    depth = 2 if config.async_scheduling else 1
    said, flights, step = Said(), deque[Flight](), 0
    added: dict[str, Request] = {}
    while step == 0 or has_work(state) or any(asked.arrives >= step for asked in requests.values()):
        for name, asked in requests.items():
            if asked.arrives == step:
                keys = chain(asked.prompt, config.block_size)
                added[name] = state.add(
                    Submit(
                        name,
                        0.0,
                        len(asked.prompt),
                        asked.num_tokens,
                        tuple(asked.prompt),
                        keys,
                        asked.sampling,
                        adapter=asked.adapter,
                    )
                )
            if asked.aborted == step and name in state.requests:
                state.finish(state.requests[name])
        step += 1
        if has_work(state):
            batch, _ = plan(state)
            said.num_preempted += len(batch.preempted)
            said.num_hits += sum(a.num_computed_tokens > 0 and not a.resumed for a in batch.admitted)
            flights.append(engine.launch(batch))
            said.most_under_way = max(said.most_under_way, len(flights))
        while flights and (len(flights) >= depth or not has_work(state)):
            _end(engine, state, flights.popleft(), said)
    for flight in flights:
        _end(engine, state, flight, said)
    for name, request in added.items():
        assert request.token_ids is not None
        said.tokens[name] = request.token_ids[len(requests[name].prompt) :]
    return said


def _end(engine: Engine | Timed, state: SchedulerState, flight: Flight, said: Said) -> None:
    result = engine.finish(flight, 0.0)
    for name, each in result.logprobs:
        said.logprobs.setdefault(name, []).append(each)
    for of_prompt in result.prompt_logprobs:
        said.prompt_logprobs.setdefault(of_prompt.request_id, []).extend(of_prompt.tokens)
    said.failed |= dict(result.failed)
    update(state, cut(state, result) if state.speculates else result)


class Looks(TorchDispatchMode):
    """How often a tensor's number was asked for: what waits for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.num_looks = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's own
        if func is torch.ops.aten._local_scalar_dense.default or func is torch.ops.aten.nonzero.default:
            self.num_looks += 1
        return func(*args, **(kwargs or {}))
