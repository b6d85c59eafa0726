"""Injected failures of an emulated server, to test gateways.

A fault is `429`, `503`, `slow=SECONDS` (before the first token), `cut=TOKENS` (the connection ends after that
many) or `dead-engine`: by header for one request, by `--inject FAULT@RATE` for a share of all.
"""

from dataclasses import dataclass
from typing import Protocol

INJECT = "X-Sundog-Inject"
AMOUNTS = {"slow": 86_400.0, "cut": 2**27}
"""Kinds with an amount, and its maximum."""
KINDS = ("429", "503", "slow", "cut", "dead-engine")
KNOWN = "429, 503, slow=SECONDS, cut=TOKENS, dead-engine"


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of a request; `amount` is in seconds of the run's clock or in tokens."""

    kind: str
    amount: float = 0.0


class Faults(Protocol):
    """Source of faults for a server's requests."""

    def next(self) -> Fault | None:
        """Return the fault of the next request that does not name its own."""
        ...

    def kill(self) -> None:
        """Make an engine crash in its next step."""
        ...


def parse_fault(text: str) -> Fault:
    """Parse a fault, as headers and options spell it; raises ValueError with the known faults."""
    kind, _, amount = text.strip().partition("=")
    if kind not in KINDS or bool(amount) != (kind in AMOUNTS):
        raise ValueError(f"give {KNOWN}")
    if kind not in AMOUNTS:
        return Fault(kind)
    try:
        number = float(amount) if kind == "slow" else int(amount)
    except ValueError:
        number = -1
    if not 0 <= number <= AMOUNTS[kind]:
        raise ValueError(f"give {kind} a number from 0 to {AMOUNTS[kind]:,.0f}")
    return Fault(kind, number)


def parse_injection(text: str) -> tuple[Fault, float]:
    """Parse `FAULT@RATE`: a fault, and the share of requests that get it; raises ValueError."""
    spelled, at, rate = text.rpartition("@")
    if not at:
        raise ValueError(f"give FAULT@RATE, as in 503@0.01; a fault is one of {KNOWN}")
    try:
        part = float(rate)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise ValueError(f"the rate is {rate}: give a number from 0 to 1")
    return parse_fault(spelled), part
