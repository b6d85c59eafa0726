"""Speculative decoding in the scheduler: drafts are planned, verified and taken back, as vLLM V1 does it.

A draft is computed like a known token: it takes budget and a slot. When the step is done, the tokens from
the first rejected draft on count as not computed; the request keeps its blocks, which its next tokens fill.
Blocks get their keys only when all their tokens are known. A request that is preempted loses its drafts.

Law: tokens, ends and the order of ends are those of decoding without drafts, only in fewer steps.
"""

from dataclasses import replace

from actors.core.batch import StepResult
from actors.core.queue.lockstep import InFlight
from actors.core.request import Request, Status
from actors.core.step.draft import Draft
from actors.core.step.state import SchedulerState

Counts = tuple[tuple[str, int], ...]
"""Requests, each with a number of drafts."""


def verify(state: SchedulerState, draft: Draft) -> Counts:
    """Count the drafts that the planned step computes, and the requests that have some as decodes.

    These requests are taken out of `draft.scheduled`: how far they get is known when the result is.
    """
    record, found = state.lockstep.in_flight[-1], []
    for name, (request, num_tokens) in list(draft.scheduled.items()):
        request.num_tokens_planned = request.num_tokens
        request.num_drafts = 0
        num_drafts = request.num_computed_tokens + num_tokens - request.num_tokens
        if num_drafts > 0:
            request.num_computed_tokens += num_tokens
            request.num_in_flight += 1
            record.samplers.append(request)
            record.drafted[name] = num_drafts
            found.append((name, num_drafts))
            draft.num_decodes += 1
            del draft.scheduled[name]
    return tuple(found)


def cut(state: SchedulerState, result: StepResult) -> StepResult:
    """The result of the oldest step without what lies behind the end of a request; call it before `update`.

    `accepted` of what is returned pairs each request whose drafts were verified, and that was not dropped
    meanwhile, with the number of accepted ones. O(tokens that came).
    """
    record = state.lockstep.in_flight[0]
    if not record.drafted:
        return result
    if result.tokens is None:
        return _cut_counts(state, record, result)
    requests, counts, ended = state.requests, dict[str, int](), set[str]()
    tokens: list[tuple[str, int]] = []
    for name, token in result.tokens:
        if name not in record.drafted or name in record.dropped:
            tokens.append((name, token))
        elif name not in ended:
            count = counts[name] = counts.get(name, 0) + 1
            tokens.append((name, token))
            request = requests[name]
            if token in request.stop_tokens or request.num_tokens + count >= request.length_limit:
                ended.add(name)
    accepted = tuple((name, count - 1) for name, count in counts.items())
    _check(record, accepted)
    return replace(result, tokens=tuple(tokens), accepted=accepted)


def _cut_counts(state: SchedulerState, record: InFlight, result: StepResult) -> StepResult:
    """The same where tokens are only counted: a request that its limit ends first has met no end token."""
    accepted, late = [], set[str]()
    _check(record, result.accepted)
    for name, count in result.accepted:
        if name not in record.dropped:
            request = state.requests[name]
            most = request.length_limit - request.num_tokens - 1
            if count > most:
                late.add(name)
            accepted.append((name, min(count, most)))
    ended = tuple(name for name in result.ended if name not in late)
    return replace(result, ended=ended, accepted=tuple(accepted))


def _check(record: InFlight, accepted: Counts) -> None:
    for name, count in accepted:
        if not 0 <= count <= record.drafted.get(name, -1):
            raise ValueError(
                f"step {record.step} accepted {count} drafts of {name}, of {record.drafted.get(name, 0)}"
            )


def take_back(state: SchedulerState, record: InFlight, accepted: Counts) -> None:
    """Count accepted drafts as tokens, and rejected ones as not computed."""
    service = state.lockstep.service
    for name, count in accepted:
        request = state.requests[name]
        request.num_tokens += count
        request.num_computed_tokens -= record.drafted[name] - count
        if service is not None:
            for _ in range(count):
                service.sample(request)


def offer(state: SchedulerState, drafts: Counts, dropped: set[str]) -> None:
    """Note the drafts that the backend keeps for the next step; requests that ended meanwhile have none."""
    for name, num_drafts in drafts:
        request = state.requests.get(name)
        if request is not None and _decodes(request) and name not in dropped:
            state.settle(request)
            request.num_drafts = num_drafts


def _decodes(request: Request) -> bool:
    return request.status is Status.RUNNING and request.decodes_on_wire
