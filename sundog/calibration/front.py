"""Fit of a server's front end, a queue, to bursts of equal prompts.

Of n prompts that come together, each read in s stages, the kth reaches the engine after ((s - 1) n + k) / s
services (`sundog.actors.engine.front_queue`): the last one tells the service, and the first one the stages.
A simulation adds the engine's steps. Each number of stages gets the service that explains the bursts best,
and the number with the least error is chosen. A latency that all requests have alike is no service: it is
constant in a burst, while services add up.
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
    services_s: Mapping[int, float] = field(default_factory=dict)
    """Service that explains the bursts best, by number of stages."""

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
    bursts: Sequence[Burst], predicted_s: Callable[[FrontCosts], Sequence[Floats]], begin: FittedFront
) -> FittedFront:
    """Return the front end that explains the bursts best; the search begins at `begin`, whose latency stays.

    `predicted_s` simulates the bursts and returns their first tokens' times, ascending.
    """
    errors, services_s = dict[int, float](), dict[int, float]()
    for stages in STAGES:
        begin_s = begin.services_s.get(stages, 0.0)
        services_s[stages], errors[stages] = _service(bursts, predicted_s, stages, begin_s)
    best = min(STAGES, key=errors.__getitem__)
    return FittedFront(
        FrontCosts(request=services_s[best], stages=best),
        begin.latency_s,
        errors=errors,
        services_s=services_s,
    )


def _service(
    bursts: Sequence[Burst],
    predicted_s: Callable[[FrontCosts], Sequence[Floats]],
    stages: int,
    request_s: float,
) -> tuple[float, float]:
    """Return the service with these stages that has the least squared error, and that error."""
    scales = [1 / burst.first_token_s.mean() for burst in bursts]
    slopes = np.concatenate(
        [services(burst.size, stages) * scale for burst, scale in zip(bursts, scales, strict=True)]
    )
    found_s, least = request_s, float("inf")
    for _ in range(MOST_STEPS):
        predictions = predicted_s(FrontCosts(request=request_s, stages=stages))
        residuals = np.concatenate(
            [
                (burst.first_token_s - own) * scale
                for burst, own, scale in zip(bursts, predictions, scales, strict=True)
            ]
        )
        error = float(np.sqrt(np.square(residuals).mean()))
        if error < least:
            found_s, least = request_s, error
        correction_s = float(residuals @ slopes / (slopes @ slopes))
        last_s, request_s = request_s, min(max(request_s + correction_s, 0.0), FrontCosts.most_s)
        if abs(request_s - last_s) <= SAME * request_s:
            break
    return found_s, least
