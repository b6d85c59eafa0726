"""Sums over all requests of a run, and the terms that the run is held against."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.record.rows import RequestTimes, Rows


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run is held against: limits per request in seconds, and what its GPUs take.

    `num_gpus` and `max_num_running` are all replicas' together; `price_per_gpu_h` is in any
    currency.
    """

    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    num_gpus: int = 1
    max_num_running: int | None = None
    block_size: int = 16
    gpu_power_w: float | None = None
    price_per_gpu_h: float | None = None

    def met(self, rows: Rows, times: RequestTimes) -> NDArray[np.bool_] | None:
        """Which requests met every limit, their own before these; None if there is none at all.

        One token has no TPOT to miss.
        """
        limits = (
            (times.ttft_s, rows.slo_ttft_s, self.slo_ttft_s),
            (times.tpot_s, rows.slo_tpot_s, self.slo_tpot_s),
            (times.e2e_s, rows.slo_e2e_s, self.slo_e2e_s),
        )
        is_any, met = False, rows.is_done.copy()
        for values, own_s, common_s in limits:
            limit_s = own_s if common_s is None else np.where(np.isnan(own_s), common_s, own_s)
            is_any = is_any or not bool(np.isnan(limit_s).all())
            met &= ~(values > limit_s)
        return met if is_any else None


NO_TERMS = Terms()


@dataclass(slots=True)
class Totals:
    """Sums over all requests."""

    num_requests: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_cut: int = 0
    num_met: int | None = None
    first_arrival_s: float = math.inf
    last_finish_s: float = -math.inf
    prompt_tokens: int = 0
    output_tokens: int = 0
    admitted_tokens: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0

    def add(self, rows: Rows, met: NDArray[np.bool_] | None) -> None:
        """Some more requests, and which of them met every limit, if there are limits."""
        if not len(rows.arrival_s):
            return
        done = rows.is_done
        self.num_requests += len(done)
        self.num_finished += int(done.sum())
        self.num_aborted += rows.reason.count("abort")
        self.num_cut += rows.reason.count("length")
        if met is not None:
            self.num_met = (self.num_met or 0) + int(met.sum())
        self.first_arrival_s = min(self.first_arrival_s, float(rows.arrival_s.min()))
        if done.any():
            self.last_finish_s = max(self.last_finish_s, float(rows.finish_s[done].max()))
        self.prompt_tokens += int(rows.num_prompt_tokens[done].sum())
        self.output_tokens += int(rows.num_output_tokens[done].sum())
        self.admitted_tokens += int(rows.num_prompt_tokens[rows.replica >= 0].sum())
        self.hit_tokens += int(rows.prefix_hit_tokens.sum())
        self.num_preemptions += int(rows.num_preemptions.sum())
        self.recomputed_tokens += int(rows.recomputed_tokens.sum())
