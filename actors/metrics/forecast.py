"""Forecasts of waiting requests' first tokens, and their accuracy.

The lengths of answers are unknown: the scheduler is simulated ahead several times, with lengths sampled from
those seen so far. The caller provides the simulation (`sim/ahead.py`).
"""

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Protocol

from sundog.actors.metrics.measured import Measured, Recent

NUM_DRAWS = 9
"""Number of simulations with sampled lengths; 27 improve medians no further, at three times the cost."""
LEAST, MOST = 0.1, 0.9
"""Medians from this quantile to that one form the range of a forecast."""
FEWEST_MISSES = 20
SHORTEST = 16
"""Median answer length in tokens assumed before any answer was seen."""


class FirstToken(NamedTuple):
    """Expected time of a first token: median of the samples, and their 10th and 90th percentile."""

    expected_s: float
    least_s: float
    most_s: float

    def less(self, passed_s: float) -> "FirstToken":
        """Return the times less `passed_s`, at least 0 since overdue tokens are expected now."""
        return FirstToken(*[max(each - passed_s, 0.0) for each in self])


class SeenLengths(NamedTuple):
    """Lengths of answers so far: exact for those that stopped, minimal for those cut or still running.

    Requests with a known length are not counted.
    """

    stopped: tuple[int, ...]
    cut: tuple[int, ...]
    running: tuple[int, ...]

    @classmethod
    def of(cls, recent: Recent, unfinished: Iterable[Measured]) -> "SeenLengths":
        """Return the lengths at this instant."""
        ended = [
            (request.num_tokens, why) for request, why, _ in recent.ended if not request.has_known_length
        ]
        begun = [request for request in unfinished if request.num_tokens and not request.has_known_length]
        return cls(
            tuple([num_tokens for num_tokens, why in ended if why == "stop"]),
            tuple([num_tokens for num_tokens, why in ended if why == "length"]),
            tuple([request.num_tokens for request in begun]),
        )

    def again(self, chance: Random) -> "SeenLengths":
        """Return as many lengths, sampled with replacement (a bootstrap), so that forecasts after few answers
        have wide ranges.
        """
        seen = [(kind, length) for kind, lengths in enumerate(self) for length in lengths]
        drawn = chance.choices(seen, k=len(seen)) if seen else []
        return SeenLengths(*[tuple([length for of, length in drawn if of == kind]) for kind in range(3)])


class AnswerLengths:
    """Estimator of answer lengths from stopped and unfinished answers (Kaplan and Meier, J. Am. Stat. Assoc.
    53, 1958).

    An answer that still runs, or was cut at its limit, is a censored observation: it is longer than its
    tokens so far. Beyond the longest stopped answer, answers stop at the mean rate of all tokens. Before any
    has stopped, an answer of n tokens is assumed to exceed x tokens with probability n/x.
    """

    def __init__(self, seen: SeenLengths) -> None:
        self.is_guess = not seen.stopped
        """Whether no answer has stopped yet, so that the scale of lengths is unknown."""
        self._is_cut = bool(seen.cut)
        self._scale = sum(seen.running) / len(seen.running) if seen.running else SHORTEST / 2
        num_ended, all_lengths = Counter(seen.stopped), sorted([*seen.stopped, *seen.cut, *seen.running])
        self._rate = len(seen.stopped) / max(sum(all_lengths), 1)
        """Probability that an answer stops at a token it has reached."""
        self._lengths = sorted(num_ended)
        """Distinct lengths at which answers stopped, ascending."""
        self._longer: list[float] = []
        """Share of all answers longer than each of these lengths."""
        share = 1.0
        for length in self._lengths:
            share *= 1 - num_ended[length] / (len(all_lengths) - bisect_right(all_lengths, length - 1))
            self._longer.append(share)

    def remaining(self, num_tokens: int, most: int, share: float) -> int:
        """Return the quantile `share` of the further tokens of an answer with `num_tokens`, from 1 to
        `most`.
        """
        left = 1 - share
        if not self._lengths:
            known = max(self._scale, num_tokens)
            return most if self._is_cut else _bounded(known / left - num_tokens, most)
        first, more, share_left = bisect_right(self._lengths, num_tokens), 0, 1.0
        reached = self._longer[first - 1] if first else 1.0
        for length, longer in zip(self._lengths[first:], self._longer[first:], strict=True):
            more, share_left = length - num_tokens, longer / reached
            if share_left <= left:
                return _bounded(more, most)
        return _bounded(more + math.log(share_left / left) / self._rate, most)


def _bounded(num_tokens: float, most: int) -> int:
    return max(1, min(round(num_tokens), most))


@dataclass(frozen=True, slots=True)
class Known:
    """Request at the start of a forecast: its tokens now, and its expected further tokens."""

    request_id: str
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_expected_tokens: int
    has_caught_up: bool
    priority: int
    tenant: str | None
    is_drawn: bool = False
    """Whether the answer's length must be sampled: the client gave only a limit, not an expected number."""

    @classmethod
    def of(cls, request: Measured) -> "Known":
        """Return a request as it is now; a length that is fixed overrides the predicted one."""
        most = max(request.max_tokens - request.num_tokens, 1)
        predicted = request.predicted_tokens
        says = not request.has_known_length and predicted is not None and predicted > request.num_tokens
        expected = min(predicted - request.num_tokens, most) if says and predicted is not None else most
        return cls(
            request.request_id,
            request.num_prompt_tokens,
            num_tokens=request.num_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_expected_tokens=expected,
            has_caught_up=request.has_caught_up,
            priority=request.priority,
            tenant=request.tenant,
            is_drawn=not (says or request.has_known_length),
        )

    def drawn(self, lengths: AnswerLengths, share: float) -> "Known":
        """Return the request with a length at this quantile of the distribution, unless its length is
        known.
        """
        if not self.is_drawn:
            return self
        num_tokens = lengths.remaining(self.num_tokens, self.num_expected_tokens, share)
        return replace(self, num_expected_tokens=num_tokens)


class Forecast(Protocol):
    """Simulation of the server's future; called in a thread."""

    def first_tokens_s(
        self, replica: int, running: Sequence[Known], waiting: Sequence[Known]
    ) -> Mapping[str, float]:
        """Return the seconds until the first tokens of one replica's requests that have none yet.

        Requests come in the scheduler's order. Those missing in the result are too far ahead.
        """
        ...


def look_ahead(
    forecast: Forecast, replica: int, seen: SeenLengths, running: Sequence[Known], waiting: Sequence[Known]
) -> dict[str, FirstToken]:
    """Return the seconds until requests of one replica have their first tokens.

    Each request gets a length from each ninth of the distribution, in a random order of its own, so that few
    simulations cover the whole range (a Latin hypercube). Before any answer has stopped all have the same
    scale within a simulation, since the scale is what is unknown. If all lengths are known, one simulation
    suffices, without a range. The samples are the same in each forecast, so that it changes only by events.
    """
    chance, both = Random(0), (*running, *waiting)
    num_draws = NUM_DRAWS if any(known.is_drawn for known in both) else 1
    orders = [chance.sample(range(num_draws), num_draws) for _ in both]
    found: dict[str, list[float]] = {known.request_id: [] for known in waiting}
    for draw in range(num_draws):
        lengths = AnswerLengths(seen.again(chance) if draw else seen)
        ninths = [draw + 0.5 if lengths.is_guess else order[draw] + chance.random() for order in orders]
        shares = [ninth / num_draws for ninth in ninths]
        drawn = [known.drawn(lengths, share) for known, share in zip(both, shares, strict=True)]
        in_s = forecast.first_tokens_s(replica, drawn[: len(running)], drawn[len(running) :])
        for name, at_s in in_s.items():
            found.setdefault(name, []).append(at_s)
    return {name: _spread(sorted(each)) for name, each in found.items() if len(each) == num_draws}


def _spread(times_s: Sequence[float]) -> FirstToken:
    return FirstToken(*[_quantile(times_s, share) for share in (0.5, LEAST, MOST)])


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted samples, interpolated between them; n samples stand at (i + 0.5) / n."""
    place = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


class Judged(NamedTuple):
    """Accuracy of the first forecasts of recent requests, and the number of forecasts judged.

    `median_error` is relative, of the medians: 0.1 is a first token 10 % early or late. `share_held` is the
    share, among `num_ranges` forecasts with a range, whose range contained the actual time.
    """

    num: int
    median_error: float
    num_ranges: int
    share_held: float | None


class Accuracy:
    """Accuracy of each request's first forecast, once its first token has come.

    Ranges are stretched to what would have contained 80 % of recent first tokens (conformal prediction,
    Romano et al., arXiv:1905.03222), because samples do not cover changes of load or common errors.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[Measured, FirstToken, FirstToken]] = {}
        self._misses: deque[float] = deque(maxlen=300)
        """Distances from the median to the actual time, as shares of the distance to the range's end."""
        self.errors: deque[float] = deque(maxlen=300)
        """Relative errors of the medians."""
        self.held: deque[bool] = deque(maxlen=300)
        """Whether each range, as shown, contained the actual time."""

    def stretched(self, drawn: FirstToken) -> FirstToken:
        """Return a forecast whose range is stretched by the errors of earlier ones, if there are any."""
        if len(self._misses) < FEWEST_MISSES:
            return drawn
        middle, factor = drawn.expected_s, _quantile(sorted(self._misses), MOST - LEAST)
        ends = [max(middle + factor * (end - middle), 0.0) for end in drawn[1:]]
        return FirstToken(middle, *ends)

    def forecast(self, request: Measured, drawn: FirstToken) -> None:
        """Record a forecast made since the request's arrival; the first of each request counts."""
        self._first.setdefault(request.request_id, (request, drawn, self.stretched(drawn)))

    def settle(self, unfinished: Container[str]) -> None:
        """Compare forecasts with first tokens that came, and drop those of requests that ended without."""
        for name, (request, drawn, shown) in list(self._first.items()):
            if (ttft_s := request.ttft_s) is not None:
                middle_s, least_s, most_s = drawn
                self.errors.append(abs(middle_s / ttft_s - 1))
                if least_s < most_s:
                    self.held.append(shown.least_s <= ttft_s <= shown.most_s)
                    side_s = (most_s if ttft_s > middle_s else least_s) - middle_s
                    self._misses.append((ttft_s - middle_s) / side_s if side_s else 1.0)
            if ttft_s is not None or name not in unfinished:
                del self._first[name]

    @property
    def judged(self) -> Judged | None:
        """Accuracy of the latest forecasts; None before the first."""
        if not self.errors:
            return None
        held = sum(self.held) / len(self.held) if self.held else None
        return Judged(len(self.errors), sorted(self.errors)[len(self.errors) // 2], len(self.held), held)
