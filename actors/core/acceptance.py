"""Counts of accepted and rejected draft tokens, as in vLLM's `spec_decode` metrics.

vLLM counts the drafts that the sampler accepted, before an end token or a limit cuts the answer
(`Scheduler.update_from_output`): drafts behind the end of an answer count as accepted, though nobody receives
them. Otherwise rates would depend on the lengths of answers.
"""

from collections.abc import Sequence


class Acceptance:
    """Counts of draft tokens; `num_drafts` counts the requests with drafts in each step.

    vLLM's names are `spec_decode_num_drafts`, `…_num_draft_tokens`, `…_num_accepted_tokens` and
    `…_num_accepted_tokens_per_pos`.
    """

    __slots__ = ("accepted_per_position", "num_accepted_tokens", "num_draft_tokens", "num_drafts")

    def __init__(self) -> None:
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.accepted_per_position: list[int] = []

    def add(
        self,
        drafts: Sequence[tuple[str, int]],
        accepted: Sequence[tuple[str, int]],
        surplus: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Count the drafts that a step verified and accepted; `surplus` were behind the ends of answers."""
        verified, positions, further = dict(drafts), self.accepted_per_position, dict(surplus)
        for name, kept in accepted:
            count = kept + further.get(name, 0)
            self.num_drafts += 1
            self.num_draft_tokens += verified[name]
            self.num_accepted_tokens += count
            if len(positions) < verified[name]:
                positions += [0] * (verified[name] - len(positions))
            for position in range(count):
                positions[position] += 1

    def include(self, other: "Acceptance") -> None:
        """Add the counts of another record to these."""
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        ours, theirs = self.accepted_per_position, other.accepted_per_position
        ours += [0] * (len(theirs) - len(ours))
        for position, count in enumerate(theirs):
            ours[position] += count

    @property
    def rate(self) -> float:
        """Accepted share of all draft tokens."""
        return self.num_accepted_tokens / max(self.num_draft_tokens, 1)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per verification: the accepted drafts and the token after them."""
        return 1 + self.num_accepted_tokens / max(self.num_drafts, 1)

    @property
    def rates(self) -> tuple[float, ...]:
        """Share of drafts accepted up to and including each position."""
        return tuple(count / max(self.num_drafts, 1) for count in self.accepted_per_position)
