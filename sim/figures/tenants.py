"""Service of each tenant of a run, and its fairness.

The total service of a tenant equals its demand once every request has finished. So fairness considers only
the time in which at least two tenants wait, when the engine has a choice, and compares each one's service
then with an equal share (the backlogged clients of Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024, section 3). Slowdown is how many times longer a request took than without its wait.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.records import dataclass
from sundog.sim.record.rows import Floats, Rows, latencies

SHORTEST_S = 1e-9
"""Seconds that instantaneous work is assumed to last."""


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """Requests of a tenant; seconds over finished ones, None without any."""

    num_requests: int
    num_finished: int
    num_refused: int
    num_aborted: int
    num_failed: int
    prompt_tokens: int
    output_tokens: int
    ttft_mean_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    e2e_mean_s: float | None
    queueing_mean_s: float | None
    prefill_mean_s: float | None
    decode_mean_s: float | None
    slowdown: float | None
    share_while_waiting: float | None
    """Served tokens over an equal share, while it and another tenant wait; 1 is fair."""
    slo_attainment: float | None


@dataclass(frozen=True, slots=True)
class Tenants:
    """All tenants by name, and Jain's index of fairness of their shares and of their mean slowdowns."""

    figures: dict[str, TenantFigures]
    fairness: float | None
    slowdown_fairness: float | None


NO_TENANTS = Tenants({}, None, None)


def tenants_of(rows: Rows, met: NDArray[np.bool_] | None, front_end_s: float) -> Tenants:
    """Return the tenants of these requests. O(tenants x requests)."""
    names = sorted({name for name in rows.tenant if name is not None})
    if not names:
        return NO_TENANTS
    codes = {name: code for code, name in enumerate(names)}
    owner = np.array([-1 if name is None else codes[name] for name in rows.tenant])
    shares = _shares(rows, [owner == code for code in range(len(names))])
    times = latencies(rows, front_end_s)
    refused, aborted, failed = (_ended_by(rows, reason) for reason in ("refused", "abort", "error"))
    figures = {}
    for code, name in enumerate(names):
        own = owner == code
        done = own & rows.is_done
        figures[name] = TenantFigures(
            int(own.sum()),
            int(done.sum()),
            num_refused=int((own & refused).sum()),
            num_aborted=int((own & aborted).sum()),
            num_failed=int((own & failed).sum()),
            prompt_tokens=int(rows.num_prompt_tokens[done].sum()),
            output_tokens=int(rows.num_output_tokens[done].sum()),
            ttft_mean_s=_mean(times.ttft_s[done]),
            ttft_p99_s=_p99(times.ttft_s[done]),
            tpot_mean_s=_mean(times.tpot_s[done]),
            e2e_mean_s=_mean(times.e2e_s[done]),
            queueing_mean_s=_mean(times.queueing_s[done]),
            prefill_mean_s=_mean(times.prefill_s[done]),
            decode_mean_s=_mean(times.decode_s[done]),
            slowdown=_mean(times.slowdown[done]),
            share_while_waiting=shares[code],
            slo_attainment=None if met is None else float(met[own].mean()),
        )
    slowdowns = [each.slowdown for each in figures.values() if each.slowdown is not None]
    return Tenants(figures, jain([share for share in shares if share is not None]), jain(slowdowns))


def jain(values: Sequence[float]) -> float | None:
    """Return (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has all; None for fewer than two.

    Jain, Chiu, Hawe, "A quantitative measure of fairness" (DEC TR-301, 1984).
    """
    squares = sum(value**2 for value in values)
    return sum(values) ** 2 / (len(values) * squares) if len(values) > 1 and squares else None


def _shares(rows: Rows, owners: Sequence[NDArray[np.bool_]]) -> list[float | None]:
    """Return each tenant's service while it and another tenant waited, relative to an equal share."""
    last_s = np.nanmax(np.concatenate((rows.arrival_s, rows.finish_s)))
    ended_s = np.where(_ended_by(rows, "refused"), rows.arrival_s, rows.finish_s)
    until_s = np.where(np.isnan(rows.first_scheduled_s), ended_s, rows.first_scheduled_s)
    until_s = np.where(np.isnan(until_s), last_s, until_s)
    instants = np.unique(np.concatenate((rows.arrival_s, until_s)))
    if len(instants) < 2:
        return [None for _ in owners]
    waits = [_waits(rows.arrival_s[own], until_s[own], instants) for own in owners]
    num_waiting = np.sum(waits, axis=0)
    served = [
        np.where(w, np.diff(_served(rows, own, instants)), 0.0) for w, own in zip(waits, owners, strict=True)
    ]
    equal = np.sum(served, axis=0) / np.maximum(num_waiting, 1)
    is_contended = num_waiting > 1
    found: list[float | None] = []
    for wait, tokens in zip(waits, served, strict=True):
        fair = float(equal[wait & is_contended].sum())
        found.append(float(tokens[is_contended].sum()) / fair if fair else None)
    return found


def _ended_by(rows: Rows, reason: str) -> NDArray[np.bool_]:
    return np.array([each == reason for each in rows.reason], dtype=bool)


def _waits(arrival_s: Floats, until_s: Floats, instants: Floats) -> NDArray[np.bool_]:
    change = np.zeros(len(instants), dtype=np.int64)
    np.add.at(change, np.searchsorted(instants, arrival_s), 1)
    np.add.at(change, np.searchsorted(instants, until_s), -1)
    waits: NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
    return waits


def _served(rows: Rows, own: NDArray[np.bool_], instants: Floats) -> Floats:
    begins, ends, tokens = [], [], []
    for begin, end, count in (
        (rows.first_scheduled_s, rows.first_token_s, rows.num_prompt_tokens),
        (rows.first_token_s, rows.finish_s, rows.num_output_tokens),
    ):
        known = own & ~np.isnan(begin) & ~np.isnan(end)
        begins.append(begin[known])
        ends.append(np.maximum(end[known], begin[known] + SHORTEST_S))
        tokens.append(count[known].astype(np.float64))
    begin_s, end_s, rate = np.concatenate(begins), np.concatenate(ends), np.concatenate(tokens)
    if not len(begin_s):
        return np.zeros(len(instants))
    rate = rate / (end_s - begin_s)
    times, rates = np.concatenate((begin_s, end_s)), np.concatenate((rate, -rate))
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(rates[order])
    sums = np.concatenate((np.zeros(1), np.cumsum(np.diff(times) * running[:-1])))
    served: Floats = np.interp(instants, times, sums)
    return served


def _mean(values: "np.ndarray[Any, np.dtype[np.float64]]") -> float | None:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def _p99(values: "np.ndarray[Any, np.dtype[np.float64]]") -> float | None:
    values = values[~np.isnan(values)]
    return float(np.percentile(values, 99)) if len(values) else None
