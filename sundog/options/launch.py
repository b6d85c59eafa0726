"""Options of vLLM's launch lines without effect here, accepted so that such a line works."""

from dataclasses import dataclass, replace
from typing import TypeVar

from sundog.ends import remark
from sundog.options.row import AnyText, Switch, option, rows
from sundog.options.serving import Serving

SECTION = "Of vLLM's launch lines, without effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options of vLLM that have no effect here."""

    trust_remote_code: bool = option(
        False, Switch(pair=False), "Code of model folders is never run.", section=SECTION, rare=True
    )
    swap_space: str | None = option(
        None, AnyText("GIB"), "Preempted requests recompute.", section=SECTION, rare=True
    )
    disable_log_requests: bool = option(
        False, Switch(pair=False), "The same as --no-log-requests.", section=SECTION, rare=True
    )
    limit_mm_per_prompt: str | None = option(
        None, AnyText("JSON"), "Prompts are text.", section=SECTION, rare=True
    )
    enable_prompt_tokens_details: bool = option(
        False,
        Switch(pair=False),
        "Usage always says how much of a prompt was cached.",
        section=SECTION,
        rare=True,
    )
    disable_custom_all_reduce: bool = option(
        False, Switch(pair=False), "Ranks always use their own all-reduce.", section=SECTION, rare=True
    )
    uvicorn_log_level: str | None = option(
        None, AnyText("LEVEL"), "Hypercorn serves.", section=SECTION, rare=True
    )


ServingT = TypeVar("ServingT", bound=Serving)


def launched(serving: ServingT, launch: LaunchOptions, *more: str) -> ServingT:
    """Return the server's options with the launch line's changes; logs a remark on options without effect.

    `more` are further options without effect.
    """
    given = [row for row in rows(LaunchOptions) if getattr(launch, row.name) != row.default]
    if idle := [*more, *(str(row.flag) for row in given if row.name != "disable_log_requests")]:
        remark(f"without effect here: {', '.join(idle)}")
    return replace(serving, log_requests=False) if launch.disable_log_requests else serving
