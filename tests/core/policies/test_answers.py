"""Answers of a user's policy are converted to data of exact types, or raise an error that names them."""

import math
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest

from sundog.actors.core.policies.answers import WrongAnswer, exact, exact_quota, exact_score


class Sly(int):
    """A number with comparisons of its own."""

    def __lt__(self, other: object) -> bool:
        raise ValueError("not now")

    __gt__ = __eq__ = __hash__ = __index__ = __int__ = __lt__  # type: ignore[assignment]


class Level(IntEnum):
    """A number with a name."""

    HIGH = 2


class Place(NamedTuple):
    """A tuple with names."""

    level: Any
    due_s: float


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (3, 3),
        (True, True),
        (2.5, 2.5),
        (math.inf, math.inf),
        ("text", "text"),
        ((1, ("a", 2.0)), (1, ("a", 2.0))),
        (Sly(3), 3),
        (Level.HIGH, 2),
        (Place(Sly(1), 2.0), (1, 2.0)),
        (np.float32(1.5), 1.5),
        (np.float64(1.5), 1.5),
        (np.int64(7), 7),
        (np.bool_(True), 1.0),
        (Decimal("0.5"), 0.5),
        (np.str_("a"), "a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_is_copied_into_exact_types(answer: object, data: object) -> None:
    """What the scheduler compares runs no code but Python's own."""
    found = exact(answer)
    assert found == data and type(found) in (int, float, str, bool, tuple)
    if isinstance(found, tuple):
        assert all(type(each) in (int, float, str, bool, tuple) for each in found)


@pytest.mark.parametrize(
    "answer", [None, math.nan, (1, math.nan), np.float32("nan"), [1], {}, (), 1j, object(), np.array([1, 2])]
)
def test_what_has_no_order_is_refused(answer: object) -> None:
    """Whatever it says of itself."""
    with pytest.raises((WrongAnswer, TypeError)):
        exact(answer)


def test_quotas_and_scores_may_be_numbers_of_numpy() -> None:
    """As what a policy learned with it."""
    assert exact_quota(np.int32(4), 1) == 4 and type(exact_quota(np.int32(4), 1)) is int
    assert exact_quota(0, 0) == 0
    assert type(exact_score(np.float32(0.5))) is float
    for wrong in (True, 0, 1.5, "4"):
        with pytest.raises(WrongAnswer, match="it must be a whole number from 1 on, or None"):
            exact_quota(wrong, 1)
