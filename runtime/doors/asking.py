"""A question for an answer as a door sends it to the server, and what the server says first."""

from dataclasses import dataclass

from actors.messages import Generate, Refused


@dataclass(frozen=True, slots=True)
class Asked:
    """A door asks for an answer; its streams have numbers from `first_stream` on, which the door gives."""

    first_stream: int
    generate: Generate

    def answered_by(self, answer: "Taken | Refused") -> "Asked":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Taken:
    """The graph has accepted what a door asked for (`Accepted`): its streams begin."""

    num_prompt_tokens: int
    may_be_refused: bool
    prompt_token_ids: tuple[int, ...] | None
