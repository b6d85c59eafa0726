"""The controller of a fleet's size: what follows from a scaler's answers, as Kubernetes' HPA decides it.

Every answer is kept as the scaler gave it, and the windows are over these answers: what was decided plays no
part in them. (Kubernetes records raw recommendations: a window over what was held could never fall.) Then
the scaling policies bound the change, and the fewest and the most replicas the outcome.
"""

from collections import deque
from math import ceil, floor, inf

from sundog.actors.core.scalers import FirstItems, ScaledFleet, Scaler


class Extreme:
    """The greatest value of the last `window_s` seconds. O(1) a value, in the mean"""

    __slots__ = ("_falling", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._falling: deque[tuple[float, int]] = deque()
        """The values that may become the greatest, each above those after it."""

    def of(self, time_s: float, value: int) -> int:
        """Add a value, and return the greatest of the window, which has its begin and its end."""
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((time_s, value))
        while falling[0][0] < time_s - self._window_s:
            falling.popleft()
        return falling[0][1]


class Changed:
    """How many replicas were added and removed in the last `period_s` seconds."""

    __slots__ = ("_changes", "_period_s", "num_added", "num_removed")

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._changes: deque[tuple[float, int]] = deque()
        self.num_added = self.num_removed = 0

    def note(self, time_s: float, change: int) -> None:
        """Note a change of the fleet."""
        self._changes.append((time_s, change))
        self.num_added += max(change, 0)
        self.num_removed += max(-change, 0)

    def forget(self, time_s: float) -> None:
        """Forget what is a whole period ago."""
        while self._changes and self._changes[0][0] <= time_s - self._period_s:
            _, change = self._changes.popleft()
            self.num_added -= max(change, 0)
            self.num_removed -= max(-change, 0)


class Controller:
    """Decides how many replicas a fleet has from now on, each time that it is shown the fleet.

    Laws: once the scaler answers no more than the fewest, the decision is the fewest at the first question
    after `down_s`, unless a scaling policy slows it down; a question costs O(1).
    """

    def __init__(self, scaler: Scaler, fewest: int, most: int) -> None:
        self.scaler, self._fewest, self._most = scaler, fewest, most
        self._asked: list[tuple[float, int]] = []
        self._greatest, self._least = Extreme(scaler.down_s), Extreme(scaler.up_s)
        self._for_up, self._for_down = Changed(scaler.up_period_s), Changed(scaler.down_period_s)

    @property
    def asked(self) -> FirstItems[tuple[float, int]]:
        """The scaler's answers so far, with their times."""
        return FirstItems(self._asked)

    def decide(self, fleet: ScaledFleet) -> int:
        """Ask the scaler, and return the number of replicas that there are to be."""
        now_s, count = fleet.now_s, fleet.num_replicas
        answer = self.scaler.want(fleet)
        self._asked.append((now_s, answer))
        at_least, at_most = -self._least.of(now_s, -answer), self._greatest.of(now_s, answer)
        wanted = self._bounded(now_s, count, min(max(count, at_least), at_most))
        if wanted != count:
            for changed in (self._for_up, self._for_down):
                changed.note(now_s, wanted - count)
        return wanted

    def _bounded(self, now_s: float, count: int, wanted: int) -> int:
        scaler = self.scaler
        if wanted > count:
            limit = _limit(self._for_up, now_s, count, scaler.up_pods, scaler.up_percent, 1)
            wanted = int(min(wanted, max(limit, count)))
        elif wanted < count:
            limit = _limit(self._for_down, now_s, count, scaler.down_pods, scaler.down_percent, -1)
            wanted = int(max(wanted, min(limit, count)))
        return min(max(wanted, self._fewest), self._most)


def _limit(changed: Changed, now_s: float, count: int, pods: float, percent: float, sign: int) -> float:
    """Return how far a fleet may change in a direction, by its most permissive policy."""
    if pods == percent == inf:
        return sign * inf
    changed.forget(now_s)
    began = count - changed.num_added + changed.num_removed
    by_percent = began * (1 + sign * percent / 100)
    limits = [] if pods == inf else [began + sign * pods]
    limits += [] if percent == inf else [float(ceil(by_percent) if sign > 0 else floor(by_percent))]
    return max(limits) if sign > 0 else min(limits)
