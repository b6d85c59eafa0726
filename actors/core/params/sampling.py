"""Sampling parameters of one request, and the records that they are made of."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: low-rank changes to a model's layers. `path` is its origin, and in its blocks' keys.

    `version` tells those apart that were loaded under one name while a server ran; 0: it came at the start.
    """

    name: str
    path: str
    version: int = 0


class ConstraintKind(enum.Enum):
    """The language that the text of a constraint is written in."""

    JSON = "json"
    """A JSON schema that the answer fits."""
    REGEX = "regex"
    """A regular expression that the whole answer matches."""
    CHOICE = "choice"
    """A JSON list of strings, one of which the answer is."""
    GRAMMAR = "grammar"
    """A grammar in EBNF (GBNF) or Lark."""
    STRUCTURAL_TAG = "structural_tag"
    """A JSON object that says which tags may stand in free text, and what they hold."""
    CALLS_OR_JSON = "calls_or_json"
    """A JSON object: the `schema` of an answer, or else the way in which `names` may be called."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A form that the answer of one request must have. The front checks it, the backend keeps to it.

    `any_whitespace` allows whitespace between the tokens of JSON, `whitespace_pattern` says which;
    `closed_objects` forbids properties that a schema does not name. `param` is the field that a client gave
    it in, for refusals; it does not tell constraints apart.
    """

    kind: ConstraintKind
    text: str
    any_whitespace: bool = True
    whitespace_pattern: str | None = None
    closed_objects: bool = False
    param: str = field(default="structured_outputs", compare=False)


@dataclass(frozen=True, slots=True)
class Pooling:
    """The vector of a prompt: its first `dimensions` numbers (None: all), scaled to length 1 if `normalise`.

    `normalise` None does what the model's own files say.
    """

    dimensions: int | None = None
    normalise: bool | None = None


@dataclass(frozen=True, slots=True)
class Repetition:
    """An answer ends when its last tokens are `min_count` times the same `min_size` to `max_size` tokens.

    This is vLLM's `repetition_detection`.
    """

    min_size: int
    max_size: int
    min_count: int

    @property
    def most_tokens(self) -> int:
        """The number of last tokens that `ends` looks at."""
        return self.max_size * self.min_count

    def ends(self, tokens: Sequence[int]) -> bool:
        """Return True if `tokens` end so. O(sizes), and O(`most_tokens`) for each that may be one."""
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
"""Parameters by which a token depends on its position, but not on the tokens right before it."""


def may_draft(sampling: Sampling) -> bool:
    """Return True if tokens of such a request can be verified side by side; others decode one by one.

    Penalties, bad words and whatever else looks at the tokens so far would need each draft's own past;
    log probabilities are given for one token a step.
    """
    return replace(sampling, **{name: getattr(DEFAULTS, name) for name in _DRAFTABLE}) == DEFAULTS
