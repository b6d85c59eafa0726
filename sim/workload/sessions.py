"""Sessions: several requests of one client, each asked a pause after the answer to the last.

A turn's prompt holds all that was said before: the system prompt, earlier prompts and answers. The
same serves conversations, with a human's pauses, and agents, with those of their tools.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict

from actors.core.config import ConfigError
from sim.trace.record import TraceRequest
from sim.workload import stream
from sim.workload.distributions import STRICT, Fixed, Lengths

BLOCK_TOKENS = 16
"""Tokens that one id of a prompt's contents names."""


@dataclass(frozen=True, slots=True)
class SystemPrompts:
    """`count` prompts of `tokens` tokens before everything else, shared by sessions.

    The k-th most popular is used in proportion to k ** -exponent.
    """

    tokens: int
    count: int = 1
    exponent: float = 1.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.count < 1 or not 0 <= self.exponent < np.inf:
            raise ConfigError(
                f"system_prompts has tokens {self.tokens}, count {self.count}, exponent"
                f" {self.exponent:g}: need at least 1, 1 and 0"
            )


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations by their turns, the pauses between (log-normal, seconds), and what each turn adds.

    `followup` is the tokens that a turn adds to what was said; the first is the workload's
    `prompt`. A session ends before its prompt would pass `max_prompt_tokens`.
    """

    turns: Lengths
    followup: Lengths
    pause_mean_s: float
    pause_median_s: float
    max_prompt_tokens: int = 32768
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not 0 < self.pause_median_s <= self.pause_mean_s < np.inf:
            raise ConfigError(
                f"pause_median_s ({self.pause_median_s:g}) must be above 0 and at most"
                f" pause_mean_s ({self.pause_mean_s:g})"
            )
        if self.max_prompt_tokens < 1:
            raise ConfigError(f"max_prompt_tokens is {self.max_prompt_tokens}: at least 1")

    def pauses(self, rng: np.random.Generator, count: int) -> list[float]:
        """`count` pauses in whole microseconds."""
        sigma = np.sqrt(2 * np.log(self.pause_mean_s / self.pause_median_s))
        drawn = rng.lognormal(np.log(self.pause_median_s), sigma, count)
        rounded: list[float] = np.maximum(drawn.round(6), 1e-6).tolist()
        return rounded


ONE_TURN = Sessions(Fixed(1), Fixed(1), 1.0, 1.0, max_prompt_tokens=2**62)


class Contents:
    """Names for what prompts contain, so that equal beginnings have equal names."""

    def __init__(self, seed: int, system: SystemPrompts | None, num_sessions: int) -> None:
        self._system_tokens = 0 if system is None else system.tokens
        self._shared_blocks = self._system_tokens // BLOCK_TOKENS
        count = 1 if system is None else system.count
        weights = np.arange(1, count + 1, dtype=np.float64) ** -(system.exponent if system else 0)
        rng = stream(seed, "system prompts")
        self._which: list[int] = rng.choice(count, num_sessions, p=weights / weights.sum()).tolist()
        self._next = count * self._shared_blocks

    def begin(self, session: int, num_tokens: int) -> list[int]:
        """The ids of a first prompt: its system prompt's, then new ones."""
        first = self._which[session] * self._shared_blocks
        ids = list(range(first, first + min(self._shared_blocks, num_tokens // BLOCK_TOKENS)))
        return self.go_on(ids, len(ids) * BLOCK_TOKENS, num_tokens)

    def go_on(self, ids: list[int], num_known_tokens: int, num_tokens: int) -> list[int]:
        """The ids of a prompt that begins with `num_known_tokens` named by `ids`."""
        kept = ids[: num_known_tokens // BLOCK_TOKENS]
        num_new = num_tokens // BLOCK_TOKENS - len(kept)
        self._next += num_new
        return [*kept, *range(self._next - num_new, self._next)]


def session_rows(
    seed: int,
    starts_s: list[float],
    prompts: list[int],
    sessions: Sessions | None,
    output: Lengths,
    system: SystemPrompts | None,
) -> Iterator[tuple[int, TraceRequest]]:
    """The turns of every session with the number of the session, session by session.

    A later turn's `arrival_s` is the earliest possible: as if answers took no time.
    """
    plan, count = sessions or ONE_TURN, len(starts_s)
    turns = plan.turns.draw(stream(seed, "turns"), count).tolist()
    total = sum(turns)
    outputs = output.draw(stream(seed, "output lengths"), total).tolist()
    followups = plan.followup.draw(stream(seed, "followups"), total).tolist()
    pauses = plan.pauses(stream(seed, "pauses"), total)
    named = sessions is not None or system is not None
    contents = Contents(seed, system, count)
    system_tokens = 0 if system is None else system.tokens
    row = 0
    for session, (start_s, first, num_turns) in enumerate(zip(starts_s, prompts, turns, strict=True)):
        arrival_s, tokens = start_s, first + system_tokens
        ids = contents.begin(session, tokens) if named else []
        previous: str | None = None
        for turn in range(num_turns):
            name = f"s{session}.{turn}"
            if turn and tokens > plan.max_prompt_tokens:
                row += num_turns - turn
                break
            yield (
                session,
                TraceRequest(
                    name,
                    arrival_s,
                    tokens,
                    outputs[row],
                    tuple(ids) if named else None,
                    BLOCK_TOKENS if named else 0,
                    session=f"s{session}" if sessions else None,
                    after=previous,
                    pause_s=pauses[row] if previous else 0.0,
                ),
            )
            said = tokens + outputs[row]
            known, tokens = tokens, said + followups[row]
            if named:
                ids = contents.go_on(ids, known, tokens)
            row, previous = row + 1, name
            if turn + 1 < num_turns:
                arrival_s = round(arrival_s + pauses[row], 6)
