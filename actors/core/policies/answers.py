"""What a user's policy may answer, and the words for what it must not."""

import math
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from actors.core.policies.read_only import ReadOnlyRequest
from actors.core.queue.policy import Refusal
from actors.core.request import Request

Kind = str | tuple["Kind", ...]
"""As what values are compared: a number, a text, or a tuple of these."""
MOST_OF_A_REASON = 1000
"""Characters."""
ANY = (BaseException,)
"""Whatever a user's code raises: an `exit()` or a KeyboardInterrupt in it ends the policy, not the server,
and says where it was. A policy is called between two awaits, so no cancellation passes through it."""


GUARDS = tuple(
    str(Path(__file__).parents[1] / name)
    for name in ("policies/guard.py", "policies/patience.py", "routers/guard.py")
)
"""The code that calls a user's."""


class Wrong(Exception):
    """A method returned what it must not, or took too long."""


def kind_of(value: object) -> Kind:
    """The kind of a value; raises Wrong for values that cannot be ordered."""
    if isinstance(value, tuple) and value:
        return tuple(map(kind_of, value))
    if isinstance(value, str):
        return "text"
    if isinstance(value, int):
        return "a number"
    if isinstance(value, float) and not math.isnan(value):
        return "a number"
    hint = " (float(...) makes it one)" if hasattr(value, "__float__") and value == value else ""
    raise Wrong(f"returned {shown(value)}: it must be a number{hint}, text or a tuple of them")


def as_key(key: object) -> object:
    """The key, if it is one."""
    try:
        hash(key)
    except TypeError:
        raise Wrong(f"returned {shown(key)}: it must be a number, text or a tuple of them, or None") from None
    return key


def as_quota(quota: object) -> int | None:
    """The quota, if it is one."""
    if quota is None or (isinstance(quota, int) and not isinstance(quota, bool) and quota >= 1):
        return quota
    raise Wrong(f"returned {shown(quota)}: it must be a whole number from 1 on, or None")


def as_refusal(refusal: object) -> Refusal | None:
    """The refusal, if it is one that a client can be told."""
    if refusal is None:
        return None
    if not isinstance(refusal, Refusal):
        raise Wrong(f"returned {shown(refusal)}: it must be Refusal(reason, retry_after_s) or None")
    reason, retry_after_s = refusal.reason, refusal.retry_after_s
    if not isinstance(reason, str) or not reason.isprintable() or not 0 < len(reason) <= MOST_OF_A_REASON:
        raise Wrong(f"refused for the reason {shown(reason)}: it must be one line of text for its client")
    is_number = isinstance(retry_after_s, int | float) and 0 <= retry_after_s < math.inf
    if retry_after_s is not None and not is_number:
        seconds = shown(retry_after_s)
        raise Wrong(f"refused with retry_after_s {seconds}: it must be seconds from 0 on, or None")
    return refusal


def as_victim(victim: object, running: dict[str, Request]) -> Request:
    """The running request that it shows."""
    found = running.get(victim.request_id) if isinstance(victim, ReadOnlyRequest) else None
    if found is None or not cast(ReadOnlyRequest, victim).is_of(found):
        raise Wrong(f"returned {shown(victim)}, which is no request that runs")
    return found


def names_of(request_ids: list[str], most: int = 3) -> str:
    more = f" and {len(request_ids) - most} more" if len(request_ids) > most else ""
    return ", ".join(request_ids[:most]) + more


def kind_in_words(kind: Kind) -> str:
    return kind if isinstance(kind, str) else f"({', '.join(map(kind_in_words, kind))})"


def shown(value: object) -> str:
    return one_line([repr(value)])


def raised(error: BaseException) -> str:
    """The error, and the line of the policy that it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in GUARDS]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    where = f" (line {own[-1].lineno})" if own else ""
    return one_line(traceback.format_exception_only(error)) + where


def one_line(lines: Iterable[str]) -> str:
    text = " ".join(" ".join(lines).split())
    return text if len(text) <= 200 else text[:197] + "..."
