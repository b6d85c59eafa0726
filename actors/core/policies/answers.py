"""Checks of what a user's policy or router returns, copied into plain data.

Law: the returned values have Python's own exact types, so that comparing them runs no user code.
"""

import math
import operator
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final, cast

from sundog.actors.core.queue.policy import Rank, RankValue, Refusal

MOST_OF_A_REASON: Final = 1000
"""Largest number of characters of a reason."""
CALLERS: Final = ("policies/guard.py", "routers/guard.py", "predictors.py", "scalers.py")
OURS: Final = tuple(str(Path(__file__).parents[1] / file) for file in CALLERS)
"""Files of Sundog that call users' code; error messages leave out their lines."""
NUMBERS: Final = frozenset((int, float))
WHAT: Final = "a number, text or a tuple of them"
Data = int | float | str | tuple["Data", ...] | None
NUMBER: Final = "a number"
Kind = str | tuple["Kind", ...]
"""Kind of a value for comparisons: number, text, or tuple of these."""


class WrongAnswer(Exception):
    """Raised if a user's method returned a wrong value or took too long."""


def exact(value: object, *, what: str = WHAT, takes_none: bool = False) -> Data:
    """Return the value as Python's own number, text or tuple; numpy's numbers are converted.

    Raises WrongAnswer for anything else, and for NaN, which has no order.
    """
    kind = type(value)
    if kind is int or kind is str or kind is bool or (value is None and takes_none):
        return value  # type: ignore[return-value]  # mypy does not narrow by `kind`
    if isinstance(value, tuple) and tuple.__len__(value):
        return tuple([exact(each, what=what, takes_none=takes_none) for each in tuple.__iter__(value)])
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    found = value if kind is float else _converted(value)
    if isinstance(found, int) or (isinstance(found, float) and not math.isnan(found)):
        return found
    raise WrongAnswer(f"returned {printed(value)}: it must be {what}")


def _converted(value: object) -> int | float | None:
    """Convert a value to a number; return None if it is not one."""
    if isinstance(value, float):
        return float.__float__(value)
    if hasattr(value, "__index__"):
        return int(operator.index(value))
    return float(value) if hasattr(value, "__float__") else None


def exact_rank(answer: Rank) -> Rank:
    """Return a rank as plain data, with the limits of its validity."""
    value, at_s, at_step = answer.value, answer.until_s, answer.until_step
    has_limits = type(at_s) is float and at_s == at_s and type(at_step) is int
    if has_limits and type(value) in NUMBERS and value == value and answer.per_s == 0.0:
        return answer  # which cannot change
    until_s, until_step, per_s, found = exact(at_s), exact(at_step), exact(answer.per_s), exact(value)
    if not isinstance(until_s, int | float) or not isinstance(until_step, int):
        raise WrongAnswer(f"returned {printed(answer)}: until_s are seconds, until_step is a whole number")
    if per_s != 0:
        if not (isinstance(per_s, int | float) and isinstance(found, int | float)):
            raise WrongAnswer(f"returned {printed(answer)}: per_s is a number, and so is a value that moves")
        if not math.isfinite(per_s) or not math.isfinite(found := float(found)):
            raise WrongAnswer(f"returned {printed(answer)}: a rank that moves is finite, and so is per_s")
    has_memory = bool(answer.until_memory_changes)
    return Rank(
        cast(RankValue, found),
        until_s,
        until_step=until_step,
        until_memory_changes=has_memory,
        per_s=float(per_s),
    )


def exact_key(key: object) -> Data:
    """Return a key of ranks as plain data, or None."""
    return None if key is None else exact(key, what=f"{WHAT}, or None", takes_none=True)


def exact_quota(quota: object, least: int) -> int | None:
    """Return the quota as a whole number of at least `least`, or None; 0 is a pause."""
    if quota is None or (type(quota) is int and quota >= least):
        return quota
    found = exact(quota) if hasattr(quota, "__index__") and not isinstance(quota, bool) else None
    if not isinstance(found, int) or found < least:
        may_pause = " (0 needs `pauses = True`)" if least else ""
        raise WrongAnswer(
            f"returned {printed(quota)}: it must be a whole number from {least} on, or None{may_pause}"
        )
    return found


def exact_refusal(refusal: object) -> Refusal | None:
    """Return the refusal, checked so that it can be sent to a client."""
    if refusal is None:
        return None
    if not isinstance(refusal, Refusal):
        raise WrongAnswer(f"returned {printed(refusal)}: it must be Refusal(reason, retry_after_s) or None")
    reason, retry_after_s = refusal.reason, refusal.retry_after_s
    if not isinstance(reason, str) or not reason.isprintable() or not 0 < len(reason) <= MOST_OF_A_REASON:
        raise WrongAnswer(
            f"refused for the reason {printed(reason)}: it must be one line of text for its client"
        )
    found = None if retry_after_s is None or isinstance(retry_after_s, str) else exact(retry_after_s)
    if retry_after_s is not None and not (isinstance(found, int | float) and 0 <= found < math.inf):
        seconds = printed(retry_after_s)
        raise WrongAnswer(f"refused with retry_after_s {seconds}: it must be seconds from 0 on, or None")
    return Refusal(str.__str__(reason), found if isinstance(found, int | float) else None)


def exact_score(score: object) -> float:
    """Return a router's score as a number."""
    found = None if isinstance(score, bool | str | tuple) else exact(score, what="a number")
    if not isinstance(found, int | float):
        raise WrongAnswer(f"returned {printed(score)}: it must be a number")
    return found


def kind_of(value: Data) -> Kind:
    """Return the kind of a value; values of one kind can be compared."""
    if isinstance(value, tuple):
        return tuple([kind_of(each) for each in value])
    return "text" if isinstance(value, str) else NUMBER


def kind_in_words(kind: Kind) -> str:
    """Return the kind in words, for an error message."""
    return kind if isinstance(kind, str) else f"({', '.join(map(kind_in_words, kind))})"


def names_of(request_ids: list[str], most: int = 3) -> str:
    """Return the first request ids and the number of the others."""
    more = f" and {len(request_ids) - most} more" if len(request_ids) > most else ""
    return ", ".join(request_ids[:most]) + more


def printed(value: object) -> str:
    """Return a value as one line of text, even if its `__repr__` fails."""
    try:
        return one_line([repr(value)])
    except Exception:  # noqa: BLE001  # a user's __repr__ may raise anything
        return f"an object of {type(value).__name__}"


def raised(error: BaseException) -> str:
    """Return the error with the line of the policy's file that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in OURS]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    where = f" (line {own[-1].lineno})" if own else ""
    return one_line(traceback.format_exception_only(error)) + where


def one_line(lines: Iterable[str]) -> str:
    """Join the lines into one of at most 200 characters."""
    text = " ".join(" ".join(lines).split())
    return text if len(text) <= 200 else text[:197] + "..."
