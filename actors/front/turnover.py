"""When there is room again where a limited number of requests may be unfinished at a time."""

from collections import deque

from actors.kernel.clock import now_s

MOST_ENDS = 64
FIRST_GUESS_S = 1.0


class Turnover:
    """How fast requests end, and which places were promised to those that were turned away.

    Law: who is turned away later is told to come later, so that a crowd does not return all at once; nobody
    is told to stay away for longer than it takes all that are unfinished now to end. Cost: O(1).
    """

    __slots__ = ("_gap_s", "_instants_s", "_promised_s")

    def __init__(self) -> None:
        self._instants_s: deque[float] = deque(maxlen=MOST_ENDS)
        """The latest ends of this busy time, and before them its begin."""
        self._gap_s = FIRST_GUESS_S
        """From end to end in the busy time before."""
        self._promised_s = 0.0

    def begun(self, num_unfinished: int) -> None:
        """A request is taken, beside this many."""
        if not num_unfinished:
            self._instants_s.clear()
            self._instants_s.append(now_s())

    def ended(self, num_unfinished: int) -> None:
        """A request is over, and this many are left."""
        self._instants_s.append(now_s())
        if not num_unfinished:
            self._gap_s = self._mean_gap_s()

    def room_in_s(self, num_lacking: int, num_unfinished: int) -> float:
        """Seconds until `num_lacking` of the unfinished will have ended, for one more that is turned away."""
        gap_s, time_s = self._mean_gap_s(), now_s()
        promised_s = max(self._promised_s, time_s) + num_lacking * gap_s
        self._promised_s = min(promised_s, time_s + num_unfinished * gap_s)
        return self._promised_s - time_s

    def _mean_gap_s(self) -> float:
        """Up to now, so that it grows while nothing ends."""
        if not self._instants_s:  # only prompts that are still being read are unfinished
            return self._gap_s
        busy_s, num_ends = now_s() - self._instants_s[0], len(self._instants_s) - 1
        return busy_s / num_ends if num_ends else max(self._gap_s, busy_s)
