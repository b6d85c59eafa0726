"""What data-parallel ranks share: nothing of a dense model, the experts of one that has some."""

from actors.core.config import ConfigError
from sim.hardware.shape import ModelShape


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
