"""Where the time of a load went: the engine's own steps, what the server added to them, and the way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sim.cost.doubt import kernels_of
from sim.cost.work import CostModel, StepWork
from sundog.sweeps.cores import Shares


@dataclass(frozen=True, slots=True)
class Ledger:
    """Seconds of all steps of a load, and of a request on average.

    `alone_s` and `predicted_s` are what the profile says of the very steps that were served: of the engine
    alone, and with the host's share.
    """

    num_steps: int
    served_s: float
    alone_s: float
    predicted_s: float
    e2e_s: float
    """As clients saw it."""
    in_server_s: float
    """From when the server took the request in to when its last token was computed."""
    cores: Shares | None

    @classmethod
    def of(
        cls,
        steps: Sequence[tuple[StepWork, float]],
        cost: CostModel,
        e2e_s: float,
        in_server_s: float,
        cores: Shares | None,
    ) -> "Ledger":
        """The sums over `steps`, with the seconds that they took from end to end."""
        alone = kernels_of(cost)
        return cls(
            len(steps),
            sum(seconds for _, seconds in steps),
            sum(alone.step_s(work) for work, _ in steps),
            sum(cost.step_s(work) for work, _ in steps),
            e2e_s,
            in_server_s,
            cores,
        )

    @property
    def engine(self) -> float:
        """The share of a request's time that the engine's own steps take."""
        return self._in_server * min(1.0, self.alone_s / self.served_s) if self.served_s else 0.0

    @property
    def host(self) -> float:
        """The share that the server adds to steps: scheduling, and cores that its other processes take."""
        return self._in_server - self.engine

    @property
    def way(self) -> float:
        """The share of HTTP, tokenising, detokenising, and the client itself."""
        return 1 - self._in_server

    @property
    def _in_server(self) -> float:
        return min(1.0, self.in_server_s / self.e2e_s) if self.e2e_s else 0.0

    def lines(self) -> Iterator[str]:
        """For people."""
        yield (
            f"of a request's {self.e2e_s * 1e3:,.1f} ms, {self.engine:.0%} are the engine's own steps,"
            f" {self.host:.0%} what the server adds to them, {self.way:.0%} the way (HTTP, text, the client)"
        )
        if self.served_s:
            error = self.predicted_s / self.served_s - 1
            yield (
                f"{self.num_steps:,} steps took {self.served_s:.2f} s, of which the profile predicts"
                f" {self.predicted_s:.2f} ({error:+.1%})"
            )
        if self.cores is not None:
            each = self.cores
            yield (
                f"the cores: engine {each.engine:.0%}, server {each.server:.0%}, clients {each.client:.0%},"
                f" others {each.others:.0%}"
            )
