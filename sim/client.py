"""Clients of a replay, and the listener that reports ended requests to them.

Clients are open-loop: each request is sent at its arrival, whatever happens to the others. A request of a
session is sent after the answer to the previous one, and a limit on concurrency makes all of them wait. With
retries, that answer is the one that an attempt got, or the end of the last attempt.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from sundog.actors.core.config import ConfigError
from sundog.actors.core.records import dataclass
from sundog.actors.kernel.actor import Actor, Ref
from sundog.actors.kernel.clock import ARRIVAL, Event, Timer
from sundog.actors.kernel.reply import Reader
from sundog.actors.messages import (
    Cancel,
    EngineDown,
    Finish,
    Generate,
    Heard,
    Refused,
    StepOutput,
    Submit,
    Unserved,
)
from sundog.sim.interrupt import ReplayStopping
from sundog.sim.record.recorder import Recorder
from sundog.sim.trace.record import EXACT_S, TraceRequest

Progress = Callable[[int], None]
"""Function that is called with the number of requests that have arrived."""


@dataclass(slots=True)
class Ended:
    """Message from Recording to the Client: these requests ended."""

    request_ids: tuple[str, ...]
    failed: tuple[str, ...] = ()
    """Requests among them that got no whole answer, for reasons other than their clients."""


FAILED: Final = ("error", "refused")
"""Reasons of ends that clients may retry."""


def ends_of(finished: Sequence[Finish]) -> Ended:
    """Return the message about requests that left an engine, without those that another one continues."""
    ended, failed = list[str](), list[str]()
    for finish in finished:
        if finish.reason != "handed":
            ended.append(finish.request_id)
            if finish.reason in FAILED:
                failed.append(finish.request_id)
    return Ended(tuple(ended), tuple(failed) if failed else ())


class Due(NamedTuple):
    """Message of the Client to itself: the pause of a row is over, and it is to be sent."""

    row: TraceRequest


class GaveUp(NamedTuple):
    """Message of the Client to itself: a request has timed out."""

    request_id: str


class Recording(Actor[Heard]):
    """Listener that feeds a Recorder, and reports ended requests to the client.

    The client leaves when its last request has arrived, and no longer looks whether the replay shall stop.
    From then on, `shall_stop` is set, and is called whenever a request ends.
    """

    def __init__(self, recorder: Recorder, *, tells_of_handovers: bool = False) -> None:
        """With `tells_of_handovers` the client hears of steps that only hand requests over, too."""
        super().__init__("recorder")
        self._recorder = recorder
        self._tells_of_handovers = tells_of_handovers
        self.client: Ref[Ended] | None = None
        self.shall_stop: Callable[[], bool] | None = None

    def handle(self, message: Heard) -> None:
        match message:
            case StepOutput():
                self._recorder.observe(message)
                if message.finished and self.client is not None:
                    if self.shall_stop is not None and self.shall_stop():
                        raise ReplayStopping
                    ended = ends_of(message.finished)
                    if ended.request_ids or self._tells_of_handovers:
                        self.client.tell(ended)
            case Submit():
                self._recorder.arrived(
                    message.request_id, message.arrival_s, message.num_prompt_tokens, message.tenant
                )
            case EngineDown():
                lost = self._recorder.lost(message, self.clock.now_s())
                if self.client is not None:
                    self.client.tell(Ended(lost, lost))
            case Unserved():
                for name in message.request_ids:
                    self._recorder.ended(name, message.reason, self.clock.now_s())
                if self.client is not None:
                    failed = message.request_ids if message.reason == "error" else ()
                    self.client.tell(Ended(message.request_ids, failed))


class Client(Actor[Due | GaveUp | TraceRequest | Ended]):
    """Sends each row of a trace at its arrival, and reads no answer.

    A row `after` others waits until they have ended and then for its own pause. At most `max_concurrency`
    requests are unfinished: the others wait, and arrive when they are sent. A request that has not ended
    `timeout_s` after it was sent is cancelled.
    """

    def __init__(
        self,
        trace: Iterable[TraceRequest],
        llm: Ref[Generate | Cancel],
        generate_for: Callable[[TraceRequest], Generate],
        recorder: Recorder,
        on_progress: Progress | None = None,
        max_concurrency: int | None = None,
        shall_stop: Callable[[], bool] = lambda: False,
        timeout_s: float | None = None,
        stays: bool = False,
        retries: tuple[int, float] | None = None,
    ) -> None:
        """A client that `stays` checks `shall_stop` until its last request has ended.

        `retries` says how often a failed or timed-out request is sent again, as `NAME~2`, and after how many
        seconds.
        """
        super().__init__("client")
        self._stays = stays
        self._retries = retries
        self._attempts: dict[str, tuple[TraceRequest, int]] = {}
        """Unfinished requests with retries: the first attempt, and the number of attempts."""
        self._given_up: set[str] = set()
        """Unfinished requests that have failed for their clients, who will retry."""
        self._shall_stop = shall_stop
        self._rows = iter(trace)
        self._llm = llm
        self._generate_for = generate_for
        self._recorder = recorder
        self._on_progress = on_progress
        self._most = max_concurrency
        self._timeout_s = timeout_s
        self._timers: dict[str, Timer] = {}
        self._num_arrived = 0
        self._num_to_come = 0
        """Rows that have been read and not sent."""
        self._ready: deque[TraceRequest] = deque()
        self._unfinished: dict[str, bool] = {}
        """Unfinished requests, and whether each is part of a session."""
        self._end_s: dict[str, float] = {}
        """End times of those requests of sessions that a later row may follow."""
        self._later: dict[str, list[TraceRequest]] = {}
        self._is_done = False

    @property
    def idle(self) -> bool:
        awaits_ends = self._stays and bool(self._unfinished)
        return self._is_done and not (self._num_to_come or self._timers or awaits_ends)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Requests that have been sent and have not ended."""
        return tuple(self._unfinished)

    async def opened(self) -> None:
        self._expect_next()

    def handle(self, message: Due | GaveUp | TraceRequest | Ended) -> None:
        if self._shall_stop():
            raise ReplayStopping
        match message:
            case Ended():
                failed = message.failed
                for name in message.request_ids:
                    if failed and name in failed:
                        self._failed(name)
                    self._ended(name)
            case TraceRequest():
                if message.after:
                    self._ask_after(message)
                else:
                    self._ask(message)
                self._expect_next()
            case Due():
                self._ask(message.row)
            case GaveUp():
                self._failed(message.request_id)
                self._llm.tell(Cancel(message.request_id))

    def _expect_next(self) -> None:
        row = next(self._rows, None)
        if row is None:
            self._is_done = True
        else:
            self._num_to_come += 1
            if row.arrival_s > EXACT_S:
                raise ConfigError(
                    f"{row.request_id} arrives at {row.arrival_s:,.0f} s, and a replay covers at most 97 "
                    "days:"
                    " give --until, or --from and --until"
                )
            if row.session is not None:
                self._recorder.programs.ties(row.request_id, row.after)
            self.schedule(row.arrival_s, ARRIVAL, row)

    def _ask_after(self, row: TraceRequest) -> None:
        last_s = 0.0
        for name in row.after:
            end_s = self._end_s.get(name)
            if end_s is None:
                self._later.setdefault(name, []).append(row)
                return
            last_s = max(last_s, end_s)
        self.schedule(last_s + row.pause_s, ARRIVAL, Due(row))

    def _ask(self, row: TraceRequest) -> None:
        if self._most is not None and len(self._unfinished) >= self._most:
            self._ready.append(row)
            return
        self._unfinished[row.request_id] = row.session is not None
        if self._retries is not None:
            self._attempts.setdefault(row.request_id, (row, 1))
        self._num_to_come -= 1
        self._num_arrived += 1
        if row.session is not None:
            self._recorder.programs.arrives(row.request_id, self.clock.now_s())
        if row.slo_ttft_s is not None or row.slo_tpot_s is not None or row.slo_e2e_s is not None:
            self._recorder.wants(row.request_id, row.limits_s)
        self._llm.request(self._generate_for(row)).hand_to(_Answer(self, row))
        if self._timeout_s is not None and row.request_id in self._unfinished:
            due_s, gave_up = self.clock.now_s() + self._timeout_s, GaveUp(row.request_id)
            self._timers[row.request_id] = self.schedule(due_s, Event.TIMEOUT, gave_up)
        if self._on_progress is not None:
            self._on_progress(self._num_arrived)

    def _ended(self, name: str) -> None:
        in_session = self._unfinished.pop(name, None)
        if in_session is None:
            return
        if self._timeout_s is not None and (timer := self._timers.pop(name, None)) is not None:
            timer.stop()
        if name in self._given_up:
            self._given_up.remove(name)
        else:
            first = self._attempts.pop(name, None) if self._attempts else None
            asked = name if first is None else first[0].request_id
            if in_session:
                self._end_s[asked] = self.clock.now_s()
            for row in self._later.pop(asked, ()) if self._later else ():
                self._ask_after(row)
        if self._ready:
            self._ask(self._ready.popleft())

    def _failed(self, name: str) -> None:
        first = self._attempts.get(name)
        if self._retries is None or first is None or first[1] >= self._retries[0]:
            return
        (row, number), (_, wait_s) = first, self._retries
        again = row._replace(request_id=f"{row.request_id}~{number + 1}", after=())
        del self._attempts[name]
        self._given_up.add(name)
        self._attempts[again.request_id] = row, number + 1
        if row.session is not None:
            self._recorder.programs.asked_again(again.request_id, row.request_id)
        self._num_to_come += 1
        self.schedule(self.clock.now_s() + wait_s, ARRIVAL, Due(again))

    def turned_away(self, row: TraceRequest, refused: Refused) -> None:
        """Record a request that was refused before any scheduler; it misses its limits."""
        self._recorder.arrived(row.request_id, self.clock.now_s(), row.num_prompt_tokens, row.tenant)
        self._recorder.refused(row.request_id, refused.reason)
        self._failed(row.request_id)
        self._ended(row.request_id)


class _Answer(Reader):
    __slots__ = ("_client", "_row")

    def __init__(self, client: Client, row: TraceRequest) -> None:
        self._client, self._row = client, row

    def take_answer(self, value: object, error: BaseException | None) -> None:
        if isinstance(value, Refused):
            self._client.turned_away(self._row, value)
