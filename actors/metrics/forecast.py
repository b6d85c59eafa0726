"""What is forecast of waiting requests, and how far the forecasts were off.

How a forecast is made is the composition's business: `sim/ahead.py` runs the scheduler itself ahead.
"""

from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from actors.core.records import dataclass
from actors.metrics.measured import Measured
from actors.metrics.recent import Recent


@dataclass(frozen=True, slots=True)
class Known:
    """What a forecast starts from: a request's tokens now, and how many more are expected of it."""

    request_id: str
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_expected_tokens: int
    has_caught_up: bool
    priority: int
    tenant: str | None

    @classmethod
    def of(cls, request: Measured, recent: Recent) -> "Known":
        """A request as it is now; a prediction that came with it goes before the mean of those that ended."""
        most = max(request.max_tokens - request.num_tokens, 1)
        predicted = request.predicted_tokens
        if predicted is None or predicted <= request.num_tokens:
            expected = recent.remaining_tokens(request.num_tokens, most)
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


class Accuracy:
    """How far the first forecast of each request was off, once its first token had come."""

    __slots__ = ("_first", "errors")

    def __init__(self) -> None:
        self._first: dict[str, tuple[Measured, float]] = {}
        self.errors: deque[float] = deque(maxlen=300)
        """Relative: 0.1 is a first token that came 10 % earlier or later than forecast."""

    def forecast(self, request: Measured, ttft_s: float) -> None:
        """The first forecast of a request counts."""
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
        """None before the first."""
        return sorted(self.errors)[len(self.errors) // 2] if self.errors else None
