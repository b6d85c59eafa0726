"""The hand-over of a prompt's KV blocks from a scheduler that prefills to one that decodes.

It goes by the rules of vLLM's NIXL connector. The scheduler that prefills a prompt keeps its blocks when the
first token is sampled, until they have been fetched. The one that decodes takes blocks for the whole prompt
first, as it would admit a request: in order, if a running slot is free, and behind requests that lack
something. Then they are filled from there, and the request waits with its blocks to be admitted. What its own
prefix cache holds of the prompt is not fetched.

Requests that are moved go both ways, and two engines could wait for each other's blocks: so one that has
begun gets its blocks at once or not at all, and goes back to those that it has where it came from.

Law: every block here is held by one request that is `handed`, or that is fetching.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.request import Request


class KvHandovers:
    """The requests of one scheduler whose blocks are fetched by another, or from another."""

    __slots__ = ("fetching", "handed", "is_used", "pulls")

    def __init__(self) -> None:
        self.is_used = False
        """True if there ever was a request here."""
        self.handed: dict[str, Request] = {}
        """Requests that have ended here, with the blocks that are yet to be fetched."""
        self.pulls: dict[str, Request] = {}
        """Requests that wait for blocks to fetch into, in order of arrival."""
        self.fetching: dict[str, Request] = {}
        """Requests with blocks that are being filled."""

    @property
    def has_blocks(self) -> bool:
        """True while blocks are held here that a message from outside will free, or let be used."""
        return bool(self.handed or self.fetching)

    @property
    def holders(self) -> Iterator[Request]:
        """The requests that hold blocks here."""
        return chain(self.handed.values(), self.fetching.values())

    def hand(self, request: Request, kv: KVCache) -> None:
        """Keep the blocks of a request that has ended here; those of an earlier one of its id are free."""
        if (earlier := self.handed.pop(request.request_id, None)) is not None:
            kv.release(earlier)
        self.handed[request.request_id] = request
        self.is_used = True

    def reserve(self, kv: KVCache) -> list[tuple[Request, tuple[int, ...]]]:
        """Give blocks to pulls in order, until the next lacks some.

        Returns each with the blocks that are to be filled, its last ones. O(blocks)
        """
        reserved: list[tuple[Request, tuple[int, ...]]] = []
        for name, request in list(self.pulls.items()):
            hit = kv.find_hit(request)
            if not kv.fits(hit, request.num_tokens, kv.watermark_blocks):
                break
            del self.pulls[name]
            kv.hold(request, hit, request.num_tokens)
            self.fetch(request)
            reserved.append((request, tuple(request.block_ids[len(hit) :])))
        return reserved

    def take_back(self) -> list[str]:
        """Give pulls the blocks that they have here, handed over and not fetched; returns their names."""
        back = [name for name in self.pulls if name in self.handed]
        for name in back:
            request, earlier = self.pulls.pop(name), self.handed.pop(name)
            request.block_ids, request.block_keys = earlier.block_ids, earlier.block_keys
            request.num_registered_blocks = earlier.num_registered_blocks
            request.num_known_blocks = earlier.num_known_blocks
            request.num_named_blocks = earlier.num_named_blocks
            request.num_offloaded_blocks = earlier.num_offloaded_blocks
            self.fetch(request)
        return back

    def decline(self) -> list[str]:
        """Forget pulls of requests that have begun elsewhere and are to go on there; returns their names."""
        declined = [name for name, request in self.pulls.items() if request.submit.begun is not None]
        for name in declined:
            del self.pulls[name]
        return declined

    def fetch(self, request: Request) -> None:
        """Note a request with blocks that are being filled."""
        self.fetching[request.request_id] = request
        self.is_used = True

    def fetched(self, request_ids: Iterable[str], kv: KVCache) -> list[Request]:
        """Take back the blocks of handed requests; returns those that were fetched here."""
        here = []
        for name in request_ids:
            if (request := self.handed.pop(name, None)) is not None:
                kv.release(request)
            elif (request := self.fetching.pop(name, None)) is not None:
                here.append(request)
        return here

    def forget(self, kv: KVCache) -> None:
        """Free the blocks that are kept for requests which have ended here."""
        for request in self.handed.values():
            kv.release(request)
        self.handed.clear()

    def withdraw(self, request_ids: Iterable[str], kv: KVCache) -> None:
        """Forget requests that were to be fetched here; their blocks hold nothing, and are free."""
        for name in request_ids:
            self.pulls.pop(name, None)
            if (request := self.fetching.pop(name, None)) is not None:
                kv.release(request)
