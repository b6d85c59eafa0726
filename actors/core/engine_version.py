"""Versions of vLLM that can be predicted, and the differences between them.

Each difference is one field of `Decisions`; docs/vllm.md describes how each was compared with vLLM itself.
"""

from typing import Final, Literal

from sundog.actors.core.config_error import ConfigError
from sundog.actors.core.records import dataclass

NEWEST = "0.33"
"""Version whose behaviour is predicted by default."""
OLDEST = (0, 8)
"""First version of vLLM with the V1 engine as default."""
ASYNC_SINCE = (0, 14)
"""First version of vLLM that schedules asynchronously by default."""
ASYNC_STAGES_SINCE = (0, 32)
"""First version of vLLM known to schedule pipeline stages asynchronously; the older model runner cannot."""

KV_BALANCED_SINCE = (0, 27)
"""First version of vLLM whose balancer of data-parallel ranks uses their KV cache usage."""


def parse_version(text: str) -> tuple[int, int]:
    """Return major and minor of `0.19`, `v0.19.1` or `0.19.0rc1`; ConfigError for other text or too old a
    version.
    """
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
    """Return whether this version plans a step while the previous one runs, by default."""
    return parse_version(version) >= (ASYNC_SINCE if num_stages == 1 else ASYNC_STAGES_SINCE)


Decided = Literal["0.32", "0.33"]
"""Version whose decisions were compared; other versions decide like the nearest one."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Scheduling decisions in which versions of vLLM differ.

    `goes_on_after_own_preemption`: after a request preempted itself, the running requests behind it are still
    scheduled in the same step. `registers_drafted`: blocks filled by accepted drafts enter the prefix cache
    with the result of their step, rather than when the next step is planned. `passes_over_unschedulable`: a
    waiting request that may compute no token now does not block those behind it. `holds_prefills`: a single
    engine honours `prefill_schedule_interval`, not only data-parallel ranks.
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
    """Return whether this version also balances data-parallel ranks by KV cache usage."""
    return parse_version(version) >= KV_BALANCED_SINCE


def is_newer(version: str) -> bool:
    """Return whether this version is newer than any that Sundog has rules for."""
    return parse_version(version) > parse_version(NEWEST)
