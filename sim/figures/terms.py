"""What a run is held against: limits of time, and what its GPUs take."""

import numpy as np
from numpy.typing import NDArray

from actors.core.records import dataclass
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
