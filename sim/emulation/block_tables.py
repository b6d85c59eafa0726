"""The KV blocks of requests whose prompts another server is to fetch."""

from actors.kernel.actor import Actor
from actors.messages import Heard, StepOutput


class BlockTables(Actor[Heard]):
    """A listener that follows the blocks of the requests that are expected, and of no others."""

    def __init__(self) -> None:
        super().__init__("block-tables")
        self._tables: dict[str, list[int]] = {}

    def follow(self, request_id: str) -> None:
        """Remember the blocks of a request that is about to be submitted."""
        self._tables[request_id] = []

    def take(self, request_id: str) -> list[int]:
        """The blocks that it held last, which are forgotten."""
        return self._tables.pop(request_id, [])

    def handle(self, message: Heard) -> None:
        if not self._tables or not isinstance(message, StepOutput):
            return
        for admission in message.batch.admitted:
            if admission.request_id in self._tables:
                self._tables[admission.request_id] = list(admission.block_ids)
        for name, blocks in message.batch.new_blocks:
            if name in self._tables:
                self._tables[name] += blocks
