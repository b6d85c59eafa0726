"""Number of a model's parameters, from the memory of its weights."""

from dataclasses import replace

from sundog.sim.hardware.shape import ModelShape


def num_params(shape: ModelShape) -> int:
    """The number of all parameters: half the bytes of weights of two bytes each."""
    num_bytes = replace(shape, weights=None).weight_bytes("bfloat16")
    assert num_bytes % 2 == 0
    return num_bytes // 2


def num_active_params(shape: ModelShape) -> int:
    """Parameters that one token meets: every layer, but only the experts it is sent to."""
    return num_params(shape) - sum(
        count * (layer.mlp.num_experts - layer.mlp.per_token) * layer.mlp.expert_weights(shape.hidden_size)
        for layer, count in shape.layers
    )
