"""Apply the result of a step: new tokens, accepted drafts, and the requests that end.

Requests end in the order in which they were scheduled, and their blocks are free at once. Cost is O(new
tokens), two comparisons each; if tokens are only counted, O(ends).

Speculative decoding follows vLLM V1: a draft is computed like a known token and takes budget and a slot.
After the step, the tokens from the first rejected draft on count as not computed. The request keeps its
blocks, which its next tokens fill. Blocks get their keys only when all their tokens are known. A preempted
request loses its drafts. Law: tokens, ends and the order of ends are those of decoding without drafts, in
fewer steps.
"""

from collections import Counter
from dataclasses import replace

from sundog.actors.core.batch import Finish, StepResult
from sundog.actors.core.policies.guard import ask_each
from sundog.actors.core.queue.lockstep import InFlight
from sundog.actors.core.request import Request, Status
from sundog.actors.core.step.commit import admission_order
from sundog.actors.core.step.state import SchedulerState

Counts = tuple[tuple[str, int], ...]
"""Numbers of drafts by request."""
Failures = tuple[tuple[str, str], ...]
"""Reasons why requests cannot continue."""


def update(state: SchedulerState, result: StepResult) -> list[Finish]:
    """Advance the state by a finished step, or decode run; return the requests that ended.

    The steps of a run after its first have been planned by `extend`, and drafts have been through `cut`.
    """
    lockstep = state.lockstep
    record = lockstep.take_oldest()
    if record.step != result.step:
        raise ValueError(f"the result of step {result.step} came, of {record.step} was expected")
    lockstep.done = last_step = record.step + len(result.end_times_s) - 1
    lockstep.done_s = result.end_times_s[-1]
    if record.firsts:
        _note_firsts(state, record, result.failed)
    samplers = _samplers(state, record) if record.samplers else record.samplers
    if record.drafted:
        _take_back(state, record, result.accepted)
    grown = samplers
    if lockstep.may_expire(last_step):
        grown = samplers + lockstep.due_to_expire(last_step)
    ended = _ended(state, record, result, grown)
    if record.computed:
        _offload(state, record)
    if state.registers_late:
        _register(state, samplers, last_step)
    if result.failed:
        failed = _fail(state, result.failed, record.dropped)
        names = {finish.request_id for _, finish in failed}
        ended = failed + [pair for pair in ended or [] if pair[1].request_id not in names]
    if ended and len(ended) > 1:
        ended.sort(key=_order)
    if state.tells_sampled:
        _tell_sampled(state, samplers, result.failed)
    finished = _end(state, ended) if ended else []
    if result.drafts:
        _offer(state, result.drafts, record.dropped)
    lockstep.end(record)
    return finished


def _ended(
    state: SchedulerState, record: InFlight, result: StepResult, grown: list[Request]
) -> list[tuple[Request, Finish]] | None:
    """Return the requests that the step's tokens end, if any; `grown` may have reached their limits."""
    if result.tokens is not None:
        return _append(state, result.tokens, record.dropped)
    return _count(state, result.ended, grown, record.dropped) if result.ended or grown else None


def _end(state: SchedulerState, ended: list[tuple[Request, Finish]]) -> list[Finish]:
    """Remove requests from the state; return their ends, of some as handed over."""
    finished: list[Finish] = []
    for request, finish in ended:
        if request.submit.hands_over and finish.reason != "error":
            finish = Finish(request.request_id, "handed", block_ids=tuple(request.block_ids))
            state.hand_over(request)
        else:
            state.finish(request)
        finished.append(finish)
    return finished


def _samplers(state: SchedulerState, record: InFlight) -> list[Request]:
    """Return the requests outside the lockstep that sampled in the step, and count their tokens."""
    samplers = record.samplers
    if record.dropped:
        samplers = [request for request in samplers if request.request_id not in record.dropped]
    for request in samplers:
        request.num_tokens += 1
        request.num_in_flight -= 1
        request.last_token_s = state.lockstep.done_s
        if state.lockstep.service is not None:
            state.lockstep.service.sample(request)
        if request.status is Status.PREEMPTED:
            state.waiting.renew(request)
    return samplers


def _note_firsts(state: SchedulerState, record: InFlight, failed: Failures) -> None:
    """Record the time of first tokens, except those of requests that ended meanwhile."""
    without = record.dropped
    if failed:
        without = without.union([name for name, _ in failed])
    for request in record.firsts:
        if request.first_token_s is None and request.request_id not in without:
            request.first_token_s = state.lockstep.done_s


def _offload(state: SchedulerState, record: InFlight) -> None:
    """Copy the blocks that the step has filled to the host's memory, if it has a tier."""
    for request, num_blocks, is_whole in record.computed:
        state.kv.offload(request, num_blocks, state.lockstep.done_s, is_whole=is_whole)


def _tell_sampled(state: SchedulerState, samplers: list[Request], failed: Failures) -> None:
    """Call the policy's `sampled` for requests that got a token, in order of admission. O(running)"""
    done, without = state.lockstep.done, {name for name, _ in failed}
    members = [request for request in state.lockstep.members.values() if request.joined <= done]
    told = sorted(samplers + members, key=admission_order)
    told = [request for request in told if request.request_id not in without]
    ask_each(state.policy, "sampled", told, state.view)


def _order(ended: tuple[Request, Finish]) -> int:
    return ended[0].order


def _append(
    state: SchedulerState, tokens: tuple[tuple[str, int], ...], dropped: set[str]
) -> list[tuple[Request, Finish]]:
    ended = []
    requests = state.requests
    for name, token in tokens:
        request = requests.get(name)
        if request is None or name in dropped:
            continue
        token_ids = request.token_ids
        assert token_ids is not None, f"{name} came without tokens and was given one"
        token_ids.append(token)
        if token in request.stop_tokens or len(token_ids) >= request.length_limit:
            ended.append((request, _finish(request, token)))
    return ended


def _finish(request: Request, token: int) -> Finish:
    """Return how the last token of a request ends it: end token, stop token, or length."""
    sampling = request.submit.sampling
    if token == request.submit.eos_token_id and not sampling.ignore_eos:
        return Finish(request.request_id, "stop")
    if token in sampling.stop_token_ids:
        return Finish(request.request_id, "stop", token)
    return Finish(request.request_id, "length")


def _count(
    state: SchedulerState, end_tokens: tuple[str, ...], grown: list[Request], dropped: set[str]
) -> list[tuple[Request, Finish]]:
    """Return the requests that end if tokens are only counted: by an end token, else at their length
    limit.
    """
    requests = state.requests
    ended = {
        name: (requests[name], Finish(name, "stop"))
        for name in end_tokens
        if name in requests and name not in dropped
    }
    for request in grown:
        name = request.request_id
        if name in requests and state.lockstep.num_tokens(request) >= request.length_limit:
            ended.setdefault(name, (request, Finish(name, "length")))
    return list(ended.values())


def _fail(state: SchedulerState, failed: Failures, dropped: set[str]) -> list[tuple[Request, Finish]]:
    """Return the ends of requests that the backend could not continue."""
    requests = state.requests
    return [
        (requests[name], Finish(name, "error", error=message))
        for name, message in failed
        if name in requests and name not in dropped
    ]


def _register(state: SchedulerState, samplers: list[Request], step: int) -> None:
    """Register full blocks of which the last token became known only now: drafts, and steps planned ahead."""
    lockstep = state.lockstep
    filling = lockstep.due_to_fill(step)
    touched = sorted(samplers + filling, key=admission_order) if samplers else filling
    for request in touched:
        if request.status is Status.RUNNING:
            known = lockstep.num_computed(request) - lockstep.num_in_flight(request)
            state.kv.register(request, known)


def cut(state: SchedulerState, result: StepResult) -> StepResult:
    """Return the result of the oldest step without tokens behind the end of a request. Call it before
    `update`.

    In the returned result, `accepted` pairs each request whose drafts were verified, unless it was dropped
    meanwhile, with the number of accepted drafts; `surplus` has the accepted drafts behind its end. O(new
    tokens).
    """
    record = state.lockstep.oldest
    assert record is not None, "no step is in flight"
    if not record.drafted:
        return result
    if result.tokens is None:
        return _cut_counts(state, record, result)
    requests, counts, ended, surplus = state.requests, dict[str, int](), set[str](), Counter[str]()
    tokens: list[tuple[str, int]] = []
    for name, token in result.tokens:
        if name not in record.drafted or name in record.dropped:
            tokens.append((name, token))
        elif name in ended:
            surplus[name] += 1
        else:
            count = counts[name] = counts.get(name, 0) + 1
            tokens.append((name, token))
            request = requests[name]
            if token in request.stop_tokens or request.num_tokens + count >= request.length_limit:
                ended.add(name)
    accepted = tuple((name, count - 1) for name, count in counts.items())
    _check_accepted(record, accepted)
    return replace(result, tokens=tuple(tokens), accepted=accepted, surplus=tuple(surplus.items()))


def _cut_counts(state: SchedulerState, record: InFlight, result: StepResult) -> StepResult:
    """Cut a result of counted tokens at length limits.

    A request that reaches its limit before the end token is not reported as having stopped.
    """
    accepted, late, surplus = [], set[str](), Counter(dict(result.surplus))
    _check_accepted(record, result.accepted)
    for name, count in result.accepted:
        if name not in record.dropped:
            request = state.requests[name]
            most = request.length_limit - request.num_tokens - 1
            if count > most:
                late.add(name)
                surplus[name] += count - most
            accepted.append((name, min(count, most)))
    ended = tuple(name for name in result.ended if name not in late)
    kept = tuple((name, count) for name, count in surplus.items() if name not in record.dropped)
    return replace(result, ended=ended, accepted=tuple(accepted), surplus=kept)


def _check_accepted(record: InFlight, accepted: Counts) -> None:
    for name, count in accepted:
        if not 0 <= count <= record.drafted.get(name, -1):
            raise ValueError(
                f"step {record.step} accepted {count} drafts of {name}, of {record.drafted.get(name, 0)}"
            )


def _take_back(state: SchedulerState, record: InFlight, accepted: Counts) -> None:
    """Count accepted drafts as tokens, and rejected drafts as not computed."""
    service = state.lockstep.service
    for name, count in accepted:
        request = state.requests[name]
        request.num_tokens += count
        request.num_computed_tokens -= record.drafted[name] - count
        if service is not None:
            for _ in range(count):
                service.sample(request)


def _offer(state: SchedulerState, drafts: Counts, dropped: set[str]) -> None:
    """Record the drafts that the backend keeps; requests that have ended get none."""
    for name, num_drafts in drafts:
        request = state.requests.get(name)
        if request is not None and _decodes(request) and name not in dropped:
            state.settle(request)
            request.num_drafts = num_drafts


def _decodes(request: Request) -> bool:
    return request.status is Status.RUNNING and request.decodes_on_wire
