"""An emulated engine as the API sees it: its lag, its faults, and the times that its front end is told."""

import time
from dataclasses import dataclass
from typing import Protocol

from actors.api.errors import ApiError, invalid, retry_after, shown
from actors.api.transfer import Transfers
from actors.config.injected import INJECT, Fault, Faults, parse_fault
from actors.front.front_end import FrontEnd
from actors.kernel.clock import now_s, sleep_until
from actors.metrics.totals import Lag

NO_FAULTS = (
    f"{INJECT} is for an emulated server that serves HTTP in one process: leave it out, or run"
    " `sundog emulate` with --api-processes 1."
)


class Headers(Protocol):
    """The headers of a request, by name."""

    def get(self, key: str, /) -> str | None: ...


def no_fault(headers: Headers) -> Fault | None:
    """None, for a request that asks for no fault; raises ApiError where none can be injected."""
    if headers.get(INJECT) is not None:
        raise invalid(NO_FAULTS, INJECT)
    return None


@dataclass(frozen=True, slots=True)
class Emulation:
    """An emulated engine as its server knows it."""

    lag: Lag
    front_end: FrontEnd
    faults: Faults | None = None
    transfers: Transfers | None = None

    def taken(self, began_s: float) -> None:
        """The engine has a request whose headers had come at `began_s`, by `time.perf_counter`."""
        self.front_end.took((time.perf_counter() - began_s) * self.lag.time_scale)

    async def befall(self, headers: Headers) -> Fault | None:
        """Let a request meet its fault, if it has one; raises ApiError for one that is refused.

        What happens to its answer is left to the caller, which is given the fault.
        """
        if self.faults is None:
            return no_fault(headers)
        fault = self.faults.next()
        if (asked := headers.get(INJECT)) is not None:
            try:
                fault = parse_fault(asked)
            except ValueError as wrong:
                raise invalid(f"{INJECT} is {shown(asked)}: {wrong}.", INJECT) from None
        if fault is None:
            return None
        match fault.kind:
            case "429":
                said, headers_said = "This refusal was injected: try again later.", retry_after(1.0)
                raise ApiError(429, said, None, "rate_limit_exceeded", headers_said)
            case "503":
                raise ApiError(503, "This failure was injected: try again later.", headers=retry_after(1.0))
            case "slow":
                await sleep_until(now_s() + fault.amount)
            case "dead-engine":
                self.faults.kill()
        return fault
