"""What is kept of a recorded run: requests as waits and spans of running, and each replica's queue."""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from actors.core.acceptance import Acceptance
from sim.record.journal_rows import Admitted, Arrival, Drafted, Preempted, Rank


@dataclass(slots=True)
class Wait:
    """In the queue from `start_s` to `end_s`.

    `first` is the first output of the replica whose step began with the request in the queue,
    `stop` the one that admitted it (or comes after the last that did not). `turn` is how many the
    replica had admitted before, None if it was not admitted.
    """

    start_s: float
    end_s: float | None = None
    first: int = 0
    stop: int = 0
    turn: int | None = None
    num_tokens: int | None = None
    """Tokens it had to compute to run, hits aside."""


@dataclass(slots=True)
class RunningSpan:
    """Among the running from `start_s` to `end_s`: catching up, then one token a step.

    `start_step` counts the replica's steps. `most_tokens` is how far any span before it had come.
    """

    start_s: float
    start_step: int
    admitted: Admitted
    chunks: list[int] = field(default_factory=list)
    catch_up_steps: int = 0
    caught_up_s: float | None = None
    stalls: list[tuple[float, float]] = field(default_factory=list)
    end_s: float | None = None
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    most_tokens: int = 0
    preempted: Preempted | None = None
    range_start: int | None = None

    @property
    def rehit_tokens(self) -> int:
        """Tokens computed in an earlier span, and found in the prefix cache."""
        return min(self.most_tokens, self.admitted.num_hit_tokens)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens computed in an earlier span, and again in this one."""
        again = min(self.most_tokens, self.num_computed_tokens) - self.admitted.num_hit_tokens
        return max(again, 0)

    def close_range(self, stop: int) -> None:
        """End the steps that gave it a token each before step `stop`."""
        start, self.range_start = self.range_start, None
        if start is not None and stop >= start:
            # The first token of a range comes with its chunk; each later one computes one more.
            self.num_computed_tokens += stop - start - 1
            self.num_output_tokens += stop - start


@dataclass(slots=True)
class RequestHistory:
    """One request; `replica` is None until a replica speaks of it."""

    arrival: Arrival
    waits: list[Wait]
    spans: list[RunningSpan] = field(default_factory=list)
    replica: int | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    reason: str | None = None
    ranks: list[tuple[int, Rank]] = field(default_factory=list)
    """What its rank was from which output of its replica on, as far as it is known."""
    refusal: str | None = None
    """Why the policy refused it, if it did."""
    drafts: Acceptance = field(default_factory=Acceptance)
    """What became of its drafts."""

    def accept(self, drafted: Drafted) -> None:
        """A step verified drafts: accepted ones are tokens beside the one that it gives anyway."""
        name, num_accepted = drafted.request_id, drafted.num_accepted
        self.drafts.add([(name, drafted.num_drafts)], [(name, num_accepted)])
        self.spans[-1].num_computed_tokens += num_accepted
        self.spans[-1].num_output_tokens += num_accepted

    @property
    def request_id(self) -> str:
        return self.arrival.request_id

    def rank_at(self, output: int) -> Rank | None:
        """Its rank as last known at an output, or else as first known."""
        known = bisect_right(self.ranks, output, key=lambda pair: pair[0])
        return self.ranks[max(known - 1, 0)][1] if self.ranks else None

    @property
    def num_output_tokens(self) -> int:
        return sum(span.num_output_tokens for span in self.spans)

    @property
    def is_running(self) -> bool:
        return self.end_s is None and len(self.spans) == len(self.waits)


@dataclass(slots=True)
class Segment:
    """Steps in a row in which the same request was next in the queue and lacked the same.

    `head` None: no request was refused. `free_blocks` and `num_running` are as of its first step, once
    it was planned.
    """

    first: int
    start_s: float
    head: str | None
    reason: str | None
    free_blocks: int | None
    num_running: int


@dataclass(slots=True)
class Queue:
    """One replica: when its outputs began, and what kept the queue waiting."""

    starts_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_steps: "array[int]" = field(default_factory=lambda: array("q"))
    free_blocks: "array[int]" = field(default_factory=lambda: array("q"))
    """Once the step, or the last step of a run, was over."""
    num_steps: int = 0
    last_end_s: float = 0.0
    num_running: int = 0
    segments: list[Segment] = field(default_factory=list)
    admissions: "array[int]" = field(default_factory=lambda: array("q"))
    """The output of each admission, in order."""
    admitted: list[str] = field(default_factory=list)
    """The request of each admission."""
    num_computed_tokens: int = 0

    def begin(self, start_s: float, num_free_blocks: int) -> None:
        """One more output."""
        self.starts_s.append(start_s)
        self.first_steps.append(self.num_steps)
        self.free_blocks.append(num_free_blocks)

    def steps_before(self, output: int) -> int:
        """How many steps came before an output, or in all if it is past the last."""
        return self.first_steps[output] if output < len(self.first_steps) else self.num_steps

    def segment_at(self, output: int) -> int:
        """The number of the segment that an output belongs to."""
        return bisect_right(self.segments, output, key=lambda segment: segment.first) - 1

    def segment_end_s(self, number: int) -> float:
        if number + 1 < len(self.segments):
            return self.segments[number + 1].start_s
        return self.last_end_s

    def admitted_first(self, wait: Wait) -> int | None:
        """How many were admitted while a request waited, None if it was never admitted."""
        return None if wait.turn is None else wait.turn - bisect_left(self.admissions, wait.first)
