"""Forecasts of waiting requests, and how far they were off.

How a forecast is made is the composition's business: `sim/ahead.py` runs the scheduler itself ahead.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from actors.metrics.measured import Measured, Recent

SHARES = (None, 0.25, 0.75)
"""The lengths that a forecast is made with: what is expected, and for its range the quartiles."""
SHORTEST = 16
"""The tokens that are expected of an answer before anything is known of others."""


class FirstToken(NamedTuple):
    """When a first token is expected, and the range if all answers are as short or long as a quarter is."""

    expected_s: float
    least_s: float
    most_s: float

    def less(self, passed_s: float) -> "FirstToken":
        """Return the same seen from another instant; what is overdue is expected now."""
        return FirstToken(*[max(each - passed_s, 0.0) for each in self])


class AnswerLengths:
    """Estimates how long answers become, by those that stopped and those that have gone on until now.

    An answer that still runs, or was cut at its limit, says that it is longer than what has come of it, and
    nothing else (a censored observation). The share of answers longer than n tokens is Kaplan and Meier's
    estimate (J. Am. Stat. Assoc. 53, 1958); beyond the longest that stopped, answers stop at the mean rate of
    all tokens. Requests whose length is known are no observations.
    """

    def __init__(self, recent: Recent, unfinished: Iterable[Measured]) -> None:
        ended = [(request, reason) for request, reason, _ in recent.ended if not request.has_known_length]
        running = [
            request.num_tokens
            for request in unfinished
            if request.num_tokens and not request.has_known_length
        ]
        stopped = sorted(request.num_tokens for request, reason in ended if reason == "stop")
        cut = [request.num_tokens for request, reason in ended if reason == "length"]
        self._is_cut = bool(cut)
        self._typical = 2 * sum(running) / len(running) if running else 0.0
        self._rate = len(stopped) / max(sum(stopped) + sum(cut) + sum(running), 1)
        """How many answers stop at a token, of those that reach it."""
        self._lengths: list[int] = []
        """The lengths at which answers stopped, each once, ascending."""
        self._longer: list[float] = []
        """Of all answers the share that is longer than each of them."""
        lengths, share = sorted([*stopped, *cut, *running]), 1.0
        for length in dict.fromkeys(stopped):
            num_left = len(lengths) - bisect_right(lengths, length - 1)
            share *= 1 - stopped.count(length) / num_left
            self._lengths.append(length)
            self._longer.append(share)

    def remaining(self, num_tokens: int, most: int, share: float | None = None) -> int:
        """Return how many tokens an answer that has `num_tokens` may yet bring, from 1 to `most`.

        That is the mean, or with `share` the number that this share of answers does not exceed.
        """

        def bounded(tokens: float) -> int:
            return max(1, min(round(tokens), most))

        if not self._lengths:
            return most if self._is_cut else bounded(max(self._typical - num_tokens, num_tokens, SHORTEST))
        steps = self._steps(num_tokens)
        last, left = steps[-1]
        if share is not None:
            reached = next((more for more, longer in steps if longer <= 1 - share), None)
            return bounded(last + math.log(left / (1 - share)) / self._rate if reached is None else reached)
        total = sum(
            longer * (min(until, most) - min(more, most)) for (more, longer), (until, _) in pairwise(steps)
        )
        tail = -math.expm1(-self._rate * max(most - last, 0)) / self._rate
        return bounded(total + left * tail)

    def _steps(self, num_tokens: int) -> list[tuple[int, float]]:
        """Return numbers of further tokens, ascending, each with the share of answers that bring more."""
        first = bisect_right(self._lengths, num_tokens)
        reached = self._longer[first - 1] if first else 1.0
        rest = zip(self._lengths[first:], self._longer[first:], strict=True)
        return [(0, 1.0), *((length - num_tokens, longer / reached) for length, longer in rest)]


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

    @classmethod
    def of(cls, request: Measured, lengths: AnswerLengths, share: float | None = None) -> "Known":
        """Return a request as it is now; a length that it must have goes before its own prediction."""
        most = max(request.max_tokens - request.num_tokens, 1)
        predicted = request.predicted_tokens
        if request.has_known_length:
            expected = most
        elif predicted is None or predicted <= request.num_tokens:
            expected = lengths.remaining(request.num_tokens, most, share)
        else:
            expected = min(predicted - request.num_tokens, most)
        return cls(
            request.request_id,
            request.num_prompt_tokens,
            request.num_tokens,
            request.num_computed_tokens,
            expected,
            request.has_caught_up,
            request.priority,
            request.tenant,
        )


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
    forecast: Forecast, replica: int, looks: Sequence[tuple[Sequence[Known], Sequence[Known]]]
) -> dict[str, FirstToken]:
    """Return when requests of one replica will have their first tokens, in seconds from now.

    `looks` are its running and waiting requests with the lengths of `SHARES`; equal ones are run ahead once.
    """
    expected, *others = looks
    found = forecast.first_tokens_s(replica, *expected)
    ends = [found if look == expected else forecast.first_tokens_s(replica, *look) for look in others]
    return {
        name: FirstToken(at_s, *_around(at_s, [end[name] for end in ends if name in end]))
        for name, at_s in found.items()
    }


def _around(at_s: float, ends: Sequence[float]) -> tuple[float, float]:
    return min([at_s, *ends]), max([at_s, *ends])


class Accuracy:
    """Measures how far the first forecast of each request was off, once its first token had come."""

    __slots__ = ("_first", "errors")

    def __init__(self) -> None:
        self._first: dict[str, tuple[Measured, float]] = {}
        self.errors: deque[float] = deque(maxlen=300)
        """Relative: 0.1 is a first token that came 10 % earlier or later than forecast."""

    def forecast(self, request: Measured, ttft_s: float) -> None:
        """Note a forecast: the first of each request counts."""
        self._first.setdefault(request.request_id, (request, ttft_s))

    def settle(self, unfinished: Container[str]) -> None:
        """Compare those whose first token has come, and forget those that ended without one."""
        for name, (request, forecast_s) in list(self._first.items()):
            if request.ttft_s is not None:
                self.errors.append(abs(forecast_s / request.ttft_s - 1))
            if request.ttft_s is not None or name not in unfinished:
                del self._first[name]

    @property
    def median_error(self) -> float | None:
        """The median of the errors, None before the first."""
        return sorted(self.errors)[len(self.errors) // 2] if self.errors else None
