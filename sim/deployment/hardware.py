"""The hardware of an engine by name: which model, in which formats, on which GPUs."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from sundog.actors.config.generation import GREEDY
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.records import dataclass
from sundog.sim.hardware.formats import dtype_name, kv_dtype_name
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.memory import sharing_ranks
from sundog.sim.hardware.model import draft_of, load_model
from sundog.sim.hardware.quantization import quantised
from sundog.sim.target import Target

MEMORY_SHARE = 0.92
"""The default that vLLM has for `gpu_memory_utilization`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedHardware:
    """A model on GPUs, as people name them; vLLM's words where it has any."""

    model: str
    gpu: str
    cost_model: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    gpu_memory_utilization: float | None = None
    generation: Mapping[str, float] | None = None
    """Sampling settings that replace the model's own; None samples greedily."""
    speculation: SpeculativeConfig | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel: bool = False
    enforce_eager: bool = False
    folder_of: Callable[[str], str] = str
    """Function that returns the folder of a model to be downloaded by its name, and other names unchanged."""

    def target(self) -> Target:
        """Return the hardware; raises ConfigError for a name that is not known, and for what does not fit."""
        model, asked = load_model(self.folder_of(self.model)), self.speculation
        if asked is not None and asked.model is not None:
            asked = replace(asked, model=self.folder_of(asked.model))
        if self.quantization is not None:
            model = quantised(model, self.quantization)
        return Target(
            model,
            load_gpu(self.gpu),
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=None if self.dtype == "auto" else dtype_name(self.dtype),
            gpu_memory_utilization=self.gpu_memory_utilization or MEMORY_SHARE,
            cost_model=self.cost_model,
            kv_dtype=kv_dtype_name(self.kv_cache_dtype),
            expert_parallel=self.expert_parallel,
            enforce_eager=self.enforce_eager,
            draft=draft_of(asked, model),
            num_drafts=0 if asked is None else asked.num_tokens,
            drawing=GREEDY if self.generation is None else model.drawing(self.generation),
            pipeline_parallel_size=self.pipeline_parallel_size,
            data_parallel_size=sharing_ranks(
                model, self.data_parallel_size, self.expert_parallel, self.pipeline_parallel_size
            ),
        )
