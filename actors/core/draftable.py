"""Which requests may have drafts."""

from dataclasses import replace

from actors.core.params.sampling import DEFAULTS, Sampling

FREE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "allowed_token_ids",
)
"""Parameters by which a token depends on its position, but not on the tokens right before it."""


def may_draft(sampling: Sampling) -> bool:
    """Whether tokens of such a request can be verified side by side; the others decode one by one.

    Penalties, bad words and whatever else looks at the tokens so far would need each draft's own past;
    log probabilities are given for one token a step.
    """
    return replace(sampling, **{name: getattr(DEFAULTS, name) for name in FREE}) == DEFAULTS
