"""Versions of vLLM that can be predicted, and the differences between them.

What a version decides otherwise than the one before is one claim of `Decisions`; how each was compared with
vLLM itself, `docs/vllm.md` says.
"""

from dataclasses import dataclass
from typing import Final, Literal

from sundog.actors.core.config_error import ConfigError

NEWEST = "0.33"
"""The version whose behaviour is predicted by default."""
OLDEST = (0, 8)
"""The first vLLM whose default is the engine that is predicted (V1)."""
ASYNC_SINCE = (0, 14)
"""The first vLLM that schedules asynchronously unless told not to."""
ASYNC_STAGES_SINCE = (0, 32)
"""The first vLLM known to do so with stages of layers: its older model runner cannot."""

KV_BALANCED_SINCE = (0, 27)
"""The first vLLM whose balancer of data-parallel ranks looks at their KV cache."""


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor of `0.19`, `v0.19.1` or `0.19.0rc1`; ConfigError for what is none or too old."""
    parts = text.strip().removeprefix("v").split(".")
    if len(parts) >= 2 and parts[0].isdecimal() and parts[1].isdecimal():
        version = int(parts[0]), int(parts[1])
        if version >= OLDEST:
            return version
        raise ConfigError(
            f"engine_version is {text}: vLLM before 0.8 has another engine, which is not predicted; give"
            " 0.8 or later"
        )
    raise ConfigError(f"engine_version is {text!r}: give a version of vLLM, as in 0.19")


def is_async(version: str, num_stages: int = 1) -> bool:
    """Return True if this version plans a step while the one before it runs, by default."""
    return parse_version(version) >= (ASYNC_SINCE if num_stages == 1 else ASYNC_STAGES_SINCE)


Decided = Literal["0.32", "0.33"]
"""A version whose decisions are known; those of any other are the ones of the nearest."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The scheduling decisions in which versions of vLLM differ.

    `goes_on_after_own_preemption`: the running requests behind one that had to preempt itself are scheduled
    in the same step. `registers_drafted`: the blocks that accepted drafts fill join the prefix cache with the
    result of their step; else when the next step is planned. `passes_over_unschedulable`: a waiting request
    that may compute no token now keeps nobody behind it waiting. `holds_prefills`: an engine of its own goes
    by `prefill_schedule_interval`, which is for ranks that go in step otherwise.
    """

    goes_on_after_own_preemption: bool
    registers_drafted: bool
    passes_over_unschedulable: bool
    holds_prefills: bool


DECISIONS: Final = {
    "0.32": Decisions(
        goes_on_after_own_preemption=False,
        registers_drafted=False,
        passes_over_unschedulable=False,
        holds_prefills=False,
    ),
    "0.33": Decisions(
        goes_on_after_own_preemption=True,
        registers_drafted=True,
        passes_over_unschedulable=True,
        holds_prefills=True,
    ),
}


def decisions_of(version: str) -> Decided:
    """Return the version with the same scheduling decisions as this one."""
    return "0.33" if parse_version(version) >= (0, 33) else "0.32"


def weighs_kv(version: str) -> bool:
    """Return True if this version balances data-parallel ranks by their KV cache, too."""
    return parse_version(version) >= KV_BALANCED_SINCE


def is_newer(version: str) -> bool:
    """Return True if this version is newer than any that Sundog knows."""
    return parse_version(version) > parse_version(NEWEST)
