"""Versions of vLLM that can be predicted, and the differences between them."""

from typing import Literal

from actors.core.config import ConfigError

NEWEST = "0.33"
"""The version whose behaviour is predicted by default."""
OLDEST = (0, 8)
"""The first vLLM whose default is the engine that is predicted (V1)."""
ASYNC_SINCE = (0, 14)
"""The first vLLM that schedules asynchronously unless told not to."""
ASYNC_STAGES_SINCE = (0, 32)
"""The first vLLM known to do so with stages of layers: its older model runner cannot."""


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


def decisions_of(version: str) -> Literal["0.32", "0.33"]:
    """Return the version with the same scheduling decisions as this one."""
    return "0.33" if parse_version(version) >= (0, 33) else "0.32"


def is_newer(version: str) -> bool:
    """Return True if this version is newer than any that Sundog knows."""
    return parse_version(version) > parse_version(NEWEST)
