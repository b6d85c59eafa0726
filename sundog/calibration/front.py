"""Fit of a server's front end, a queue, to bursts of equal prompts.

Of n prompts that come together, each read in s stages, the kth reaches the engine after ((s - 1) n + k) / s
services (`sundog.actors.engine.front_queue`): the last one tells the service, and the first one the stages.
A simulation adds the engine's steps. Each number of stages gets the service that explains the bursts best,
and the number with the least error is chosen. A latency that all requests have alike is no service: it is
the same in bursts of all sizes, while services add up, so the loads tell it and not the bursts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sundog.actors.config.front_costs import FrontCosts
from sundog.sim.trace.record import TraceRequest

Floats = NDArray[np.float64]
STAGES = (1, 2, 3, 4, 6, 12)
"""Numbers of stages that are tried; beyond four bursts of neighbouring numbers hardly differ."""
MOST_STEPS = 8
"""Most corrections of a service."""
SAME = 1e-3
"""Relative change of a service from which it is not corrected further."""
ALIKE = 1.5
"""Ratio of two errors up to which they do not tell two numbers of stages apart."""


@dataclass(frozen=True, slots=True)
class BurstOnce:
    """Equal requests sent at once, in seconds from the burst's beginning: when each was sent, and when the
    first tokens came.
    """

    prompt_tokens: int
    sent_s: Sequence[float]
    first_token_s: Sequence[float]
    client_s: float = 0.0
    """Processor time of the client for all of them."""

    @property
    def size(self) -> int:
        return len(self.sent_s)


@dataclass(frozen=True, slots=True)
class Burst:
    """Bursts of one size: the medians, over repetitions, of the times of the kth request."""

    size: int
    prompt_tokens: int
    sent_s: tuple[float, ...]
    first_token_s: Floats
    """Times of first tokens, ascending."""
    scatter: float
    """Two standard deviations of the mean TTFT of repetitions, relative to their mean; 0 for one."""
    client_s: float
    """Processor time of the client for one request."""

    @classmethod
    def of(cls, repetitions: Sequence[BurstOnce]) -> "Burst":
        """Return the burst of repetitions of one size."""
        sent_s = np.median([sorted(each.sent_s) for each in repetitions], axis=0)
        first_s = np.median([sorted(each.first_token_s) for each in repetitions], axis=0)
        means_s = np.array([np.mean(each.first_token_s) for each in repetitions])
        scatter = 2 * means_s.std(ddof=1) / means_s.mean() if len(repetitions) > 1 else 0.0
        size = repetitions[0].size
        return cls(
            size,
            round(float(np.median([each.prompt_tokens for each in repetitions]))),
            sent_s=tuple(sent_s.tolist()),
            first_token_s=first_s,
            scatter=float(scatter),
            client_s=float(np.median([each.client_s for each in repetitions])) / size,
        )

    def rows(self, begin_s: float, name: str) -> list[TraceRequest]:
        """Return the requests of the burst if it begins at this time."""
        return [
            TraceRequest(f"{name}-{index}", begin_s + sent_s, self.prompt_tokens, 1)
            for index, sent_s in enumerate(self.sent_s)
        ]


def bursts_of(repetitions: Sequence[BurstOnce]) -> tuple[Burst, ...]:
    """Return the bursts by size, ascending."""
    by_size: dict[int, list[BurstOnce]] = {}
    for each in repetitions:
        by_size.setdefault(each.size, []).append(each)
    return tuple(Burst.of(by_size[size]) for size in sorted(by_size))


@dataclass(frozen=True, slots=True)
class FittedFront:
    """Costs of a front end, and a latency of requests without queueing."""

    costs: FrontCosts
    latency_s: float = 0.0
    errors: Mapping[int, float] = field(default_factory=dict)
    """Relative error of the bursts (root mean square) by number of stages; empty without bursts."""

    @property
    def alike(self) -> list[int]:
        """Other numbers of stages that explain the bursts nearly as well."""
        most = ALIKE * self.errors.get(self.costs.stages, 0.0)
        return [
            stages for stages, error in self.errors.items() if stages != self.costs.stages and error <= most
        ]


def services(size: int, stages: int) -> Floats:
    """Return the services after which the requests of a burst have passed the queue."""
    found: Floats = ((stages - 1) * size + np.arange(1.0, size + 1)) / stages
    return found


def fit_services(
    bursts: Sequence[Burst], predicted_s: Callable[[FrontCosts], Sequence[Floats]]
) -> FittedFront:
    """Return the front end that explains the bursts best.

    `predicted_s` simulates the bursts and returns their first tokens' times, ascending.
    """
    services_s, errors = dict[int, float](), dict[int, float]()
    for stages in STAGES:
        services_s[stages], errors[stages] = _service(bursts, predicted_s, stages)
    best = min(STAGES, key=errors.__getitem__)
    return FittedFront(FrontCosts(request=services_s[best], stages=best), errors=errors)


def _service(
    bursts: Sequence[Burst], predicted_s: Callable[[FrontCosts], Sequence[Floats]], stages: int
) -> tuple[float, float]:
    """Return the service with these stages that has the least squared error, and that error.

    A constant of all bursts is fitted beside the service, and dropped: a latency, or a part of a step.
    """
    scales = np.concatenate([np.full(burst.size, 1 / burst.first_token_s.mean()) for burst in bursts])
    measured_s = np.concatenate([burst.first_token_s for burst in bursts])
    slopes = np.concatenate([services(burst.size, stages) for burst in bursts])
    columns = np.stack((slopes * scales, scales), axis=1)
    request_s, found_s, least = 0.0, 0.0, float("inf")
    for _ in range(MOST_STEPS):
        beyond_s = measured_s - np.concatenate(predicted_s(FrontCosts(request=request_s, stages=stages)))
        residuals = beyond_s * scales
        constant_s = float(residuals @ scales / (scales @ scales))
        error = float(np.sqrt(np.square(residuals - constant_s * scales).mean()))
        if error < least:
            found_s, least = request_s, error
        correction_s = float(np.linalg.lstsq(columns, residuals, rcond=None)[0][0])
        last_s, request_s = request_s, min(max(request_s + correction_s, 0.0), FrontCosts.most_s)
        if abs(request_s - last_s) <= SAME * request_s:
            break
    return found_s, least
