"""A real model that `sundog serve` serves: its processes begin first, then its folder is read."""

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from actors.config import ConfigError
from sundog.builds.engine_process import ServeOrders, engine_processes
from sundog.builds.served import Served, max_loras
from sundog.builds.torch_limits import need_torch
from sundog.options.engine import EngineOptions
from sundog.options.serving import RealServing

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.front.codec import Vocabulary
    from runtime.serve import RealModel
    from runtime.worker.engine_process import EngineProcess


class StartingModel(NamedTuple):
    """A real model that is to be served; its fork server, if it has one, has begun to import torch."""

    orders: ServeOrders
    forks: "Callable[[int], EngineProcess] | None"


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
    orders = ServeOrders(model=model, serving=serving, engine=engine)
    is_forked = serving.on is None and not serving.in_process
    return StartingModel(orders, engine_processes(orders, stack) if is_forked else None)


def real_model(begun: StartingModel, stack: ExitStack) -> Served:
    """A model's folder, computed by torch in processes that end with `stack`, or in this one."""
    from actors.config.sampling_defaults import NEUTRAL
    from sundog.builds.start_report import device_of

    orders, new_engine = begun
    serving = orders.serving
    if serving.on is not None:
        new_engine = engine_processes(orders, stack)
    found = orders.open()
    real = found.real
    real.grammars.prepare()
    vocabulary = _with_thought(real.vocabulary, real, serving)
    return Served(
        real.name,
        found.config,
        new_engine or found.watched(),
        real.tokenizer,
        vocabulary,
        real.sampling_defaults() if serving.generation_config == "auto" else NEUTRAL,
        device_of(serving.device),
        adapters=found.adapters,
        max_loras=max_loras(serving),
        vectors=real.vectors,
        folder=real.folder,
    )


def _with_thought(vocabulary: "Vocabulary", real: "RealModel", serving: RealServing) -> "Vocabulary":
    """The vocabulary of a model that reasons, if its marks are tokens."""
    from actors.front.codec import ThoughtMarks

    if serving.reasoning_parser is None:
        return vocabulary
    marks = ThoughtMarks.of(real.tokenizer.encode_plain)
    is_in = marks is not None and max(marks.begin, marks.end) < (vocabulary.size or 0)
    return replace(vocabulary, thought=marks if is_in else None)
