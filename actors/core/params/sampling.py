"""Sampling parameters of one request, and the records they consist of."""

import enum
from collections.abc import Sequence
from dataclasses import field, replace

from sundog.actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA adapter: low-rank changes to a model's layers. `path` is its origin and part of its blocks' keys.

    `version` distinguishes adapters loaded under one name while a server runs; 0 for those given at the
    start.
    """

    name: str
    path: str
    version: int = 0


class ConstraintKind(enum.Enum):
    """Language of a constraint's text."""

    JSON = "json"
    """JSON schema of the answer."""
    REGEX = "regex"
    """Regular expression that matches the whole answer."""
    CHOICE = "choice"
    """JSON list of strings; the answer is one of them."""
    GRAMMAR = "grammar"
    """Grammar in EBNF (GBNF) or Lark."""
    STRUCTURAL_TAG = "structural_tag"
    """JSON object with the tags allowed in free text and the grammar of their contents."""
    CALLS_OR_JSON = "calls_or_json"
    """JSON object with the `schema` of an answer, or the format of calls of the functions `names`."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Required form of one request's answer; the front checks it and the backend enforces it.

    `any_whitespace` allows whitespace between JSON tokens, `whitespace_pattern` restricts it;
    `closed_objects` forbids properties that a schema does not name. `param` is the client's field, for error
    messages; it is ignored in comparisons.
    """

    kind: ConstraintKind
    text: str
    any_whitespace: bool = True
    whitespace_pattern: str | None = None
    closed_objects: bool = False
    param: str = field(default="structured_outputs", compare=False)


@dataclass(frozen=True, slots=True)
class Pooling:
    """Embedding request: the first `dimensions` numbers (None: all), scaled to length 1 if `normalise`.

    With `normalise` None the model's own files decide.
    """

    dimensions: int | None = None
    normalise: bool | None = None


@dataclass(frozen=True, slots=True)
class Repetition:
    """Stop rule: the last tokens are `min_count` copies of the same `min_size` to `max_size` tokens.

    This is vLLM's `repetition_detection`.
    """

    min_size: int
    max_size: int
    min_count: int

    @property
    def most_tokens(self) -> int:
        """Number of last tokens that `ends` reads."""
        return self.max_size * self.min_count

    def ends(self, tokens: Sequence[int]) -> bool:
        """Return whether `tokens` end in such a repetition. O(sizes), and O(`most_tokens`) per candidate
        size.
        """
        for size in range(self.min_size, self.max_size + 1):
            length = size * self.min_count
            if length > len(tokens):
                return False
            if tokens[-length:-size] == tokens[-length + size :]:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request, under vLLM's names and with vLLM's meaning.

    `temperature` 0 is greedy. `top_k` None and `top_p` 1.0 switch their filters off, as do `min_p` 0.0,
    `repetition_penalty` 1.0 and 0.0 for the other penalties. `seed` None uses the engine's own random stream.
    `logit_bias` pairs token and bias, each token once. `bad_words` are as the client wrote them;
    `bad_words_token_ids` are their token sequences. `allowed_token_ids` None allows all.

    `logprobs` requests the log probability of each new token and of that many likeliest ones (0: of the new
    token alone), or of `logprob_token_ids` instead; `prompt_logprobs` those of the prompt's tokens.
    `constraint` restricts the answer, after the token `constraint_after` if that is given.
    `thinking_token_budget` limits the tokens of each section of reasoning, between the two tokens `thought`.
    With `pooling` the prompt's vector is the answer: one meaningless token is counted.

    The scheduler reads the limits, the stop tokens and whether `prompt_logprobs` are requested; the backend
    reads the rest. Only AsyncLLM handles stop strings, `repetition` and special tokens: with
    `include_stop_str_in_output` the text ends with the stop string, and special tokens have a text if
    `skip_special_tokens` is off, without spaces between them if `spaces_between_special_tokens` is off, too.
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

_DRAFTABLE = (
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
"""Parameters whose effect depends on a token's position, but not on the preceding tokens."""


def may_draft(sampling: Sampling) -> bool:
    """Return whether drafts of the request can be verified in one step; others decode one by one.

    Penalties, bad words and everything else that reads the tokens so far would need each draft's own past;
    log probabilities are computed for one token a step.
    """
    return replace(sampling, **{name: getattr(DEFAULTS, name) for name in _DRAFTABLE}) == DEFAULTS
