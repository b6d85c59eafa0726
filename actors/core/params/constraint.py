"""What an answer must look like, as its client says it: text that any process can read."""

import enum
from dataclasses import dataclass, field


class ConstraintKind(enum.Enum):
    """How the text of a constraint is to be read."""

    JSON = "json"
    """A JSON schema."""
    REGEX = "regex"
    """A regular expression that the whole answer matches."""
    CHOICE = "choice"
    """A JSON list of strings, one of which the answer is."""
    GRAMMAR = "grammar"
    """A grammar in EBNF (GBNF) or Lark."""
    STRUCTURAL_TAG = "structural_tag"
    """A JSON object that says which tags may stand in free text, and what they hold."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer of one request must look like. The front checks it, the backend keeps to it.

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
