"""Requests that came later and went first, because the policy ranked them lower: no capacity was lacking."""

from bisect import bisect_left
from typing import NamedTuple

from sim.explain.history import History
from sim.explain.spans import RequestHistory, Wait
from sim.record.journal_rows import Rank


class Passing(NamedTuple):
    """Another request was admitted, with its rank and that of the one that waited, as last known."""

    request_id: str
    time_s: float
    rank: Rank
    own_rank: Rank


def passings(history: History, request: RequestHistory, wait: Wait) -> list[Passing]:
    """The later requests that the policy let go first in this wait. O(admissions in it)."""
    if request.replica is None or not request.ranks:
        return []
    queue, found = history.queues[request.replica], list[Passing]()
    stop = len(queue.admissions) if wait.turn is None else wait.turn
    for turn in range(bisect_left(queue.admissions, wait.first), stop):
        output = queue.admissions[turn]
        if output >= wait.stop and wait.turn is None:
            break
        other = history.requests[queue.admitted[turn]]
        if other.arrival.time_s <= request.arrival.time_s:
            continue
        rank, own_rank = other.rank_at(output), request.rank_at(output)
        if rank is not None and own_rank is not None and _is_lower(rank, own_rank):
            found.append(Passing(other.request_id, queue.starts_s[output], rank, own_rank))
    return found


def _is_lower(rank: Rank, own_rank: Rank) -> bool:
    try:
        return bool(rank < own_rank)  # type: ignore[operator]  # of one policy, so of one kind
    except TypeError:
        return False
