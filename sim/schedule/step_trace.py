"""Trace by steps, in the golden format of `tests/golden/README.md`.

Missing, unknown or wrongly typed fields are refused in one line that names them.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from sundog.actors.block_hash import block_hasher
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.core.names import did_you_mean
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.queue.policy import Policy
from sundog.actors.core.request import Submit
from sundog.actors.policy_file import find_policy
from sundog.sim.files.lines import is_text

T = TypeVar("T")
When = Literal["input", "executing"]

TOP = ("config", "requests", "events")
OF_VLLM = (
    "max_num_seqs max_num_batched_tokens num_gpu_blocks block_size max_model_len enable_prefix_caching"
    " enable_chunked_prefill long_prefill_token_threshold long_prefill_token_threshold_adaptive"
    " async_scheduling scheduler_reserve_full_isl watermark max_num_active_seqs"
).split()
OF_OURS = (
    "max_overtakes",
    "preempt_for_priority",
    "victim",
    "pipeline_parallel_size",
    "prefill_schedule_interval",
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "keeps_states",
)
BESIDE = ("policy", "hash_algo", "eos_token_id")
REQUIRED = ("id", "arrival_step", "arrival_time", "prompt", "outputs", "max_tokens")
DRAFTED = "drafts"
SAMPLED = ("min_tokens", "ignore_eos", "stop_token_ids")
MOST_BLOCKS = 2**24
"""Most blocks of one pool: 2.3 GB of records."""
PASSED_ON = ("priority", "cache_salt", "tenant", "slo_ttft_s", "predicted_tokens", "slo_tpot_s", "slo_e2e_s")


@dataclass(frozen=True, slots=True)
class StepTraceRow:
    """Request that arrives before step `arrival_step`, with its samples in order."""

    arrival_step: int
    submit: Submit
    outputs: tuple[int, ...]
    drafts: tuple[tuple[int, int], ...] = ()
    """Numbers of drafts for each output: how many are proposed for its step, and how many are right."""


@dataclass(frozen=True, slots=True)
class AbortAt:
    """Abort of requests: before the plan of `step`, or while it executes."""

    step: int
    when: When
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResetAt:
    """Reset of the prefix cache before the plan of `step`."""

    step: int
    reset_running: bool
    when: When = "input"


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Rows and events in order."""

    config: SchedulerConfig
    policy: Policy
    hash_algo: str
    rows: tuple[StepTraceRow, ...]
    events: tuple[AbortAt | ResetAt, ...]


def parse_trace(trace: object, engine_version: str = "0.33") -> StepTrace:
    """Return the trace in parsed JSON. Raises ConfigError with the field and its allowed values."""
    if not isinstance(trace, dict):
        raise ConfigError("the trace is no JSON object with config, requests and events")
    for name in trace:
        _refuse_misspelt(name, TOP)
    config = _mapping("config", _get(trace, "config", "the trace"))
    eos = _of_type("config.eos_token_id", _get(config, "eos_token_id", "config"), int, none=True)
    limits = _scheduler_config(config, engine_version)
    rows = _parsed_rows(_list("requests", _get(trace, "requests", "the trace")), eos, limits)
    given = trace.get("events")
    events = _list("events", [] if given is None else given)
    policy, hash_algo = (str(_get(config, name, "config")) for name in ("policy", "hash_algo"))
    block_hasher(hash_algo)
    return StepTrace(
        config=limits,
        policy=find_policy(policy),
        hash_algo=hash_algo,
        rows=tuple(sorted(rows, key=lambda row: row.arrival_step)),
        events=tuple(sorted(map(_event, range(len(events)), events), key=lambda event: event.step)),
    )


def _scheduler_config(config: Mapping[str, Any], engine_version: str) -> SchedulerConfig:
    """Return the limits; a field of a wrong type is refused by name."""
    _refuse_unknown("config", config, (*OF_VLLM, *OF_OURS, *BESIDE))
    defaults = SchedulerConfig()
    values: dict[str, Any] = {"engine_version": engine_version, "leaves_uncomputed": True}
    for name in (*OF_VLLM, *(name for name in OF_OURS if name in config)):
        value, default = _get(config, name, "config"), getattr(defaults, name)
        kind = int if default is None else type(default)
        values[name] = _of_type(f"config.{name}", value, kind, none=default is None)
    num_blocks = _of_type("config.num_gpu_blocks", values["num_gpu_blocks"], int)
    if num_blocks > MOST_BLOCKS:
        raise ConfigError(f"config.num_gpu_blocks is {num_blocks}: it must be at most {MOST_BLOCKS:,}")
    return SchedulerConfig(**values)


def _parsed_rows(rows: list[Any], eos: int | None, limits: SchedulerConfig) -> list[StepTraceRow]:
    parsed: dict[str, StepTraceRow] = {}
    for index, row in enumerate(rows):
        where = f"requests[{index}]"
        parsed_row = _row(where, _mapping(where, row), eos)
        name, length = parsed_row.submit.request_id, parsed_row.submit.num_prompt_tokens
        if length > limits.max_model_len:
            raise ConfigError(f"{where}.prompt has {length} tokens, max_model_len is {limits.max_model_len}")
        if name in parsed:
            raise ConfigError(f"{where}.id is {name!r}, like an earlier request's: ids must be unique")
        parsed[name] = parsed_row
    return list(parsed.values())


def _row(where: str, row: Mapping[str, Any], eos: int | None) -> StepTraceRow:
    _refuse_unknown(where, row, (*REQUIRED, *SAMPLED, *PASSED_ON, DRAFTED))
    given: dict[str, Any] = {name: _get(row, name, where) for name in REQUIRED}
    prompt = _tokens(f"{where}.prompt", given["prompt"])
    if not prompt:
        raise ConfigError(f"{where}.prompt is empty: give at least one token")
    sampled = {"min_tokens": 0, "ignore_eos": False, "stop_token_ids": [], "priority": 0}
    sampled |= {name: row[name] for name in sampled if row.get(name) is not None}
    submit = Submit(
        request_id=_of_type(f"{where}.id", given["id"], str),
        arrival_s=_of_type(f"{where}.arrival_time", given["arrival_time"], float),
        num_prompt_tokens=len(prompt),
        max_tokens=_at_least(f"{where}.max_tokens", given["max_tokens"], 1),
        prompt_token_ids=prompt,
        sampling=Sampling(
            min_tokens=_at_least(f"{where}.min_tokens", sampled["min_tokens"], 0),
            stop_token_ids=_tokens(f"{where}.stop_token_ids", sampled["stop_token_ids"]),
            ignore_eos=_of_type(f"{where}.ignore_eos", sampled["ignore_eos"], bool),
        ),
        eos_token_id=eos,
        priority=_of_type(f"{where}.priority", sampled["priority"], int),
        cache_salt=_of_type(f"{where}.cache_salt", row.get("cache_salt"), str, none=True),
        tenant=_of_type(f"{where}.tenant", row.get("tenant"), str, none=True),
        slo_ttft_s=_of_type(f"{where}.slo_ttft_s", row.get("slo_ttft_s"), float, none=True),
        predicted_tokens=_of_type(f"{where}.predicted_tokens", row.get("predicted_tokens"), int, none=True),
        slo_tpot_s=_of_type(f"{where}.slo_tpot_s", row.get("slo_tpot_s"), float, none=True),
        slo_e2e_s=_of_type(f"{where}.slo_e2e_s", row.get("slo_e2e_s"), float, none=True),
    )
    arrival_step = _at_least(f"{where}.arrival_step", given["arrival_step"], 0)
    outputs = _tokens(f"{where}.outputs", given["outputs"])
    return StepTraceRow(arrival_step, submit, outputs, _drafts(f"{where}.{DRAFTED}", row.get(DRAFTED, [])))


def _event(index: int, event: object) -> AbortAt | ResetAt:
    where = f"events[{index}]"
    row = _mapping(where, event)
    step = _at_least(f"{where}.step", _get(row, "step", where), 0)
    when, op = (_get(row, name, where) for name in ("when", "op"))
    if when not in ("input", "executing"):
        raise ConfigError(f"{where}.when is {when!r}: it must be input or executing")
    if op == "abort":
        _refuse_unknown(where, row, ("step", "when", "op", "ids"))
        names = _list(f"{where}.ids", _get(row, "ids", where))
        return AbortAt(step, when, tuple(_of_type(f"{where}.ids", name, str) for name in names))
    if op != "reset_prefix_cache":
        raise ConfigError(f"{where}.op is {op!r}: known are abort and reset_prefix_cache")
    if when != "input":
        raise ConfigError(f"{where}.when is {when!r}: a reset is taken before a plan: input")
    _refuse_unknown(where, row, ("step", "when", "op", "reset_running"))
    return ResetAt(step, _of_type(f"{where}.reset_running", row.get("reset_running", False), bool))


# --- fields --------------------------------------------------------------------------------------


def _get(row: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in row:
        raise ConfigError(f"{where} has no {name}")
    return row[name]


def _of_type(where: str, value: object, kind: type[T], *, none: bool = False) -> Any:
    if value is None and none:
        return None
    is_number = kind in (int, float) and not isinstance(value, bool)
    if is_number and isinstance(value, int if kind is int else int | float) and math.isfinite(value):
        return kind(value)  # type: ignore[call-arg]  # int or float: of one argument
    if kind in (str, bool) and isinstance(value, kind) and (not isinstance(value, str) or is_text(value)):
        return value
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise ConfigError(f"{where} is {value!r}: it must be {names[cast(type, kind)]}{' or null' * none}")


def _at_least(where: str, value: object, least: int) -> int:
    number: int = _of_type(where, value, int)
    if number < least:
        raise ConfigError(f"{where} is {number}: it must be at least {least}")
    return number


def _list(where: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {str(value)[:40]!r}: it must be a list")
    return value


def _mapping(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {str(value)[:40]!r}: it must be an object")
    return value


def _tokens(where: str, value: object) -> tuple[int, ...]:
    tokens = _list(where, value)
    for token in tokens:
        _at_least(where, token, 0)
    return tuple(tokens)


def _drafts(where: str, value: object) -> tuple[tuple[int, int], ...]:
    drafts = []
    for each in _list(where, value):
        pair = _tokens(where, each)
        if len(pair) != 2 or pair[1] > pair[0]:
            raise ConfigError(
                f"{where} has {each!r}: give [offered, right], of which the second is no larger"
            )
        drafts.append((pair[0], pair[1]))
    return tuple(drafts)


def _refuse_unknown(where: str, row: Mapping[str, Any], known: Collection[str]) -> None:
    for name in row:
        if name not in known:
            hint = did_you_mean(name, known) or f" Known: {', '.join(known)}."
            raise ConfigError(f"{where}.{name} is no field of a trace by steps.{hint}")


def _refuse_misspelt(name: str, known: Collection[str]) -> None:
    hint = did_you_mean(name, known)
    if hint and name not in known:
        raise ConfigError(f"the trace has a field {name!r}.{hint}")
