"""A scaler of one's own: `--scaler docs/scalers/grow_early.py:GrowEarly`."""

from dataclasses import dataclass

from sundog import ScaledFleet, Scaler


@dataclass(frozen=True)
class GrowEarly(Scaler):
    """Two replicas more as soon as anything waits, one less when all were idle half of the time."""

    def want(self, fleet: ScaledFleet) -> int:
        if fleet.num_waiting:
            return fleet.num_up + 2
        return fleet.num_replicas - 1 if fleet.busy < 0.5 else fleet.num_replicas
