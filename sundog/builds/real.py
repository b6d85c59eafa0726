"""Real model of `sundog serve`: its processes start before its folder is read."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sundog.actors.config import ConfigError
from sundog.builds.engine_process import ServeOrders, engine_processes, forks_here, ray_place
from sundog.builds.served import Served, max_loras
from sundog.builds.torch_limits import need_torch
from sundog.ends import remark
from sundog.options.engine import EngineOptions
from sundog.options.serving import RealServing
from sundog.options.simulation import parse_pool

if TYPE_CHECKING:
    from sundog.actors.front.codec import Vocabulary
    from sundog.runtime.faults import Fault, LinkFault
    from sundog.runtime.serve import RealModel
    from sundog.runtime.worker.forks import Forks
    from sundog.sim.fleet.faults import LostTransfer, SlowLink


class StartingModel(NamedTuple):
    """Real model to be served; its fork server, if any, has begun to import torch."""

    orders: ServeOrders
    forks: "Forks | None"
    faults: "tuple[Fault, ...]"


def begun_model(
    model: str | None, serving: RealServing, engine: EngineOptions, stack: ExitStack
) -> StartingModel:
    """Check the options, start the fork server, and return the model, which is not loaded yet."""
    if serving.messages and not serving.in_process:
        raise ConfigError("--messages records the actors of one process: add --in-process")
    need_torch()
    faults = () if serving.faults is None else _faults(serving, serving.faults, engine)
    orders = ServeOrders(model=model, serving=serving, engine=engine)
    is_forked = serving.on is None and not serving.in_process
    return StartingModel(orders, forks_here(orders, stack) if is_forked else None, faults)


def real_model(begun: StartingModel, stack: ExitStack) -> Served:
    """Return a model computed by torch, in processes that end with `stack` or in this process."""
    from sundog.actors.config.sampling_defaults import NEUTRAL
    from sundog.builds.start_report import device_of
    from sundog.runtime.faults import EngineFaults
    from sundog.runtime.kv_transfer.mover import KvMover

    orders, forks, faults = begun
    serving = orders.serving
    place = forks if serving.on is None else ray_place(orders, stack)
    found = orders.open()
    real = found.real
    if serving.loads_adapters:
        remark("clients may load and unload adapters, from any folder that this process can read")
    mover = KvMover(orders.engine.seed) if found.config.hands_over else None
    hurting = (
        () if forks is None or not faults else (EngineFaults(faults, forks, found.config.replicas, mover),)
    )
    real.grammars.prepare()
    vocabulary = _with_thought(real.vocabulary, real, serving)
    return Served(
        real.name,
        found.config,
        new_engine=found.watched() if place is None else engine_processes(orders, place, mover),
        tokenizer=real.tokenizer,
        vocabulary=vocabulary,
        defaults=real.sampling_defaults() if serving.generation_config == "auto" else NEUTRAL,
        device=device_of(serving.device),
        adapters=found.adapters,
        max_loras=max_loras(serving),
        loads_adapters=serving.loads_adapters,
        vectors=real.vectors,
        folder=real.folder,
        listeners=hurting,
        links=mover,
    )


def _faults(serving: RealServing, file: str, engine: EngineOptions) -> "tuple[Fault, ...]":
    from sundog.runtime.faults import MOST_TIMES, Fault, Hurt
    from sundog.sim.fleet.faults import (
        DeadEngine,
        LostTransfer,
        SlowLink,
        Straggler,
        drawn_faults,
        read_faults,
    )

    if serving.on is not None or serving.in_process:
        raise ConfigError(
            "--faults applies to engine processes on this machine: leave --on and --in-process out"
        )
    found = list[Fault]()
    has_links = any(parse_pool(each).role == "prefill" for each in serving.pool)
    for fault in drawn_faults(read_faults(file), engine.replicas, engine.seed, has_links=has_links):
        match fault:
            case DeadEngine():
                found.append(Hurt(fault.at_s, fault.replica))
            case Straggler(factor=factor) if 1 <= factor <= MOST_TIMES:
                found.append(Hurt(fault.at_s, fault.replica, factor, fault.for_s))
            case Straggler():
                raise ConfigError(
                    f"{file}: a straggler's factor is {fault.factor:g}; a process can be slowed 1 to"
                    f" {MOST_TIMES:g} times"
                )
            case SlowLink() | LostTransfer():
                found += _of_links(fault)
            case _:
                raise ConfigError(
                    f"{file}: fault {fault.kind} applies to simulated clients only: use `sundog replay`"
                )
    return tuple(found)


def _of_links(fault: "SlowLink | LostTransfer") -> "tuple[LinkFault, LinkFault]":
    from sundog.runtime.faults import LinkFault
    from sundog.runtime.kv_transfer.mover import KvMover
    from sundog.sim.fleet.faults import SlowLink

    if isinstance(fault, SlowLink):
        says = f"the links of replica {fault.replica} run at {fault.part:g} of their speed"
        begin, end = (partial(KvMover.slow_down, replica=fault.replica, part=p) for p in (fault.part, 1.0))
    else:
        says = f"a share of {fault.rate:g} of the transfers is lost"
        begin, end = (partial(KvMover.lose, rate=fault.rate, more=more) for more in (True, False))
    return LinkFault(fault.at_s, says, begin), LinkFault(fault.at_s + fault.for_s, f"no more: {says}", end)


def _with_thought(vocabulary: "Vocabulary", real: "RealModel", serving: RealServing) -> "Vocabulary":
    from sundog.actors.front.codec import ThoughtMarks

    if serving.reasoning_parser is None:
        return vocabulary
    marks = ThoughtMarks.of(real.tokenizer.encode_plain)
    is_in = marks is not None and max(marks.begin, marks.end) < (vocabulary.size or 0)
    return replace(vocabulary, thought=marks if is_in else None)
