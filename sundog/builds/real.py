"""A real model that `sundog serve` serves: its processes begin first, then its folder is read."""

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from actors.config import ConfigError
from sundog.builds.engine_process import ServeOrders, engine_processes, forks_here, ray_place
from sundog.builds.served import Served, max_loras
from sundog.builds.torch_limits import need_torch
from sundog.options.engine import EngineOptions
from sundog.options.serving import RealServing

if TYPE_CHECKING:
    from actors.front.codec import Vocabulary
    from runtime.faults import Hurt
    from runtime.serve import RealModel
    from runtime.worker.forks import Forks


class StartingModel(NamedTuple):
    """A real model that is to be served; its fork server, if it has one, has begun to import torch."""

    orders: ServeOrders
    forks: "Forks | None"
    hurts: "tuple[Hurt, ...]"


def begun_model(
    model: str | None, serving: RealServing, engine: EngineOptions, stack: ExitStack
) -> StartingModel:
    """A model's folder to serve, once what the options alone tell has been checked."""
    if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        raise ConfigError(
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING is set: a real model loads adapters only at its start; unset it"
            ", and give them as --lora-modules"
        )
    if serving.messages and not serving.in_process:
        raise ConfigError("--messages sees the actors of one process: give --in-process, too")
    need_torch()
    hurts = () if serving.faults is None else _hurts(serving, serving.faults, engine)
    orders = ServeOrders(model=model, serving=serving, engine=engine)
    is_forked = serving.on is None and not serving.in_process
    return StartingModel(orders, forks_here(orders, stack) if is_forked else None, hurts)


def real_model(begun: StartingModel, stack: ExitStack) -> Served:
    """A model's folder, computed by torch in processes that end with `stack`, or in this one."""
    from actors.config.sampling_defaults import NEUTRAL
    from runtime.faults import EngineFaults
    from runtime.kv_transfer.mover import KvMover
    from sundog.builds.start_report import device_of

    orders, forks, hurts = begun
    serving = orders.serving
    place = forks if serving.on is None else ray_place(orders, stack)
    found = orders.open()
    real = found.real
    mover = KvMover() if found.config.hands_over else None
    real.grammars.prepare()
    vocabulary = _with_thought(real.vocabulary, real, serving)
    return Served(
        real.name,
        found.config,
        found.watched() if place is None else engine_processes(orders, place, mover),
        real.tokenizer,
        vocabulary,
        real.sampling_defaults() if serving.generation_config == "auto" else NEUTRAL,
        device_of(serving.device),
        adapters=found.adapters,
        max_loras=max_loras(serving),
        vectors=real.vectors,
        folder=real.folder,
        listeners=() if forks is None or not hurts else (EngineFaults(hurts, forks, found.config.replicas),),
        links=mover,
    )


NOT_REAL = {
    "slow-link": "links between pools, which a server does not hold up",
    "lost-transfer": "links between pools, which a server does not cut",
    "cancellations": "clients, whom a server does not drive",
    "spike": "clients, whom a server does not drive",
    "retries": "clients, whom a server does not drive",
}
"""What the faults are of that can only be simulated."""


def _hurts(serving: RealServing, file: str, engine: EngineOptions) -> "tuple[Hurt, ...]":
    """The faults of a file for engine processes of this machine; refuses by name what cannot be for real."""
    from runtime.faults import MOST_TIMES, Hurt
    from sim.fleet.faults import DeadEngine, Straggler, drawn_faults, read_faults

    if serving.on is not None or serving.in_process:
        raise ConfigError("--faults hurts engine processes of this machine: leave --on and --in-process out")
    found = list[Hurt]()
    for fault in drawn_faults(read_faults(file), engine.replicas, engine.seed):
        match fault:
            case DeadEngine():
                found.append(Hurt(fault.at_s, fault.replica))
            case Straggler(factor=factor) if 1 <= factor <= MOST_TIMES:
                found.append(Hurt(fault.at_s, fault.replica, factor, fault.for_s))
            case Straggler():
                raise ConfigError(
                    f"{file}: a straggler's factor is {fault.factor:g}; a process can be held up 1 to"
                    f" {MOST_TIMES:g} times"
                )
            case _:
                raise ConfigError(
                    f"{file}: a fault of kind {fault.kind} is of {NOT_REAL[fault.kind]}: replay simulates it"
                )
    return tuple(found)


def _with_thought(vocabulary: "Vocabulary", real: "RealModel", serving: RealServing) -> "Vocabulary":
    """The vocabulary of a model that reasons, if its marks are tokens."""
    from actors.front.codec import ThoughtMarks

    if serving.reasoning_parser is None:
        return vocabulary
    marks = ThoughtMarks.of(real.tokenizer.encode_plain)
    is_in = marks is not None and max(marks.begin, marks.end) < (vocabulary.size or 0)
    return replace(vocabulary, thought=marks if is_in else None)
