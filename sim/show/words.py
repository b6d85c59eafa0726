"""Words of the pages: times and durations, causes, lists of ids."""

from collections.abc import Iterable

from sundog.sim.explain.history import RunningSpan
from sundog.sim.explain.phases import FRONT_END, UNDER_WAY, UNKNOWN, Passing, RequestPhase
from sundog.sim.figures.engine import SpeculationFigures
from sundog.sim.record.journal_rows import Chosen, Header, Rank


def moment(time_s: float) -> str:
    """Return a time in seconds with milliseconds."""
    return f"{time_s:,.3f}"


def length(seconds: float) -> str:
    """Return a duration with its unit, to a millisecond."""
    return f"{seconds:,.3f} s"


MOST_PERCENT = 0.3
"""Relative error from which it is shown as a factor instead of in percent: a step cannot be more than 100 %
shorter.
"""


def steps_within(doubt: float) -> str:
    """Return by how much steps may be shorter or longer."""
    if doubt <= MOST_PERCENT:
        return f"step times within {doubt:.0%}"
    return f"steps may take {1 / (1 + doubt):.1f} to {1 + doubt:.1f} times as long"


def count(number: int, word: str) -> str:
    """Return a count with its noun: `1 step`, `1,200 steps`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def shortened(text: str, most: int = 100) -> str:
    """Return a foreign text, cut to one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def names(found: Iterable[str], most: int = 3) -> str:
    """Return the first names and the number of the others: `r1, r2 and 7 others`."""
    ids = list(found)
    if len(ids) <= most:
        return ", ".join(ids[:-1]) + (" and " if len(ids) > 1 else "") + "".join(ids[-1:])
    rest = len(ids) - most + 1
    return f"{', '.join(ids[: most - 1])} and {rest:,} others"


def rank(value: Rank) -> str:
    """Return a policy's rank, in few digits."""
    if isinstance(value, tuple):
        return f"({', '.join(map(rank, value))})"
    return value if isinstance(value, str) else f"{value:,.6g}"


def passed_by(found: list[Passing]) -> str:
    """Return the later requests that the policy put first, and their ranks."""
    first = found[0]
    ranks = f"{first.request_id}, of rank {rank(first.rank)} where it had {rank(first.own_rank)}"
    others = f", and {count(len(found) - 1, 'other')}" if len(found) > 1 else ""
    return f"the policy let {count(len(found), 'later request')} pass: {ranks}{others}"


def cause(phase: RequestPhase, header: Header) -> str:
    """Return why a request waited in one phase, as a clause about the request that was next."""
    if phase.reason == UNDER_WAY:
        return "for the step under way"
    if phase.reason == FRONT_END:
        return "for an API process"
    place = "next in the queue" if phase.own else f"behind {names(phase.heads)}"
    reason = lack(phase.reason or UNKNOWN, header)
    if phase.reason != "KV blocks":
        return f"{place}: {reason}"
    parts = []
    if phase.needed_blocks is not None:
        owner = "" if phase.own or len(phase.heads) < 2 else f"{next(iter(phase.heads))} "
        parts.append(f"{owner}needed up to {phase.needed_blocks:,}")
    if phase.free_blocks is not None:
        parts.append(f"{phase.free_blocks:,} free")
        if header.num_watermark_blocks:
            parts.append(f"{header.num_watermark_blocks:,} of them kept back as watermark")
    if phase.num_running is not None:
        parts.append(f"{phase.num_running:,} running")
    return f"{place}: {reason}" + (f" ({', '.join(parts)})" if parts else "")


def lack(reason: str, header: Header) -> str:
    """Return what was lacking, with the limit if it is known."""
    match reason:
        case "KV blocks":
            return "too few free KV blocks"
        case "max_num_seqs":
            limit = "all" if header.max_num_seqs is None else f"all {header.max_num_seqs:,}"
            return f"{limit} running slots taken (max_num_seqs)"
        case "token budget":
            budget = header.max_num_batched_tokens
            of = "" if budget is None else f" of {budget:,}"
            return f"the step's token budget{of} was used up"
        case "preemption":
            return "the step preempted, and such a step admits no request"
        case "KV load":
            return "KV blocks being loaded from the host's memory"
        case "prefill interval":
            return "prompts held back while requests decode (prefill_schedule_interval)"
        case "quota":
            return "the policy paused it (a quota of 0)"
        case "unknown":
            return "unknown (the record ended before an engine accepted it)"
        case _:
            return reason


def chosen(choice: Chosen, header: Header) -> str:
    """Return the replica that the router chose, and the reason."""
    text = f"{header.router or 'the router'} chose replica {choice.replica} of {choice.num_up} that were up"
    if choice.num_hit_blocks is not None:
        text += f": {count(choice.num_hit_blocks, 'block')} of the prompt cached there"
        text += f", {choice.most_other_hit_blocks:,} at most elsewhere"
    text += f"; {count(choice.num_requests, 'request')} unfinished there"
    return f"{text} ({choice.fewest_requests:,} to {choice.most_requests:,} on each)"


def drafts(figures: SpeculationFigures) -> str:
    """Return how many drafts were accepted, and at which positions."""
    rates = ", ".join(f"{rate:.3f}" for rate in figures.rates_by_position)
    return (
        f"{figures.num_accepted_tokens:,} of {figures.num_draft_tokens:,} accepted"
        f" ({figures.acceptance_rate:.1%}), {figures.mean_length:.2f} tokens a verification;"
        f" by position {rates}"
    )


def lost(span: RunningSpan, request_id: str) -> str:
    """Return for which request another was preempted, and the cost."""
    preempted = span.preempted
    assert preempted is not None
    name = preempted.for_request
    if preempted.cause == "urgency":
        whose = f"for {name}, which is more urgent and was admitted in its place"
    elif preempted.cause != "KV blocks":
        whose = f"by a {preempted.cause}"
    elif name is None:
        whose = "(the record does not say for which)"
    elif name == request_id:
        whose = "because its own next token needed a block and none was free"
    else:
        whose = f"for {name}, which needed a KV block to grow when none was free"
    return f"preempted {whose}; lost {count(span.num_computed_tokens, 'computed token')}"
