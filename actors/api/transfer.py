"""KV transfers between a server that prefills and one that decodes, as vLLM's NIXL connector speaks of them.

A gateway asks the first with `do_remote_decode`, is told in `kv_transfer_params` where the blocks are, and
gives that to the second, with `do_remote_prefill`. Both are emulated: what is said is true of the first
server's blocks, and the second waits as long as the transfer would take and computes the last token alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from actors.api.errors import invalid, shown

FIELD = "kv_transfer_params"
NEEDED = ("remote_engine_id", "remote_host", "remote_port", "remote_block_ids")
MOST_TOKENS = 2**27
Params = Mapping[str, object]


class BlockTables(Protocol):
    """The blocks that requests hold."""

    def follow(self, request_id: str) -> None:
        """Remember the blocks of a request that is about to be submitted."""
        ...

    def take(self, request_id: str) -> list[int]:
        """The blocks that it held last, which are forgotten."""
        ...


@dataclass(frozen=True, slots=True)
class Transfers:
    """The transfers of KV blocks to other servers: this server's name, and how long a token takes."""

    tables: BlockTables
    engine_id: str
    host: str
    port: int
    tp_size: int
    token_s: float

    def begins(self, params: Params, request_id: str) -> float | None:
        """A request begins: how long its prompt is on its way here, None where it is computed here.

        Raises 400 for what does not say from where.
        """
        if _is_on(params, "do_remote_decode"):
            self.tables.follow(request_id)
        if not _is_on(params, "do_remote_prefill"):
            return None
        for name in NEEDED:
            if params.get(name) is None:
                raise invalid(
                    f"{FIELD} has do_remote_prefill and no {name}: say where the blocks are.", FIELD
                )
        num_tokens = params.get("remote_num_tokens", 0)
        if type(num_tokens) is not int or not 0 <= num_tokens <= MOST_TOKENS:
            raise invalid(f"{FIELD}: remote_num_tokens is {shown(num_tokens)}, no number of tokens.", FIELD)
        return num_tokens * self.token_s

    def ended(self, params: Params, request_id: str, num_tokens: int) -> dict[str, object] | None:
        """Return the account of an answer's `num_tokens` tokens of blocks, if another server fetches them."""
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
