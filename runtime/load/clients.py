"""Clients that send each row of a trace when it is due, and read the answers.

Open loop: a request is sent at its arrival, whatever happens to the others; its body is made and its
connection opened before. Closed loop: each of `num_clients` clients sends its next request as soon as it has
its answer. A row `after` others waits for their ends, and then for its own pause, as in a replay.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import trio

from sundog.runtime.load.answer import read_answer
from sundog.runtime.load.prompts import PromptMaker
from sundog.runtime.load.rows import Outcome, Row
from sundog.runtime.load.server import TargetServer
from sundog.runtime.load.server_client import NO_CONNECTION, RequestFailed

LEAD_S = 0.25
"""Seconds before its time at which a request is prepared."""
CONNECTED = ".send_request_headers.started"
"""httpx's event after a request has its connection and before it is sent."""
WRITTEN = ".send_request_body.complete"
"""httpx's event after all of a request is sent."""
GONE_S, FEWEST_FAILURES = 10.0, 5
"""Seconds, and failed connections, after which a server counts as gone."""


R = TypeVar("R", bound=Row)
Told = TypeVar("Told", bound=Row, contravariant=True)


class LoadListener(Protocol[Told]):
    """Functions to call when each request is due, and when it has ended."""

    def due(self, row: Told, outcome: Outcome, /) -> None: ...
    def ended(self, row: Told, outcome: Outcome, /) -> None: ...


class ServerGone(Exception):
    """Raised if no client can connect any longer."""


@dataclass(slots=True)
class _Turn:
    ended: trio.Event = field(default_factory=trio.Event)
    end_s: float = 0.0


class Clients(Generic[R]):
    """All clients of one run; `play` it once."""

    def __init__(
        self,
        server: TargetServer,
        listener: LoadListener[R],
        *,
        salt: str,
        num_clients: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._server, self._listener = server, listener
        self._prompts = PromptMaker(server.units, salt)
        self._timeout_s = timeout_s
        self._slots = None if num_clients is None else trio.Semaphore(num_clients)
        self._turns: dict[str, _Turn] = {}
        self._start_s = 0.0
        self._failing_since_s: float | None = None
        self._num_failures = 0

    async def play(self, rows: Iterable[R], start_s: float | None = None) -> None:
        """Send all rows and wait for their ends; from `start_s` of Trio's clock, or at once.

        Raises ServerGone.
        """
        lead_s = LEAD_S if self._slots is None else 0.0
        self._start_s = trio.current_time() + lead_s if start_s is None else start_s
        try:
            async with trio.open_nursery() as nursery:
                for row in rows:
                    if row.session is not None:
                        self._turns[row.request_id] = _Turn()
                    if not row.after:
                        await trio.sleep_until(self._start_s + row.arrival_s - lead_s)
                        if self._slots is not None:
                            await self._slots.acquire()
                    nursery.start_soon(self._one, row)
        finally:
            with trio.CancelScope(shield=True):
                await self._server.client.close()

    def _now_s(self) -> float:
        return trio.current_time() - self._start_s

    async def _one(self, row: R) -> None:
        due_s = await self._due(row)
        body = self._server.body(self._prompts.of(row), row.num_output_tokens)
        outcome = Outcome(due_s if self._slots is None else self._now_s())
        with trio.move_on_at(self._start_s + outcome.due_s + (self._timeout_s or math.inf)) as patience:
            await self._ask(row, body, outcome)
        if patience.cancelled_caught:
            outcome.end, outcome.trouble = "abort", "timeout"
        if math.isnan(outcome.sent_s):
            await trio.sleep_until(self._start_s + outcome.due_s)
            self._listener.due(row, outcome)
        outcome.end_s = outcome.last_s if outcome.trouble is None else self._now_s()
        self._listener.ended(row, outcome)
        if self._slots is not None:
            self._slots.release()
        if turn := self._turns.get(row.request_id):
            turn.end_s = self._now_s()
            turn.ended.set()

    async def _due(self, row: R) -> float:
        if not row.after:
            return row.arrival_s
        before = [self._turns[name] for name in row.after]
        for turn in before:
            await turn.ended.wait()
        due_s = max(turn.end_s for turn in before) + row.pause_s
        if self._slots is not None:
            await trio.sleep_until(self._start_s + due_s)
            await self._slots.acquire()
        return due_s

    async def _ask(self, row: R, body: bytes, outcome: Outcome) -> None:
        async def at(event: str, info: Mapping[str, object]) -> None:
            # Through a proxy a CONNECT comes first.
            is_first = math.isnan(outcome.sent_s) and getattr(info.get("request"), "method", b"") == b"POST"
            if is_first and event.endswith(CONNECTED):
                await trio.sleep_until(self._start_s + outcome.due_s)
                outcome.sent_s = self._now_s()
                self._listener.due(row, outcome)
            elif event.endswith(WRITTEN):
                outcome.written_s = self._now_s()

        server = self._server
        try:
            async with server.client.stream(server.path, body, headers_of(row), trace=at) as response:
                await read_answer(response, outcome, self._start_s)
        except RequestFailed as error:
            outcome.end, outcome.trouble, outcome.reason = "error", error.kind, error.reason
        self._watch(outcome)

    def _watch(self, outcome: Outcome) -> None:
        if outcome.trouble != NO_CONNECTION:
            self._failing_since_s, self._num_failures = None, 0
            return
        self._num_failures += 1
        if self._failing_since_s is None:
            self._failing_since_s = self._now_s()
        lasted_s = self._now_s() - self._failing_since_s
        if lasted_s >= GONE_S and self._num_failures >= FEWEST_FAILURES:
            url = self._server.client.authority
            raise ServerGone(
                f"{url}: {outcome.reason}, for {lasted_s:.0f} s and {self._num_failures} requests:"
                " the server is gone"
            )


def headers_of(row: Row) -> dict[str, str]:
    """Return headers with a request's terms for policies; other servers ignore them."""
    ttft_s, tpot_s, e2e_s = row.limits_s
    given = {
        "X-Request-Id": row.request_id,
        "X-Tenant": row.tenant,
        "X-Session-Id": row.session,
        "X-Vllm-Priority": row.priority or None,
        "X-Slo-Ttft-S": ttft_s,
        "X-Slo-Tpot-S": tpot_s,
        "X-Slo-E2e-S": e2e_s,
    }
    texts = {name: str(value) for name, value in given.items() if value is not None}
    return {name: text for name, text in texts.items() if text.isascii() and text.isprintable()}
