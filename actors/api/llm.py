"""The part of AsyncLLM's address that the routes use."""

from typing import Protocol, overload

from actors.messages import (
    Accepted,
    Cancel,
    CheckHealth,
    Done,
    Drain,
    Freeze,
    Generate,
    Health,
    Refused,
    ResetPrefixCache,
)


class LLM(Protocol):
    """Asked for answers, its health, resets and drains; told what is cancelled."""

    @overload
    async def ask(self, message: Generate, /) -> Accepted | Refused: ...

    @overload
    async def ask(self, message: CheckHealth, /) -> Health: ...

    @overload
    async def ask(self, message: ResetPrefixCache, /) -> Done | Refused: ...

    @overload
    async def ask(self, message: Freeze, /) -> Done | Refused: ...

    @overload
    async def ask(self, message: Drain, /) -> Done | Refused: ...

    def tell(self, message: Cancel, /) -> None: ...
