"""Durations of steps for policies, from a cost model or from measured steps."""

from typing import Final, Protocol

KEPT: Final = 0.99
"""Decay factor of a step's weight per later measurement: the last few hundred steps count."""
Sums = list[float]


class StepTimes(Protocol):
    """Source of step durations."""

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float | None:
        """Return the seconds of a step with these prompt tokens and decodes over this total context.

        Returns None before anything was measured.
        """
        ...


class MeasuredSteps:
    """Least-squares fit of `a + b * prompt tokens + c * decodes`; recent steps weigh most.

    A coefficient that would be negative is set to 0. The context is ignored. O(1) a step.
    """

    __slots__ = ("_fit", "_products", "_seconds")

    def __init__(self) -> None:
        self._products: list[Sums] = [[0.0] * 3 for _ in range(3)]
        self._seconds: Sums = [0.0] * 3
        self._fit: Sums | None = None

    def seen(self, prefill_tokens: int, decodes: int, seconds: float) -> None:
        """Record a step that computed tokens."""
        parts = (1.0, float(prefill_tokens), float(decodes))
        for row, part, products in zip(range(3), parts, self._products, strict=True):
            self._seconds[row] = self._seconds[row] * KEPT + part * seconds
            for column, other in enumerate(parts):
                products[column] = products[column] * KEPT + part * other
        self._fit = None

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float | None:
        """Return the fitted seconds of a step; None before the first step."""
        if not self._products[0][0]:
            return None
        fit = self._fit
        if fit is None:
            fit = self._fit = self._fitted([0, 1, 2])
        return fit[0] + fit[1] * prefill_tokens + fit[2] * decodes

    def _fitted(self, parts: list[int]) -> Sums:
        """Fit only the coefficients in `parts`; the others are 0."""
        fit = [0.0] * 3
        for part, value in zip(parts, self._solved(parts), strict=True):
            fit[part] = value
        least = min(parts, key=fit.__getitem__)
        if fit[least] >= 0 or len(parts) == 1:
            return fit
        return self._fitted([part for part in parts if part != least])

    def _solved(self, parts: list[int]) -> Sums:
        """Solve the normal equations; coefficients that cannot be determined get 0."""
        rows = [[*(self._products[row][column] for column in parts), self._seconds[row]] for row in parts]
        size, solved = len(parts), [0.0] * len(parts)
        is_free = [False] * size
        for pivot in range(size):
            if rows[pivot][pivot] <= 1e-9 * self._products[parts[pivot]][parts[pivot]]:
                is_free[pivot] = True
                continue
            for row in range(size):
                if row != pivot:
                    factor = rows[row][pivot] / rows[pivot][pivot]
                    rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
        for index in range(size):
            if not is_free[index]:
                solved[index] = rows[index][size] / rows[index][index]
        return solved
