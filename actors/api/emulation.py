"""Emulated engine as the API uses it: its lag, faults, and transfers of KV blocks."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sundog.actors.api.errors import ApiError, invalid, retry_after, shown
from sundog.actors.config.injected import INJECT, Fault, Faults, parse_fault
from sundog.actors.front.front_end import FrontEnd
from sundog.actors.kernel.clock import now_s, sleep_until
from sundog.actors.metrics.totals import Lag

FIELD = "kv_transfer_params"
NEEDED = ("remote_engine_id", "remote_host", "remote_port", "remote_block_ids")
MOST_TOKENS = 2**27
Params = Mapping[str, object]


class BlockTables(Protocol):
    """Block tables of requests, of which a transfer reports the ids."""

    def follow(self, request_id: str) -> None:
        """Store the block table of a request that is about to be submitted."""
        ...

    def take(self, request_id: str) -> list[int]:
        """Remove and return the blocks that the request held last."""
        ...


@dataclass(frozen=True, slots=True)
class Transfers:
    """Transfers of KV blocks to other servers: this server's name, and the seconds per token.

    Blocks go as a whole, as between simulated engines (`sim/fleet/links.py`).
    """

    tables: BlockTables
    engine_id: str
    host: str
    port: int
    tp_size: int
    token_s: float
    block_size: int = 1

    def begins(self, params: Params, request_id: str) -> float | None:
        """Return the seconds until a prompt's blocks arrive; None if it is computed here.

        Raises 400 if the source is missing.
        """
        if _is_on(params, "do_remote_decode"):
            self.tables.follow(request_id)
        if not _is_on(params, "do_remote_prefill"):
            return None
        for name in NEEDED:
            if params.get(name) is None:
                raise invalid(
                    f"{FIELD} has do_remote_prefill and no {name}: send the place of the blocks.", FIELD
                )
        num_tokens = params.get("remote_num_tokens", 0)
        if type(num_tokens) is not int or not 0 <= num_tokens <= MOST_TOKENS:
            raise invalid(f"{FIELD}: remote_num_tokens is {shown(num_tokens)}, no number of tokens.", FIELD)
        return -(-num_tokens // self.block_size) * self.block_size * self.token_s

    def ended(self, params: Params, request_id: str, num_tokens: int) -> dict[str, object] | None:
        """Return the transfer parameters of an answer with `num_tokens` tokens, if another server fetches
        its blocks.
        """
        if not _is_on(params, "do_remote_decode"):
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [self.tables.take(request_id)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self.tp_size,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": num_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }


def _is_on(params: Params, name: str) -> bool:
    given = params.get(name)
    if given is not None and not isinstance(given, bool):
        raise invalid(f"{FIELD}: {name} is {shown(given)}: send true or false.", FIELD)
    return bool(given)


NO_FAULTS = (
    f"{INJECT} needs an emulated server with one HTTP process: leave it out, or run"
    " `sundog emulate` with --api-processes 1."
)


class Headers(Protocol):
    """Headers of a request by name."""

    def get(self, key: str, /) -> str | None: ...


def no_fault(headers: Headers) -> Fault | None:
    """Return None if the request asks for no fault; raise ApiError otherwise, since this server injects
    none.
    """
    if headers.get(INJECT) is not None:
        raise invalid(NO_FAULTS, INJECT)
    return None


@dataclass(frozen=True, slots=True)
class Emulation:
    """Emulated engine with its lag, faults and transfers."""

    lag: Lag
    front_end: FrontEnd
    faults: Faults | None = None
    transfers: Transfers | None = None

    def taken(self, began_s: float) -> None:
        """Record that the engine accepted a request whose headers arrived at `began_s`
        (`time.perf_counter`).
        """
        self.front_end.took((time.perf_counter() - began_s) * self.lag.time_scale)

    async def befall(self, headers: Headers) -> Fault | None:
        """Return the fault that the request asks for, if any; raises ApiError for injected refusals.

        The caller applies the fault to the answer.
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
                raise ApiError(429, said, param=None, code="rate_limit_exceeded", headers=headers_said)
            case "503":
                raise ApiError(503, "This failure was injected: try again later.", headers=retry_after(1.0))
            case "slow":
                await sleep_until(now_s() + fault.amount)
            case "dead-engine":
                self.faults.kill()
        return fault
