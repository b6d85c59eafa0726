"""Findings of a whole run: the worst waits with their causes, preemptions, and suggestions."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sundog.actors.core.acceptance import Acceptance
from sundog.sim.explain.history import History, RecordedQueue, RequestHistory, Wait
from sundog.sim.explain.phases import FRONT_END, UNDER_WAY, UNKNOWN, Passing, passings, wait_phases


@dataclass(slots=True)
class CauseClock:
    """Seconds of each cause of waiting in a queue, between any two of its outputs."""

    queue: RecordedQueue
    seconds: dict[str, list[float]] = field(init=False)
    """Seconds by cause before each segment."""
    turns: dict[str, list[int]] = field(init=False)
    """Segments in which each request was next in the queue and lacked something."""

    def __post_init__(self) -> None:
        queue = self.queue
        reasons = {segment.reason or UNDER_WAY for segment in queue.segments}
        self.seconds = {reason: [0.0] for reason in sorted(reasons)}
        self.turns = defaultdict(list)
        for number, segment in enumerate(queue.segments):
            for reason, sums in self.seconds.items():
                holds = reason == (segment.reason or UNDER_WAY)
                length_s = queue.segment_end_s(number) - segment.start_s if holds else 0.0
                sums.append(sums[-1] + length_s)
            if segment.head is not None:
                self.turns[segment.head].append(number)

    def between(self, wait: Wait) -> dict[str, float]:
        """Return the seconds of a wait by cause. The rest of the wait passed while a step was in flight."""
        if wait.first >= wait.stop:
            return {}
        assert wait.end_s is not None
        start_s = self.queue.starts_s[wait.first]
        first, last = self.queue.segment_at(wait.first), self.queue.segment_at(wait.stop - 1)
        return {
            reason: seconds
            for reason in self.seconds
            if (seconds := self._at(reason, last, wait.end_s) - self._at(reason, first, start_s)) > 0
        }

    def own_turn_s(self, name: str, wait: Wait) -> float:
        """Return the seconds of the wait in which the request itself was next."""
        if wait.first >= wait.stop:
            return 0.0
        assert wait.end_s is not None
        start_s, total_s = self.queue.starts_s[wait.first], 0.0
        for number in self.turns.get(name, ()):
            begin_s = max(self.queue.segments[number].start_s, start_s)
            total_s += max(min(self.queue.segment_end_s(number), wait.end_s) - begin_s, 0.0)
        return total_s

    def _at(self, reason: str, number: int, time_s: float) -> float:
        segment = self.queue.segments[number]
        inside_s = time_s - segment.start_s if (segment.reason or UNDER_WAY) == reason else 0.0
        return self.seconds[reason][number] + inside_s


@dataclass(slots=True)
class Causes:
    """Waiting of a whole run, in seconds: by cause, and by the request that was next in the queue."""

    seconds: dict[str, float] = field(default_factory=dict)
    num_requests: Counter[str] = field(default_factory=Counter)
    own_turn_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def ordered(self) -> list[tuple[str, float]]:
        """Causes with their seconds, the largest first."""
        return sorted(self.seconds.items(), key=lambda item: (-item[1], item[0]))


def causes(history: History) -> Causes:
    """Return the causes of all waits of all requests."""
    clocks = {replica: CauseClock(queue) for replica, queue in history.queues.items()}
    found = Causes()
    for request in history.requests.values():
        touched = set[str]()
        for wait in request.waits:
            by_reason = _wait(clocks, request, wait)
            touched |= by_reason.keys()
            for reason, seconds in by_reason.items():
                found.seconds[reason] = found.seconds.get(reason, 0.0) + seconds
            if request.replica is not None:
                found.own_turn_s += clocks[request.replica].own_turn_s(request.request_id, wait)
        found.num_requests.update(touched)
    return found


def _wait(clocks: dict[int, CauseClock], request: RequestHistory, wait: Wait) -> dict[str, float]:
    assert wait.end_s is not None
    length_s = wait.end_s - wait.start_s
    if length_s <= 0:
        return {}
    if request.replica is None:
        return {UNKNOWN: length_s}
    clock = clocks[request.replica]
    by_reason = clock.between(wait)
    considered_s = wait.end_s if not by_reason else clock.queue.starts_s[wait.first]
    reached_s = wait.start_s if wait.reached_s is None else wait.reached_s
    if reached_s > wait.start_s:
        by_reason[FRONT_END] = reached_s - wait.start_s
    before_s = considered_s - reached_s
    if before_s > 0:
        by_reason[UNDER_WAY] = by_reason.get(UNDER_WAY, 0.0) + before_s
    return by_reason


class WorstWait(NamedTuple):
    """Wait with its seconds by cause, and the request that was longest in front of it."""

    request: RequestHistory
    wait: Wait
    seconds: float
    by_reason: dict[str, float]
    longest_head: str | None
    longest_head_s: float
    passed_by: list[Passing]
    """Later requests that the policy admitted first."""


@dataclass(slots=True)
class Preemptions:
    """Counts of preempted requests and their beneficiaries, and the cost in tokens."""

    num: int
    victims: Counter[str]
    for_requests: Counter[str]
    num_self: int
    recomputed_tokens: int
    rehit_tokens: int
    computed_tokens: int
    """Number of all tokens that the run computed."""


UNANSWERED = {"refused": "refused", "abort": "given up", "error": "failed"}
"""Reasons of ends without an answer, in words."""


@dataclass(slots=True)
class Findings:
    """Findings of a whole run; times in the record's unit."""

    num_requests: int
    num_unfinished: int
    unanswered: Counter[str]
    """Number of requests without an answer, by reason: `abort`, `error`, `refused`."""
    refusals: Counter[str]
    """Number of requests that the policy refused, by its reason."""
    num_steps: int
    spent_s: float
    causes: Causes
    worst: list[WorstWait]
    preemptions: Preemptions
    suggestions: list[str]
    drafts: Acceptance
    """Verified and accepted drafts of all requests."""


def findings(history: History, top: int) -> Findings:
    """Return everything that `sundog explain` reports of a run, with the `top` longest waits."""
    requests = history.requests.values()
    found = causes(history)
    preemptions = _preemptions(history)
    spent_s = sum((_end_s(request) - request.arrival.time_s for request in requests), 0.0)
    drafts = Acceptance()
    for request in requests:
        drafts.include(request.drafts)
    return Findings(
        num_requests=len(requests),
        refusals=Counter(request.refusal for request in requests if request.refusal is not None),
        num_unfinished=sum(request.reason is None for request in requests),
        unanswered=Counter(request.reason for request in requests if request.reason in UNANSWERED),
        num_steps=sum(queue.num_steps for queue in history.queues.values()),
        spent_s=spent_s,
        causes=found,
        worst=_worst(history, top),
        preemptions=preemptions,
        suggestions=suggestions(history, found, preemptions, spent_s),
        drafts=drafts,
    )


def _end_s(request: RequestHistory) -> float:
    last = request.spans[-1] if request.is_running or len(request.spans) == len(request.waits) else None
    end_s = request.waits[-1].end_s if last is None else last.end_s
    assert end_s is not None
    return end_s


def _worst(history: History, top: int) -> list[WorstWait]:
    waits = [
        (wait.end_s - wait.start_s, request, wait)
        for request in history.requests.values()
        for wait in request.waits
        if wait.end_s is not None
    ]
    waits.sort(key=lambda entry: -entry[0])
    return [_worst_wait(history, *entry) for entry in waits[:top] if entry[0] > 0]


def first_wait(history: History, request_id: str) -> WorstWait | None:
    """Return a request's wait before it first ran; None if it did not wait, or never ran."""
    request = history.requests.get(request_id)
    wait = request.waits[0] if request is not None and request.waits else None
    if request is None or wait is None or wait.end_s is None or wait.end_s <= wait.start_s:
        return None
    return _worst_wait(history, wait.end_s - wait.start_s, request, wait)


def _worst_wait(history: History, seconds: float, request: RequestHistory, wait: Wait) -> WorstWait:
    by_reason: dict[str, float] = {}
    heads: dict[str, float] = {}
    for phase in wait_phases(history, request, wait):
        reason = phase.reason or UNDER_WAY
        by_reason[reason] = by_reason.get(reason, 0.0) + phase.seconds
        for name, head_s in phase.heads.items() or [(request.request_id, phase.seconds)]:
            if phase.own or phase.heads:
                heads[name] = heads.get(name, 0.0) + head_s
    longest = max(heads, key=lambda name: heads[name], default=None)
    ordered = dict(sorted(by_reason.items(), key=lambda item: -item[1]))
    longest_s, passed = heads[longest] if longest else 0.0, passings(history, request, wait)
    return WorstWait(
        request,
        wait,
        seconds=seconds,
        by_reason=ordered,
        longest_head=longest,
        longest_head_s=longest_s,
        passed_by=passed,
    )


def _preemptions(history: History) -> Preemptions:
    victims: Counter[str] = Counter()
    growers: Counter[str] = Counter()
    num_self = recomputed = rehit = 0
    for request in history.requests.values():
        for span in request.spans:
            recomputed += span.recomputed_tokens
            rehit += span.rehit_tokens
            if span.preempted is not None:
                victims[request.request_id] += 1
                num_self += span.preempted.for_request == request.request_id
                if span.preempted.for_request is not None:
                    growers[span.preempted.for_request] += 1
    computed = sum(queue.num_computed_tokens for queue in history.queues.values())
    return Preemptions(
        victims.total(),
        victims,
        for_requests=growers,
        num_self=num_self,
        recomputed_tokens=recomputed,
        rehit_tokens=rehit,
        computed_tokens=computed,
    )


# --- what would help -----------------------------------------------------------------------------

NOTHING = "Nothing to improve"
SHARE_WORTH_A_WORD = 0.2
"""Share of waiting time from which a cause is mentioned."""
WASTE_WORTH_A_WORD = 0.02
"""Share of recomputed tokens from which it is mentioned."""


def suggestions(history: History, found: Causes, preemptions: Preemptions, spent_s: float) -> list[str]:
    """Return suggestions that the numbers support."""
    header, said = history.header, []
    total_s = found.total_s
    shares = {reason: s / total_s for reason, s in found.ordered} if total_s else {}
    if total_s and spent_s and total_s / spent_s < 0.01:
        return [f"{NOTHING}: waiting is {total_s / spent_s:.1%} of all time."]
    for reason, share in shares.items():
        if share >= SHARE_WORTH_A_WORD:
            said += _advice(history, reason, share)
    waste = preemptions.recomputed_tokens / (preemptions.computed_tokens or 1)
    if waste >= WASTE_WORTH_A_WORD:
        limit = "" if header.max_num_seqs is None else f" (now {header.max_num_seqs})"
        said.append(
            f"{waste:.1%} of all computed tokens had been computed before, because"
            f" {preemptions.num:,} preemptions threw them away: a --watermark, or a lower"
            f" --max-num-seqs{limit}, admits fewer than the blocks can carry to their end."
        )
    return said


def beside_losses(suggested: Sequence[str], lost: Mapping[str, int]) -> list[str]:
    """Return the suggestions for a run with unanswered requests, in which short waits of the others are no
    success.

    `lost` counts the unanswered requests by reason: refused, given up, failed.
    """
    counts = [
        f"{count:,} were {what}" if what != "failed" else f"{count:,} failed" for what, count in lost.items()
    ]
    if not counts:
        return list(suggested)
    taken = f"Those that were taken hardly waited, and {' and '.join(counts)}"
    return [taken + text.removeprefix(NOTHING) if text.startswith(NOTHING) else text for text in suggested]


def _advice(history: History, reason: str, share: float) -> list[str]:
    header = history.header
    match reason:
        case "KV blocks":
            pool = "" if header.num_blocks is None else f" (there are {header.num_blocks - 1:,})"
            return [
                f"{share:.0%} of waiting time lacked KV blocks{pool}: only more KV memory"
                " (--gpu-memory-utilization, --num-gpu-blocks, a larger or another GPU, more"
                " --replicas) or shorter contexts help; a higher --max-num-seqs would not."
            ]
        case "max_num_seqs":
            return [_running_slots(history, share)]
        case "token budget":
            limit = header.max_num_batched_tokens
            value = "" if limit is None else f" ({limit:,})"
            return [
                f"{share:.0%} of waiting time lacked token budget{value}: prompts come faster than"
                " one step after another takes them in; a higher --max-num-batched-tokens takes"
                " more per step and lengthens the steps, another replica shares them."
            ]
        case "preemption":
            return [
                f"{share:.0%} of waiting time passed in steps that preempted a request, in which"
                " none is admitted: blocks run out while requests grow."
            ]
        case _ if reason == FRONT_END:
            return [
                f"{share:.0%} of waiting time was for an API process, which does one thing at a time:"
                " more of them help (vLLM's --api-server-count; --front-cost processes=N here)."
            ]
        case _ if reason == UNDER_WAY:
            return [
                f"{share:.0%} of waiting time was for the step under way at arrival: only shorter"
                " steps help (a lower --max-num-batched-tokens)."
            ]
        case _:
            return []


def _running_slots(history: History, share: float) -> str:
    limit = history.header.max_num_seqs
    value = "" if limit is None else f" {limit}"
    text = f"{share:.0%} of waiting time was for a running slot (--max-num-seqs{value})"
    free = [
        segment.free_blocks
        for queue in history.queues.values()
        for segment in queue.segments
        if segment.reason == "max_num_seqs" and segment.free_blocks is not None
    ]
    if not free or history.header.num_blocks is None:
        return f"{text}: raise it if KV blocks were free."
    least = sorted(free)[len(free) // 2]
    return (
        f"{text}, while typically {least:,} of {history.header.num_blocks - 1:,} KV blocks were"
        " free: raise it as far as those go."
    )
