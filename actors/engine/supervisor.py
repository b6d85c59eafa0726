"""EngineSupervisor: starts a replica's engine core, and restarts it after a crash.

Laws: nothing of a crashed core is left when the Router is told of the crash, so no message from it can
follow. A new core has a new backend and an empty state. A core whose first start fails ends the run, whatever
the table of fates says.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import field

import trio

from sundog.actors.core.records import dataclass
from sundog.actors.engine.backend import Engine
from sundog.actors.engine.crash import block, root_cause, summary
from sundog.actors.fates import SIMULATED, Fate, Fates
from sundog.actors.kernel.actor import Ref
from sundog.actors.kernel.clock import now_s, sleep_until
from sundog.actors.messages import EngineDown, EngineRefs, EngineUp

log = logging.getLogger("sundog.engine")

OnUp = Callable[[EngineRefs], None]
RunCore = Callable[[Engine, OnUp], Awaitable[None]]
"""Function that runs a core on its engine to its end, and reports when it is ready."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays before an engine core is restarted.

    The first delay is `first_s`, each further one twice as long, at most `longest_s`. A core that was ready
    for `stable_s`, or has ended a request, starts again at the first. After `most_crashes` there is no
    further restart: another try would not help, and an operator who watches /health can act.
    """

    first_s: float = 0.1
    longest_s: float = 10.0
    stable_s: float = 60.0
    most_crashes: int = 10

    def wait_s(self, num_crashes: int) -> float | None:
        """Return the seconds to wait after the `num_crashes`-th crash in a row; None: no restart."""
        if num_crashes >= self.most_crashes:
            return None
        return min(self.first_s * 2.0 ** (num_crashes - 1), self.longest_s)


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a graph treats failures: a column of the table of fates, and the means for a restart.

    `new_backend` makes the backend of a restarted engine.
    """

    fates: Fates = SIMULATED
    new_backend: Callable[[int], Engine] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    log_level: int = logging.ERROR
    """Level at which crashes are logged."""

    def __post_init__(self) -> None:
        if self.fates.engine is Fate.RESTARTED and self.new_backend is None:
            raise ValueError("an engine is restarted on a new backend: say how to make one")


class EngineSupervisor:
    """Actor that runs one replica's engine core, and reports to the Router when it is down and up again."""

    def __init__(
        self,
        replica: int,
        supervision: Supervision,
        run_core: RunCore,
        router: Ref[EngineDown | EngineUp],
        has_served: Callable[[int], bool],
    ) -> None:
        """`has_served` returns whether a replica has ended a request since it came up."""
        self._has_served = has_served
        self._replica = replica
        self._supervision = supervision
        self._run_core = run_core
        self._router = router
        self._scope = trio.CancelScope()
        self._engine: EngineRefs | None = None
        """Core that is up."""
        self._up_s = self._started_s = 0.0
        self._num_crashes = 0
        self._has_been_up = self._is_stopping = False

    async def run(
        self, backend: Engine, *, task_status: trio.TaskStatus[EngineRefs] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until the core ends because all senders have closed, is permanently down, or `stop` is
        called.
        """
        with self._scope:
            wait_s: float | None = await self._run_once(backend, task_status.started)
            while wait_s is not None:
                await sleep_until(now_s() + wait_s, key=f"supervisor-{self._replica}")
                assert self._supervision.new_backend is not None
                wait_s = await self._run_once(
                    self._supervision.new_backend(self._replica),
                    lambda engine: self._router.tell(EngineUp(self._replica, engine)),
                )

    def stop(self) -> None:
        """Let the engine end without a restart."""
        self._is_stopping = True
        if self._engine is None:
            self._scope.cancel()
        else:
            self._engine.close()

    async def _run_once(self, backend: Engine, report: OnUp) -> float | None:
        """Run a core to its end; return the seconds until it is restarted, or None for no restart."""

        def up(engine: EngineRefs) -> None:
            self._engine, self._up_s, self._has_been_up = engine, now_s(), True
            report(engine)

        self._started_s = now_s()
        try:
            await self._run_core(backend, up)
        except Exception as error:  # noqa: BLE001  # whatever a core raises is a crash
            cause = root_cause(error)
            if self._supervision.fates.engine is not Fate.RESTARTED or not self._has_been_up:
                raise cause from None
            return self._crashed(cause)
        return None

    def _crashed(self, cause: BaseException) -> float | None:
        backoff = self._supervision.backoff
        start_s = self._up_s - self._started_s if self._engine is not None else now_s() - self._started_s
        was_stable = self._engine is not None and now_s() - self._up_s >= backoff.stable_s
        if was_stable or self._has_served(self._replica):
            self._num_crashes = 0
        in_batch = () if self._engine is None else self._engine.running()
        self._engine = None
        self._num_crashes += 1
        wait_s = None if self._is_stopping else backoff.wait_s(self._num_crashes)
        what_next = "it is not started again" if wait_s is None else f"it is started again in {wait_s:g} s"
        log.log(
            self._supervision.log_level,
            "engine %d crashed (%d in succession); %s\n    %s\n%s",
            self._replica,
            self._num_crashes,
            what_next,
            summary(cause),
            block(cause),
        )
        retry_after_s = None if wait_s is None else wait_s + start_s
        self._router.tell(EngineDown(self._replica, summary(cause), retry_after_s, in_batch=in_batch))
        return wait_s
