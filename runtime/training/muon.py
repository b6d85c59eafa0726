"""Muon for many small matrices: momentum whose singular values are all made about one.

Matrices of the same shape are stacked and orthogonalised together in float32, which on a processor
is several times quicker than `torch.optim.Muon`, which takes them one by one in bfloat16.  Source
of the method and of the coefficients: Keller Jordan, "Muon" (2024); of the scale that makes Adam's
learning rates fit: Liu et al., "Muon is scalable for LLM training" (2025), section 2.2.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 4


def orthogonalise(matrices_NRC: torch.Tensor) -> torch.Tensor:
    """The stack with its singular values pushed towards one, by Newton and Schulz; R <= C."""
    a, b, c = COEFFICIENTS
    x: torch.Tensor = matrices_NRC / (matrices_NRC.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon:
    """Steps matrices along orthogonalised Nesterov momentum."""

    def __init__(
        self, weights: Iterable[torch.nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.02
    ) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.by_shape: dict[tuple[int, ...], list[torch.nn.Parameter]] = defaultdict(list)
        for weight in weights:
            self.by_shape[tuple(sorted(weight.shape))].append(weight)
        self.velocity = {s: torch.zeros(len(ws), *s) for s, ws in self.by_shape.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step at learning rate `rate`; clears the gradients."""
        for shape, weights in self.by_shape.items():
            gradients = torch.stack([_wide(w.grad) for w in weights if w.grad is not None])
            velocity = self.velocity[shape].lerp_(gradients, 1 - self.momentum)
            direction = orthogonalise(gradients.lerp(velocity, self.momentum))
            scale = 0.2 * rate * math.sqrt(max(shape))
            for weight, change in zip(weights, direction, strict=True):
                _wide(weight).mul_(1 - rate * self.weight_decay).sub_(change, alpha=scale)
                weight.grad = None


def _wide(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix or its transpose, whichever has no more rows than columns."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
