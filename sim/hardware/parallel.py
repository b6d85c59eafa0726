"""How a model is split over GPUs: its layers over stages, and what data-parallel ranks share."""

from collections import Counter
from dataclasses import replace

from actors.core.config import ConfigError
from sim.hardware.shape import ModelShape


def layers_of_stages(num_layers: int, num_stages: int) -> list[int]:
    """How many layers each stage has: what is left over goes to the stages before the last, from the back.

    The last has the output head, and the first, where others can take what is left over, the embedding
    (vLLM's `get_pp_indices`).
    """
    each, left = divmod(num_layers, num_stages)
    return [each + (num_stages - 1 - left <= stage < num_stages - 1) for stage in range(num_stages)]


def stages_of(model: ModelShape, num_stages: int) -> tuple[ModelShape, ...]:
    """The part of the model on each stage; the model itself where there is one.

    The first has the embedding, the last the final norm and the output head. A head that is the same table
    as the embedding is kept on both. Raises ConfigError where there are fewer layers than stages.
    """
    if num_stages == 1:
        return (model,)
    if num_stages > model.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size is {num_stages}, and {model.name} has {model.num_layers} layers: give at"
            " most as many stages"
        )
    stages, first, layers = [], 0, model.layers_in_order
    for stage, count in enumerate(layers_of_stages(len(layers), num_stages)):
        own = Counter(layers[first : first + count])
        stages.append(
            replace(
                model,
                name=f"{model.name}, stage {stage + 1} of {num_stages}",
                layers=tuple(own.items()),
                order=(),
                has_embedding=stage == 0,
                has_head=stage == num_stages - 1,
            )
        )
        first += count
    return tuple(stages)


def sharing_ranks(model: ModelShape, num_ranks: int, whole_experts: bool, num_stages: int) -> int:
    """How many data-parallel ranks go in step, for they share experts; 1 where each goes alone.

    Raises ConfigError for experts in parts, and for stages.
    """
    if num_ranks == 1 or not model.has_experts:
        return 1
    if not whole_experts:
        raise ConfigError(
            f"--data-parallel-size is {num_ranks}: experts of {model.name} cut into parts over all ranks are"
            " not predicted; add --enable-expert-parallel"
        )
    if num_stages > 1:
        raise ConfigError(
            f"--data-parallel-size is {num_ranks}: ranks that share experts are not predicted with stages;"
            " leave --pipeline-parallel-size at 1"
        )
    return num_ranks
