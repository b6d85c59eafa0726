"""Scalers: how many replicas a fleet should have, asked again and again; frozen objects of pure functions.

Two are formulas that clusters run: Kubernetes' HorizontalPodAutoscaler (its algorithm, tolerance and
stabilisation windows as documented in "Horizontal Pod Autoscaling", Kubernetes 1.34), and KEDA, which hands a
metric of the type AverageValue to the same controller and adds nothing above one replica.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from actors.core.policies.guard import ANY, PolicyError


@dataclass(frozen=True, slots=True)
class ScaledFleet:
    """A fleet when its scaler is asked.

    Counts are of this instant; `busy` (the share of time that replicas which are up computed), `arrivals` and
    `ttfts_s` (of first tokens) are since the scaler was asked before, `every_s` ago. `asked` has the numbers
    of replicas that scalers wanted, with their times, the latest last.
    """

    now_s: float
    every_s: float
    num_up: int
    num_starting: int
    num_running: int
    num_waiting: int
    busy: float
    arrivals: int
    ttfts_s: Sequence[float]
    history: Sequence[int]
    """The arrivals between earlier questions, the latest last."""
    asked: Sequence[tuple[float, int]]
    start_s: float
    """Seconds from the order of a replica until it serves."""

    @property
    def num_replicas(self) -> int:
        """Replicas that serve or start."""
        return self.num_up + self.num_starting


class Scaler:
    """A subclass says how many replicas it wants; the answer is kept between the fewest and the most."""

    def want(self, fleet: ScaledFleet) -> int:
        """Return the number of replicas that the fleet should have."""
        raise NotImplementedError


def stabilised(fleet: ScaledFleet, wanted: int, down_s: float) -> int:
    """Return `wanted`, or, to scale down, the most wanted in the last `down_s` seconds, as the HPA does."""
    recent = [count for time_s, count in fleet.asked if time_s >= fleet.now_s - down_s]
    return max([wanted, *recent]) if wanted < fleet.num_replicas else wanted


def _above_zero(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}: it must be above 0 and finite")


@dataclass(frozen=True)
class Keda(Scaler):
    """KEDA by the queue: unfinished requests over `target` for each replica, rounded up."""

    target: float = 16.0
    down_s: float = 300.0

    def __post_init__(self) -> None:
        _above_zero("target", self.target)

    def want(self, fleet: ScaledFleet) -> int:
        wanted = ceil((fleet.num_running + fleet.num_waiting) / self.target)
        return stabilised(fleet, wanted, self.down_s)


@dataclass(frozen=True)
class Hpa(Scaler):
    """The HPA by utilisation: replicas times the mean busy share over `target`, within `tolerance` none."""

    target: float = 0.7
    tolerance: float = 0.1
    down_s: float = 300.0

    def __post_init__(self) -> None:
        _above_zero("target", self.target)

    def want(self, fleet: ScaledFleet) -> int:
        ratio = fleet.busy / self.target
        if abs(ratio - 1) <= self.tolerance:
            return fleet.num_replicas
        return stabilised(fleet, ceil(fleet.num_up * ratio), self.down_s)


@dataclass(frozen=True)
class Attainment(Scaler):
    """Scale by the objective: up if fewer than `share` of first tokens came within `ttft_s`, down if idle."""

    ttft_s: float = 0.5
    share: float = 0.95
    step: float = 0.25
    idle: float = 0.3
    down_s: float = 300.0

    def want(self, fleet: ScaledFleet) -> int:
        count = fleet.num_replicas
        met = sum(ttft_s <= self.ttft_s for ttft_s in fleet.ttfts_s)
        if (fleet.num_waiting and not fleet.ttfts_s) or met < self.share * len(fleet.ttfts_s):
            return count if fleet.num_starting else count + max(1, ceil(count * self.step))
        return stabilised(fleet, count - 1 if fleet.busy < self.idle else count, self.down_s)


@dataclass(frozen=True)
class ArrivalTrend(Scaler):
    """Scale by the arrivals expected when an order takes effect, on a line through the last `window` counts.

    A replica serves `per_s` requests a second.
    """

    per_s: float = 1.0
    window: int = 8
    down_s: float = 300.0

    def __post_init__(self) -> None:
        _above_zero("per_s", self.per_s)

    def want(self, fleet: ScaledFleet) -> int:
        counts = [*fleet.history, fleet.arrivals][-self.window :]
        middle, mean = (len(counts) - 1) / 2, sum(counts) / len(counts)
        spread = sum((index - middle) ** 2 for index in range(len(counts)))
        slope = (
            sum((index - middle) * count for index, count in enumerate(counts)) / spread if spread else 0.0
        )
        ahead = len(counts) - 1 - middle + fleet.start_s / fleet.every_s
        coming_per_s = max(mean + slope * ahead, 0.0) / fleet.every_s
        return stabilised(fleet, ceil(coming_per_s / self.per_s), self.down_s)


SCALERS: dict[str, Callable[..., Scaler]] = {
    "keda": Keda,
    "hpa": Hpa,
    "attainment": Attainment,
    "forecast": ArrivalTrend,
}
"""The scalers that can be asked for by name."""


class GuardedScaler(Scaler):
    """A user's scaler, called `name`; what it does wrong is one error."""

    def __init__(self, inner: Scaler, name: str) -> None:
        self.inner, self.name = inner, name

    def want(self, fleet: ScaledFleet) -> int:
        try:
            wanted = operator.index(self.inner.want(fleet))
        except ANY as error:
            raise PolicyError(
                f"scaler {self.name}: want raised {type(error).__name__}: {error}, at {fleet.now_s:.3f} s"
            ) from error
        if wanted < 0:
            raise PolicyError(f"scaler {self.name}: want returned {wanted}: it must be at least 0")
        return wanted
