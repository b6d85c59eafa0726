"""What operators do with the answers that are under way, here or at every door of a server."""

from typing import Protocol

from actors.api.in_flight import InFlight
from actors.api.llm import LLM


class Desk(Protocol):
    """Ends answers, holds new ones up, lets them pass again, waits, counts."""

    async def abort(self, answer_ids: tuple[str, ...] | None) -> int:
        """End these answers, or all; returns how many there were."""
        ...

    async def hold(self) -> None: ...

    async def release(self) -> None: ...

    async def until_empty(self) -> None: ...

    async def num_under_way(self) -> int: ...


class OwnDesk:
    """That of one process."""

    def __init__(self, in_flight: InFlight, llm: LLM) -> None:
        self._in_flight = in_flight
        self._llm = llm

    async def abort(self, answer_ids: tuple[str, ...] | None) -> int:
        return self._in_flight.abort(self._llm, answer_ids)

    async def hold(self) -> None:
        self._in_flight.pause()

    async def release(self) -> None:
        self._in_flight.resume()

    async def until_empty(self) -> None:
        await self._in_flight.until_empty()

    async def num_under_way(self) -> int:
        return len(self._in_flight)
