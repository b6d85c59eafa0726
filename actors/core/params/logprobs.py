"""Log probabilities of tokens, from the backend to the client, as plain numbers.

They come from the model's raw logits, before penalties, biases, bans and temperature (vLLM's `raw_logprobs`).
Only a grammar's mask is applied before.
"""

from sundog.actors.core.records import dataclass


@dataclass(slots=True)
class TokenLogprobs:
    """Log probability and rank of one token, and the likeliest tokens at its position.

    `rank` is the number of tokens at least as likely, itself included. `top_ids` and `top_logprobs` go
    together, the likeliest first: as many as requested, whether or not the token is one of them.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(slots=True)
class PromptLogprobs:
    """Log probabilities of consecutive prompt tokens of one request, the first at position `start`.

    Position 0 has none, as nothing comes before it. Parts come in order, but start again at the first after a
    preemption.
    """

    request_id: str
    start: int
    tokens: tuple[TokenLogprobs, ...]
