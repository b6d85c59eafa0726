"""Log probabilities of tokens, as they travel from the backend to the client: plain numbers.

They are those of the model itself: of its logits as they came, before penalties, biases, bans and temperature
(vLLM's `raw_logprobs`). Only a grammar's mask comes before them.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class TokenLogprobs:
    """The log probability and rank of one token, and the likeliest tokens in its place.

    `rank` is the number of tokens at least as likely, itself included. `top_ids` and `top_logprobs` go
    together, the likeliest first: as many as were asked for, whether the token is one of them or not.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(slots=True)
class PromptLogprobs:
    """Log probabilities of neighbouring prompt tokens of one request, the first at position `start`.

    Position 0 has none, as nothing comes before it. Parts come in order, but after a preemption from the
    first on again.
    """

    request_id: str
    start: int
    tokens: tuple[TokenLogprobs, ...]
