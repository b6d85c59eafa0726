"""Take in the result of one step: new tokens, and which requests end by them.

Requests end in the order in which they were scheduled, and their blocks are free at once. Cost
is O(tokens that came), a constant of two comparisons each; where tokens are only counted, O(ends).
"""

from actors.core.batch import Finish, StepResult
from actors.core.queue.lockstep import InFlight
from actors.core.request import Request, Status
from actors.core.step.draft import admission_order
from actors.core.step.speculate import offer, take_back
from actors.core.step.state import SchedulerState


def update(state: SchedulerState, result: StepResult) -> list[Finish]:
    """Move the state on by a step, or a run of steps, that is done; returns the requests that ended.

    The steps of a run after its first have been planned by `extend`; what came of drafts has been through
    `speculate.cut`.
    """
    lockstep = state.lockstep
    record = lockstep.in_flight.pop(0)
    if record.step != result.step:
        raise ValueError(f"the result of step {result.step} came, of {record.step} was expected")
    lockstep.done = last_step = record.step + result.num_steps - 1
    samplers = _samplers(state, record) if record.samplers else []
    if record.drafted:
        take_back(state, record, result.accepted)
    expiring = lockstep.due_to_expire(last_step)
    if result.tokens is None:
        ended = _count(state, result.ended, samplers + expiring, record.dropped)
    else:
        ended = _append(state, result.tokens, record.dropped)
    if state.config.async_scheduling:
        _register(state, samplers, last_step)
    if result.failed:
        failed = _fail(state, result.failed, record.dropped)
        names = {finish.request_id for _, finish in failed}
        ended = failed + [pair for pair in ended if pair[1].request_id not in names]
    if len(ended) > 1:
        ended.sort(key=_order)
    for request, _ in ended:
        state.finish(request)
    if result.drafts:
        offer(state, result.drafts, record.dropped)
    return [finish for _, finish in ended]


def _samplers(state: SchedulerState, record: InFlight) -> list[Request]:
    """The requests that sampled in the step without being in lockstep any more; counts their tokens."""
    samplers = record.samplers
    if record.dropped:
        samplers = [request for request in samplers if request.request_id not in record.dropped]
    for request in samplers:
        request.num_tokens += 1
        request.num_in_flight -= 1
        if state.lockstep.service is not None:
            state.lockstep.service.sample(request)
        if request.status is Status.PREEMPTED:
            state.waiting.renew(request)
    return samplers


def _order(ended: tuple[Request, Finish]) -> int:
    return ended[0].order


def _append(
    state: SchedulerState, tokens: tuple[tuple[str, int], ...], dropped: set[str]
) -> list[tuple[Request, Finish]]:
    """Append the tokens; returns the requests that end by them."""
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


def _fail(
    state: SchedulerState, failed: tuple[tuple[str, str], ...], dropped: set[str]
) -> list[tuple[Request, Finish]]:
    """The requests that end because the backend could not go on with them."""
    requests = state.requests
    return [
        (requests[name], Finish(name, "error", error=message))
        for name, message in failed
        if name in requests and name not in dropped
    ]


def _finish(request: Request, token: int) -> Finish:
    """Why this last token ends the request: the end token, a stop token, or length."""
    sampling = request.submit.sampling
    if token == request.submit.eos_token_id and not sampling.ignore_eos:
        return Finish(request.request_id, "stop")
    if token in sampling.stop_token_ids:
        return Finish(request.request_id, "stop", token)
    return Finish(request.request_id, "length")


def _count(
    state: SchedulerState, end_tokens: tuple[str, ...], grown: list[Request], dropped: set[str]
) -> list[tuple[Request, Finish]]:
    """The requests that end where tokens are only counted: by an end token, else by length."""
    if not (end_tokens or grown):
        return []
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


def _register(state: SchedulerState, samplers: list[Request], step: int) -> None:
    """Register full blocks: under async scheduling a token is known, and a block has a key, only now."""
    lockstep = state.lockstep
    filling = lockstep.due_to_fill(step)
    touched = sorted(samplers + filling, key=admission_order) if samplers else filling
    for request in touched:
        if request.status is Status.RUNNING:
            known = lockstep.num_computed(request) - lockstep.num_in_flight(request)
            state.kv.register(request, known)
