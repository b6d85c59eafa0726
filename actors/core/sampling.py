"""How the tokens of one request are chosen."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request, under vLLM's names.

    `temperature` 0 is greedy. `top_k` None and `top_p` 1.0 switch their filters off.
    `seed` None draws from the engine's own stream. The scheduler reads the limits and stop
    tokens; the backend reads the rest; stop strings are watched by AsyncLLM alone.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


DEFAULTS = Sampling()
