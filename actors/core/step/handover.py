"""Hand-over of a prompt's KV blocks from a prefilling scheduler to a decoding one.

The rules are those of vLLM's NIXL connector. The prefilling scheduler keeps a prompt's blocks after the first
token is sampled, until they have been fetched. The decoding scheduler first allocates blocks for the whole
prompt, as for an admission: in order, if a running slot is free, and behind requests that lack something.
Then they are filled by the transfer, and the request waits, with its blocks, to be admitted. Blocks in its
own prefix cache are not fetched.

Moved requests travel in both directions, so two engines could wait for each other's blocks. Therefore a
request that has begun gets its blocks at once or not at all; if not, it continues on the engine it came from.

Law: every block here is held by one request that is `handed`, or that is fetching.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.request import Request


class KvHandovers:
    """Requests of one scheduler whose blocks another scheduler fetches, and requests that fetch blocks
    themselves.
    """

    __slots__ = ("fetching", "handed", "is_used", "pulls")

    def __init__(self) -> None:
        self.is_used = False
        """Whether any request was handed over to or from this scheduler."""
        self.handed: dict[str, Request] = {}
        """Requests that ended here and whose blocks are not fetched yet."""
        self.pulls: dict[str, Request] = {}
        """Requests that wait for blocks to fetch into, in order of arrival."""
        self.fetching: dict[str, Request] = {}
        """Requests whose blocks are being filled."""

    @property
    def has_blocks(self) -> bool:
        """Whether blocks are held here until a message from another engine arrives."""
        return bool(self.handed or self.fetching)

    @property
    def holders(self) -> Iterator[Request]:
        """Requests that hold blocks here."""
        return chain(self.handed.values(), self.fetching.values())

    def hand(self, request: Request, kv: KVCache) -> None:
        """Keep the blocks of a request that ended here; release those of an earlier request with the same
        id.
        """
        if (earlier := self.handed.pop(request.request_id, None)) is not None:
            kv.release(earlier)
        self.handed[request.request_id] = request
        self.is_used = True

    def reserve(self, kv: KVCache) -> list[tuple[Request, tuple[int, ...]]]:
        """Allocate blocks for pulls in order, until the next one lacks some.

        Returns each request with the blocks to fill, its last ones. O(blocks)
        """
        reserved: list[tuple[Request, tuple[int, ...]]] = []
        for request in self.pulls.values():
            hit = kv.find_hit(request)
            if not kv.fits(hit, request.num_tokens, kv.watermark_blocks):
                break
            kv.hold(request, hit, request.num_tokens)
            self.fetch(request)
            new_blocks = request.block_ids[len(hit) :] if hit else request.block_ids
            reserved.append((request, tuple(new_blocks)))
        for request, _ in reserved:
            del self.pulls[request.request_id]
        return reserved

    def take_back(self) -> list[str]:
        """Let requests that were handed over, and not fetched, continue here in their own blocks; return
        their names.
        """
        if not self.handed:
            return []
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
        """Remove requests that began elsewhere and will continue there, as blocks lack here; return their
        names.
        """
        if not self.pulls:
            return []
        declined = [name for name, request in self.pulls.items() if request.submit.begun is not None]
        for name in declined:
            del self.pulls[name]
        return declined

    def fetch(self, request: Request) -> None:
        """Add a request whose blocks are being filled."""
        self.fetching[request.request_id] = request
        self.is_used = True

    def fetched(self, request_ids: tuple[str, ...], kv: KVCache) -> list[Request]:
        """Release the fetched blocks of handed requests; return the requests whose fetch into this engine
        ended.
        """
        here = []
        for name in request_ids:
            if name in self.handed:
                kv.release(self.handed.pop(name))
            elif name in self.fetching:
                here.append(self.fetching.pop(name))
        return here

    def forget(self, kv: KVCache) -> None:
        """Release the blocks kept for requests that have ended on this engine."""
        for request in self.handed.values():
            kv.release(request)
        self.handed.clear()

    def withdraw(self, request_ids: Iterable[str], kv: KVCache) -> None:
        """Remove requests that were to be fetched here, and release their empty blocks."""
        for name in request_ids:
            self.pulls.pop(name, None)
            if (request := self.fetching.pop(name, None)) is not None:
                kv.release(request)
