"""Scalers: the number of replicas of a fleet, called periodically; frozen objects of pure functions.

Two are formulas used in clusters: Kubernetes' HorizontalPodAutoscaler (algorithm and tolerance as in
"Horizontal Pod Autoscaling", Kubernetes 1.34), and KEDA, which feeds a metric of the type AverageValue to the
same controller and adds nothing above one replica. The controller (`autoscaling.py`) applies the HPA's
windows and policies to the answers.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import ceil, inf
from typing import Any, TypeVar, overload

from sundog.actors.core.policies.answers import WrongAnswer
from sundog.actors.core.policies.guard import ANY, Guard
from sundog.actors.core.records import dataclass

T = TypeVar("T")


class FirstItems(Sequence[T]):
    """Sequence of the first items of a list that only grows. O(1) to make"""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T]) -> None:
        self._items, self._length = items, len(items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._items[number] for number in range(*index.indices(self._length))]
        return self._items[range(self._length)[index]]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)


@dataclass(frozen=True, slots=True)
class ScaledFleet:
    """The load of a fleet, or of one pool, as a scaler sees it.

    Counts are of this instant; `busy`, `arrivals` and `ttfts_s` cover the last `every_s` seconds. A replica
    that was scaled away finishes its requests: they are counted as running or waiting, and the replica
    neither in `num_up` nor in `busy`.

    Args:
        now_s: Time on the run's clock.
        every_s: Seconds since the previous call of the scaler.

    Example:
        >>> import sundog
        >>> fleet = sundog.ScaledFleet(
        ...     now_s=60.0, every_s=15.0, num_up=2, num_starting=1, num_running=30, num_waiting=4, busy=0.9,
        ...     arrivals=20, ttfts_s=[0.2, 0.3], history=[18, 25], asked=[(45.0, 3)], start_s=120.0,
        ... )
        >>> fleet.num_replicas
        3
    """

    now_s: float
    every_s: float
    num_up: int
    """Number of replicas that serve."""
    num_starting: int
    """Number of replicas that were ordered and do not serve yet, or crashed and are not back."""
    num_running: int
    num_waiting: int
    busy: float
    """Fraction of the time in which the `num_up` replicas computed; 0 before the first was up."""
    arrivals: int
    ttfts_s: Sequence[float]
    history: Sequence[int]
    """Arrivals in earlier periods, the latest last."""
    asked: Sequence[tuple[float, int]]
    """Earlier answers of the scaler with their times, the latest last."""
    start_s: float
    """Seconds from the order of a replica until it serves."""

    @property
    def num_replicas(self) -> int:
        """Number of replicas that serve or start."""
        return self.num_up + self.num_starting


class Scaler:
    """Base of scalers: the number of replicas of a fleet, and how fast it may change.

    The attributes are those of `behavior` in Kubernetes' HorizontalPodAutoscaler: windows over the answers of
    `want`, and how many replicas may be added or removed in a period, as a number or in percent, whichever is
    more. By default the fleet follows at once. The result is kept within the fewest and the most replicas.

    Example:
        >>> import sundog
        >>> class TenEach(sundog.Scaler):
        ...     down_s = 300.0
        ...     def want(self, fleet):
        ...         return max(1, (fleet.num_running + fleet.num_waiting) // 10)
        >>> TenEach().down_s
        300.0
    """

    up_s: float = 0.0
    """Window for growing, in seconds: the smallest recommendation in it counts."""
    down_s: float = 0.0
    """Window for shrinking, in seconds: the largest recommendation in it counts."""
    up_pods: float = inf
    up_percent: float = inf
    up_period_s: float = 15.0
    down_pods: float = inf
    down_percent: float = inf
    down_period_s: float = 15.0

    def want(self, fleet: ScaledFleet) -> int:
        """Return the number of replicas that the fleet should have.

        Args:
            fleet: The load of the fleet, or of one pool.

        Returns:
            Number of replicas.
        """
        raise NotImplementedError


def check_behaviour(scaler: Scaler) -> None:
    """Check the attributes of a scaler.

    Raises:
        ValueError: An attribute is not a number, or out of its bounds.
    """
    for name in ("up_s", "down_s", "up_pods", "up_percent", "down_pods", "down_percent"):
        value: Any = getattr(scaler, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_bound = name.endswith(("pods", "percent"))
        if not is_number or not (value > 0 if is_bound else 0 <= value < inf):
            bound = "above 0" if is_bound else "at least 0 and finite"
            raise ValueError(f"{name} is {value!r}: it must be a number {bound}")
    for name in ("up_period_s", "down_period_s"):
        _above_zero(name, getattr(scaler, name))


def _above_zero(name: str, value: float) -> None:
    if not 0 < value < inf:
        raise ValueError(f"{name} is {value}: it must be above 0 and finite")


@dataclass(frozen=True, kw_only=True)
class Stabilised(Scaler):
    """Scaler that shrinks as slowly as the HPA: to the largest recommendation of the last 300 s."""

    up_s: float = 0.0
    down_s: float = 300.0
    up_pods: float = inf
    up_percent: float = inf
    up_period_s: float = 15.0
    down_pods: float = inf
    down_percent: float = inf
    down_period_s: float = 15.0

    def __post_init__(self) -> None:
        check_behaviour(self)


@dataclass(frozen=True, kw_only=True)
class Keda(Stabilised):
    """KEDA by queue length: unfinished requests divided by `target` per replica, rounded up.

    The HPA does nothing if `target` times the replicas is within `tolerance` of the requests.
    """

    target: float = 16.0
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        _above_zero("target", self.target)
        super().__post_init__()

    def want(self, fleet: ScaledFleet) -> int:
        num_unfinished, count = fleet.num_running + fleet.num_waiting, fleet.num_replicas
        if count and abs(num_unfinished / (self.target * count) - 1) <= self.tolerance:
            return count
        return ceil(num_unfinished / self.target)


@dataclass(frozen=True, kw_only=True)
class Hpa(Stabilised):
    """HPA by utilisation: serving replicas times their mean busy share over `target`, rounded up.

    Within `tolerance` nothing changes. To scale up while some replicas start, those count as idle: if that
    reverses the direction or comes within the tolerance, nothing changes either.
    """

    target: float = 0.7
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        _above_zero("target", self.target)
        super().__post_init__()

    def want(self, fleet: ScaledFleet) -> int:
        ratio, count = fleet.busy / self.target, fleet.num_replicas
        if not fleet.num_up:
            return count  # No replica has a metric.
        if ratio > 1 and fleet.num_starting:
            of_all = ratio * fleet.num_up / count
            return count if of_all <= 1 + self.tolerance else ceil(fleet.num_up * ratio)
        return count if abs(ratio - 1) <= self.tolerance else ceil(fleet.num_up * ratio)


@dataclass(frozen=True, kw_only=True)
class Attainment(Stabilised):
    """Scale by the TTFT objective: up if fewer than `share` of first tokens came within `ttft_s`, down if
    idle.

    A fleet that is busy for less than `idle` of the time shrinks to the number of replicas that would be busy
    for that share.
    """

    ttft_s: float = 0.5
    share: float = 0.95
    step: float = 0.25
    idle: float = 0.3

    def __post_init__(self) -> None:
        _above_zero("ttft_s", self.ttft_s)
        _above_zero("step", self.step)
        _above_zero("idle", self.idle)
        super().__post_init__()

    def want(self, fleet: ScaledFleet) -> int:
        count = fleet.num_replicas
        met = sum(ttft_s <= self.ttft_s for ttft_s in fleet.ttfts_s)
        if (fleet.num_waiting and not fleet.ttfts_s) or met < self.share * len(fleet.ttfts_s):
            return count if fleet.num_starting else count + max(1, ceil(count * self.step))
        return count if fleet.busy >= self.idle else ceil(fleet.num_up * fleet.busy / self.idle)


@dataclass(frozen=True, kw_only=True)
class ArrivalTrend(Stabilised):
    """Scale for the arrivals expected when new replicas serve, by a line through the last `window` counts.

    A replica serves `per_s` requests a second. Once nothing arrives, nothing is expected.
    """

    per_s: float = 1.0
    window: int = 8

    def __post_init__(self) -> None:
        _above_zero("per_s", self.per_s)
        if self.window < 1:
            raise ValueError(f"window is {self.window}: it must be at least 1")
        super().__post_init__()

    def want(self, fleet: ScaledFleet) -> int:
        if not fleet.arrivals:
            return 0
        counts = [*fleet.history[max(len(fleet.history) + 1 - self.window, 0) :], fleet.arrivals]
        middle, mean = (len(counts) - 1) / 2, sum(counts) / len(counts)
        spread = sum((index - middle) ** 2 for index in range(len(counts)))
        slope = (
            sum((index - middle) * count for index, count in enumerate(counts)) / spread if spread else 0.0
        )
        ahead = len(counts) - 1 - middle + fleet.start_s / fleet.every_s
        coming_per_s = max(mean + slope * ahead, 0.0) / fleet.every_s
        return ceil(coming_per_s / self.per_s)


SCALERS: dict[str, Callable[..., Scaler]] = {
    "keda": Keda,
    "hpa": Hpa,
    "attainment": Attainment,
    "forecast": ArrivalTrend,
}
"""Scalers by name."""


class GuardedScaler(Guard[Scaler], Scaler):
    """Guard of a user's scaler."""

    word = "scaler"

    def _use(self, inner: Scaler) -> None:
        self.inner = inner
        for name, value in vars(Scaler).items():
            if isinstance(value, float):
                setattr(self, name, getattr(inner, name))

    def want(self, fleet: ScaledFleet) -> int:
        try:
            wanted = operator.index(self.inner.want(fleet))
            if wanted < 0:
                raise WrongAnswer(f"returned {wanted}: it must be at least 0")
            return wanted
        except ANY as error:
            self._failed("want", f"the fleet at {fleet.now_s:.3f} s", error)
        return self.inner.want(fleet)
