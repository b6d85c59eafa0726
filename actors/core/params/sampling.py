"""How the tokens of one request are chosen."""

from dataclasses import dataclass

from actors.core.params.constraint import Constraint
from actors.core.params.pooling import Pooling
from actors.core.params.repetition import Repetition


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request, under vLLM's names and with vLLM's meaning.

    `temperature` 0 is greedy. `top_k` None and `top_p` 1.0 switch their filters off, as `min_p` 0.0,
    `repetition_penalty` 1.0 and the other penalties' 0.0 do. `seed` None draws from the engine's own stream.
    `logit_bias` pairs token and bias, each token once. `bad_words` are as the client wrote them;
    `bad_words_token_ids` are the sequences of tokens that they became. `allowed_token_ids` None allows all.

    `logprobs` asks for the log probability of each new token and of that many likeliest ones (0: of the new
    token alone), or of `logprob_token_ids` instead; `prompt_logprobs` for those of the prompt's tokens.
    `constraint` says what the answer must look like, behind the token `constraint_after` if that is given.
    `thinking_token_budget` bounds the tokens of each section of reasoning, between the two tokens `thought`.
    With `pooling` the prompt's vector is the answer: one token is counted, and means nothing.

    The scheduler reads the limits, the stop tokens and whether `prompt_logprobs` are wanted; the backend
    reads the rest. Stop strings, `repetition` and special tokens concern AsyncLLM alone: with
    `include_stop_str_in_output` the text ends with what stopped it, and special tokens have a text where
    `skip_special_tokens` is off, without spaces between them where `spaces_between_special_tokens` is, too.
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
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    repetition: Repetition | None = None
    constraint: Constraint | None = None
    constraint_after: int | None = None
    thinking_token_budget: int | None = None
    thought: tuple[int, int] | None = None
    pooling: Pooling | None = None


DEFAULTS = Sampling()
