"""A trace of arrivals in seconds as a trace by steps: steps of one length, prompts made up.

Two prompts begin alike where the trace says that their contents do, and nowhere else; every answer is its
own. A request that comes after another's end comes at the earliest instant at which it could.
"""

import math
from collections.abc import Iterable

from actors.config import EngineConfig
from actors.core.config import ConfigError
from actors.core.request import Submit
from sim.schedule.step_trace import Row, StepTrace
from sim.trace.record import TraceRequest

MOST_TOKENS = 2**26
"""Of all requests together: a token takes eight bytes in the trace, and more while its request runs."""
OWN = 2**62
"""From here on tokens are of one request alone."""


def by_steps(requests: Iterable[TraceRequest], config: EngineConfig, step_s: float) -> StepTrace:
    """The trace; raises ConfigError for a request that cannot fit, and for more tokens than can be kept."""
    limits, rows, num_tokens = config.scheduler, list[Row](), 0
    for number, request in enumerate(requests):
        length = request.num_prompt_tokens + request.num_output_tokens
        if length > limits.max_model_len:
            raise ConfigError(
                f"request {request.request_id} has {length} tokens with its answer, and max_model_len is"
                f" {limits.max_model_len}: raise --max-model-len or leave it out"
            )
        num_tokens += length
        if num_tokens > MOST_TOKENS:
            raise ConfigError(f"the trace has more than {MOST_TOKENS:,} tokens: give --limit {number}")
        rows.append(_row(number, request, step_s))
    return StepTrace(
        config=limits,
        policy=config.policy,
        hash_algo=config.prefix_caching_hash_algo,
        rows=tuple(sorted(rows, key=lambda row: row.arrival_step)),
        events=(),
    )


def _row(number: int, request: TraceRequest, step_s: float) -> Row:
    own = OWN + number * 2**24
    submit = Submit(
        request_id=request.request_id,
        arrival_s=request.arrival_s,
        num_prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.num_output_tokens,
        prompt_token_ids=tuple(_prompt(request, own)),
        priority=request.priority,
        tenant=request.tenant,
        slo_ttft_s=request.slo_ttft_s,
    )
    outputs = (own - 1,) * request.num_output_tokens
    return Row(math.floor(request.arrival_s / step_s), submit, outputs)


def _prompt(request: TraceRequest, own: int) -> Iterable[int]:
    """A token for each of the prompt's: where contents are named, of the name and the place in it."""
    size, num_tokens = request.hash_block_tokens, request.num_prompt_tokens
    if request.hash_ids is None:
        return range(own, own + num_tokens)
    named = [name * size + place for name in request.hash_ids for place in range(size)][:num_tokens]
    return named + list(range(own, own + num_tokens - len(named)))
