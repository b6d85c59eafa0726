"""What `sundog serve` serves: a real model or an emulated one, made ready."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.config import EngineConfig
from actors.core.params.adapter import Adapter

if TYPE_CHECKING:
    from actors.api.emulation import Emulation
    from actors.config.sampling_defaults import SamplingDefaults
    from actors.config.vector_sizes import VectorSizes
    from actors.engine.backend import Engine
    from actors.front.codec import Vocabulary
    from actors.kernel.actor import Actor
    from actors.messages import Heard
    from runtime.tokenizer import Tokenizer
    from sim.cost.work import CostModel
    from sim.emulation.clock import ScaledClock


@dataclass(frozen=True, slots=True)
class Served:
    """What is served."""

    name: str
    config: EngineConfig
    new_engine: "Callable[[int], Engine]"
    """Makes what a replica runs on."""
    tokenizer: "Tokenizer"
    vocabulary: "Vocabulary"
    defaults: "SamplingDefaults"
    """How requests that do not say are sampled."""
    device: str
    """What it runs on, in words."""
    adapters: tuple[Adapter, ...] = ()
    max_loras: int | None = None
    loads_adapters: bool = False
    """Whether they may come and go."""
    vectors: "VectorSizes | None" = None
    folder: Path | None = None
    """The real model's."""
    cost: "CostModel | None" = None
    """What its steps take; None where that is learned from them."""
    remarks: tuple[str, ...] = ()
    """What people should know before they bet on its pace."""
    listeners: "tuple[Actor[Heard], ...]" = ()
    emulation: "Emulation | None" = None
    clock: "ScaledClock | None" = None
    """Where it is not the wall's."""
