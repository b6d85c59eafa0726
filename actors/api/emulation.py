"""What the API shows of an engine that is not there, and tells those who keep its time."""

import time
from dataclasses import dataclass

from actors.front.front_end import FrontEnd
from actors.metrics.lag import Lag


@dataclass(frozen=True, slots=True)
class Emulation:
    """An emulated engine as its server knows it."""

    lag: Lag
    front_end: FrontEnd

    def taken(self, began_s: float) -> None:
        """The engine has a request whose headers had come at `began_s`, by `time.perf_counter`."""
        self.front_end.took((time.perf_counter() - began_s) * self.lag.time_scale)
