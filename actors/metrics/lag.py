"""How far an emulated server is behind the pace that it should have."""

from collections.abc import Sequence
from dataclasses import field

from actors.core.records import dataclass


@dataclass(slots=True)
class Lag:
    """Of each engine how late its last step ended, and what its steps have lost for good.

    Seconds of the server's own clock, which runs `time_scale` times as fast as the wall's.
    """

    num_replicas: int
    time_scale: float = 1.0
    late_s: list[float] = field(init=False)
    lost_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.late_s = [0.0] * self.num_replicas
        self.lost_s = [0.0] * self.num_replicas

    def to_json(self) -> dict[str, float]:
        """The worst of all engines."""
        return {"time_scale": self.time_scale, "late_s": _most(self.late_s), "lost_s": _most(self.lost_s)}


def _most(seconds: Sequence[float]) -> float:
    return round(max(seconds), 6)
