"""Options of vLLM's launch lines, most of which change nothing here: they are taken, so that a line works."""

from dataclasses import dataclass, replace
from typing import TypeVar

from sundog.ends import remark
from sundog.options.row import AnyText, Switch, option, rows
from sundog.options.serving import Serving

SECTION = "Of vLLM's launch lines, without effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What vLLM's users give, and what has nothing to change here."""

    enforce_eager: bool = option(
        False,
        Switch(pair=False),
        "No CUDA graphs: steps on a GPU are recorded where they can be.",
        section=SECTION,
    )
    trust_remote_code: bool = option(
        False, Switch(pair=False), "Code of model folders is never run.", section=SECTION
    )
    swap_space: str | None = option(None, AnyText("GIB"), "Preempted requests recompute.", section=SECTION)
    disable_log_requests: bool = option(
        False, Switch(pair=False), "The same as --no-log-requests.", section=SECTION
    )
    limit_mm_per_prompt: str | None = option(None, AnyText("JSON"), "Prompts are text.", section=SECTION)
    enable_prompt_tokens_details: bool = option(
        False, Switch(pair=False), "Usage always says how much of a prompt was cached.", section=SECTION
    )
    disable_custom_all_reduce: bool = option(
        False, Switch(pair=False), "Ranks reduce by their own means.", section=SECTION
    )
    uvicorn_log_level: str | None = option(None, AnyText("LEVEL"), "Hypercorn serves.", section=SECTION)


ServingT = TypeVar("ServingT", bound=Serving)


def launched(serving: ServingT, launch: LaunchOptions) -> ServingT:
    """The server's options with what the launch line changes; a line says what has no effect."""
    given = [row for row in rows(LaunchOptions) if getattr(launch, row.name) != row.default]
    if idle := [str(row.flag) for row in given if row.name != "disable_log_requests"]:
        remark(f"without effect here: {', '.join(idle)}")
    return replace(serving, log_requests=False) if launch.disable_log_requests else serving
