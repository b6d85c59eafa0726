"""Prompts that are asked again and again, and what the prompts of a group share."""

from actors.core.records import dataclass
from sim.trace.record import TraceRequest

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Rounds:
    """`groups` times `per_group` prompts asked in turn; a group shares its first `shared_tokens`."""

    groups: int
    per_group: int
    shared_tokens: int

    def request(self, index: int, arrival_s: float, num_tokens: int, num_outputs: int) -> TraceRequest:
        """Prompt number `index` of the round, its blocks named by what they hold."""
        prompt = index % (self.groups * self.per_group)
        num_shared = self.shared_tokens // BLOCK_SIZE
        ids = tuple(
            (prompt // self.per_group if block < num_shared else self.groups + prompt) * 10**6 + block
            for block in range(num_tokens // BLOCK_SIZE)
        )
        return TraceRequest(
            str(index), arrival_s, num_tokens, num_outputs, hash_ids=ids, hash_block_tokens=BLOCK_SIZE
        )
