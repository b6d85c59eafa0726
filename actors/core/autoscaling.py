"""Controller of a fleet's size: windows and limits on a scaler's recommendations, as in Kubernetes' HPA.

The windows are over the scaler's own answers, not over the decisions made from them. (Kubernetes records raw
recommendations too: a window over its own decisions could never fall.) Then the scaling policies limit the
change, and the fewest and the most replicas limit the result.
"""

from collections import deque
from math import ceil, floor, inf

from sundog.actors.core.scalers import FirstItems, ScaledFleet, Scaler


class Extreme:
    """Maximum of the values of the last `window_s` seconds; O(1) per value, amortised."""

    __slots__ = ("_falling", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._falling: deque[tuple[float, int]] = deque()
        """Values that may become the maximum, in falling order."""

    def of(self, time_s: float, value: int) -> int:
        """Add a value and return the maximum of the window, which includes both of its ends."""
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((time_s, value))
        while falling[0][0] < time_s - self._window_s:
            falling.popleft()
        return falling[0][1]


class Changed:
    """Numbers of replicas added and removed in the last `period_s` seconds."""

    __slots__ = ("_changes", "_period_s", "num_added", "num_removed")

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._changes: deque[tuple[float, int]] = deque()
        self.num_added = self.num_removed = 0

    def note(self, time_s: float, change: int) -> None:
        """Record a change of the fleet."""
        self._changes.append((time_s, change))
        self.num_added += max(change, 0)
        self.num_removed += max(-change, 0)

    def forget(self, time_s: float) -> None:
        """Forget changes of `period_s` seconds ago or earlier."""
        while self._changes and self._changes[0][0] <= time_s - self._period_s:
            _, change = self._changes.popleft()
            self.num_added -= max(change, 0)
            self.num_removed -= max(-change, 0)


class Controller:
    """Controller that sets the number of replicas each time it is called with the fleet's state.

    Laws: once the scaler recommends the fewest replicas or less, the fleet has the fewest at the first call
    after `down_s`, unless a scaling policy slows it; a call costs O(1).
    """

    def __init__(self, scaler: Scaler, fewest: int, most: int) -> None:
        self.scaler, self._fewest, self._most = scaler, fewest, most
        self._asked: list[tuple[float, int]] = []
        self._greatest, self._least = Extreme(scaler.down_s), Extreme(scaler.up_s)
        self._for_up, self._for_down = Changed(scaler.up_period_s), Changed(scaler.down_period_s)

    @property
    def asked(self) -> FirstItems[tuple[float, int]]:
        """Recommendations of the scaler so far, with their times."""
        return FirstItems(self._asked)

    def decide(self, fleet: ScaledFleet) -> int:
        """Call the scaler and return the new number of replicas."""
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
    """Return the largest change that the policies allow in one direction: that of the most permissive one."""
    if pods == percent == inf:
        return sign * inf
    changed.forget(now_s)
    began = count - changed.num_added + changed.num_removed
    by_percent = began * (1 + sign * percent / 100)
    limits = [] if pods == inf else [began + sign * pods]
    limits += [] if percent == inf else [float(ceil(by_percent) if sign > 0 else floor(by_percent))]
    return max(limits) if sign > 0 else min(limits)
