"""Forecasts of waiting requests, and how far they were off.

How long answers become is not known: the scheduler is run ahead several times, each time with other lengths,
drawn from those seen so far. How it is run ahead is the composition's business (`sim/ahead.py`).
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
"""Runs ahead with drawn lengths; 27 make medians no better, and cost three times as much."""
LEAST, MOST = 0.1, 0.9
"""The quantiles of a range."""
FEWEST_MISSES = 20
SHORTEST = 16
"""The tokens that half of all answers exceed, before anything is known of any."""


class FirstToken(NamedTuple):
    """The expected time of a first token: the median of the draws, and their 10th and 90th percentile."""

    expected_s: float
    least_s: float
    most_s: float

    def less(self, passed_s: float) -> "FirstToken":
        """Return the same seen from another instant; what is overdue is expected now."""
        return FirstToken(*[max(each - passed_s, 0.0) for each in self])


class SeenLengths(NamedTuple):
    """The lengths of answers so far: of those that stopped, and at least of those cut or still running.

    Requests whose length is known are no observations.
    """

    stopped: tuple[int, ...]
    cut: tuple[int, ...]
    running: tuple[int, ...]

    @classmethod
    def of(cls, recent: Recent, unfinished: Iterable[Measured]) -> "SeenLengths":
        """Return what is known at this instant."""
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
        """Return as many lengths, drawn from these with replacement: what other answers might have been seen.

        So a range is wide while few have stopped (a bootstrap).
        """
        seen = [(kind, length) for kind, lengths in enumerate(self) for length in lengths]
        drawn = chance.choices(seen, k=len(seen)) if seen else []
        return SeenLengths(*[tuple([length for of, length in drawn if of == kind]) for kind in range(3)])


class AnswerLengths:
    """Estimates how long answers become, by those that stopped and those that have gone on until now.

    An answer that still runs, or was cut at its limit, says that it is longer than what has come of it, and
    nothing else (a censored observation). The share of answers longer than n tokens is Kaplan and Meier's
    estimate (J. Am. Stat. Assoc. 53, 1958); beyond the longest that stopped, answers stop at the mean rate of
    all tokens. Before any has stopped, an answer of n tokens is taken to be longer than x with probability
    n/x: one in two goes on for as long as it has.
    """

    def __init__(self, seen: SeenLengths) -> None:
        self.is_guess = not seen.stopped
        """True if no answer has stopped yet, so that it is unknown whether they are short or long."""
        self._is_cut = bool(seen.cut)
        self._scale = sum(seen.running) / len(seen.running) if seen.running else SHORTEST / 2
        num_ended, all_lengths = Counter(seen.stopped), sorted([*seen.stopped, *seen.cut, *seen.running])
        self._rate = len(seen.stopped) / max(sum(all_lengths), 1)
        """The share of answers that stop at a token, of those that reach it."""
        self._lengths = sorted(num_ended)
        """The lengths at which answers stopped, each once, ascending."""
        self._longer: list[float] = []
        """The share of all answers that is longer than each of these lengths."""
        share = 1.0
        for length in self._lengths:
            share *= 1 - num_ended[length] / (len(all_lengths) - bisect_right(all_lengths, length - 1))
            self._longer.append(share)

    def remaining(self, num_tokens: int, most: int, share: float) -> int:
        """Return how many tokens an answer that has `num_tokens` may yet bring, from 1 to `most`.

        That is the number which this share of such answers does not exceed.
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
    """A request as a forecast starts from it: its tokens now, and how many more are expected of it."""

    request_id: str
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_expected_tokens: int
    has_caught_up: bool
    priority: int
    tenant: str | None
    is_drawn: bool = False
    """True if what is expected is a limit, and no prediction says how long the answer will be."""

    @classmethod
    def of(cls, request: Measured) -> "Known":
        """Return a request as it is now; a length that it must have goes before its own prediction."""
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
        """Return the same with a length that this share of answers does not exceed, unless it is known."""
        if not self.is_drawn:
            return self
        num_tokens = lengths.remaining(self.num_tokens, self.num_expected_tokens, share)
        return replace(self, num_expected_tokens=num_tokens)


class Forecast(Protocol):
    """Runs ahead of the server; called in a thread."""

    def first_tokens_s(
        self, replica: int, running: Sequence[Known], waiting: Sequence[Known]
    ) -> Mapping[str, float]:
        """Seconds from now to the first token of requests of one replica that have none yet.

        Both in the order in which the scheduler has them. What is not in the answer is too far ahead.
        """
        ...


def look_ahead(
    forecast: Forecast, replica: int, seen: SeenLengths, running: Sequence[Known], waiting: Sequence[Known]
) -> dict[str, FirstToken]:
    """Return when requests of one replica will have their first tokens, in seconds from now.

    Each request has a length from each ninth of those that answers have, in an order of its own, so that few
    runs show the whole range (a Latin hypercube). Before any answer has stopped all are as short, or as long,
    in a run: what is not known then is their scale. Where all lengths are known one run says it, without a
    range. The draws are the same in each look: a forecast changes by what happens.
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
    """Return a quantile of equally likely values, each in the middle of its own share."""
    place = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


class Judged(NamedTuple):
    """The accuracy of the first forecasts of the latest requests, and the numbers of forecasts judged.

    `median_error` is relative, of the medians: 0.1 is a first token that came 10 % earlier or later.
    `share_held` is of the `num_ranges` forecasts with a range those whose range held what came.
    """

    num: int
    median_error: float
    num_ranges: int
    share_held: float | None


class Accuracy:
    """Measures how far the first forecast of each request was off, once its first token had come.

    Ranges are stretched to what would have held 80 % of the latest first tokens (conformal prediction, Romano
    et al., arXiv:1905.03222): draws know nothing of a load that changes, or of an error that they share.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[Measured, FirstToken, FirstToken]] = {}
        self._misses: deque[float] = deque(maxlen=300)
        """The distances from the median to what came, each over that to the end of the range as drawn."""
        self.errors: deque[float] = deque(maxlen=300)
        """The relative errors of the medians."""
        self.held: deque[bool] = deque(maxlen=300)
        """True for each range that held what came, as it was shown."""

    def stretched(self, drawn: FirstToken) -> FirstToken:
        """Return a forecast with the range that past ones should have had, if some are known."""
        if len(self._misses) < FEWEST_MISSES:
            return drawn
        middle, factor = drawn.expected_s, _quantile(sorted(self._misses), MOST - LEAST)
        ends = [max(middle + factor * (end - middle), 0.0) for end in drawn[1:]]
        return FirstToken(middle, *ends)

    def forecast(self, request: Measured, drawn: FirstToken) -> None:
        """Note a forecast, from the request's arrival: the first of each request counts."""
        self._first.setdefault(request.request_id, (request, drawn, self.stretched(drawn)))

    def settle(self, unfinished: Container[str]) -> None:
        """Compare forecasts whose first token has come, and forget those of requests that ended without."""
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
        """Return what became of the latest forecasts, None before the first."""
        if not self.errors:
            return None
        held = sum(self.held) / len(self.held) if self.held else None
        return Judged(len(self.errors), sorted(self.errors)[len(self.errors) // 2], len(self.held), held)
