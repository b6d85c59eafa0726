"""Cost files: a calibrated cost model in TOML, and the file of a measured engine, which is one with more.

A cost file has the coefficients of the model, their range, and where they come from. In the file of an engine
`[engine]` says what a simulation needs to know besides, so that none must be told of a model or GPU; `[host]`
what its scheduler and HTTP front end add to the steps, `[hops]` what the way to its process and back takes.
`[measured]` is for people.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from actors.config.hop_costs import NO_HOPS, HopCosts
from actors.core.config import ConfigError
from sim.cost.calibrated import Bends, Calibrated, InRange, ObservedRange
from sim.cost.composed import ScaledCost
from sim.cost.overhead import HostOverhead, WithOverhead
from sim.cost.work import CostModel
from sim.files.run_files import write_whole
from sim.files.toml import checked, read_toml

TITLE, RANGE, MEASURED = "calibrated", "range", "measured"
BENDS = ("bends", "context_bends")
LOADS_ERROR, DRIFT = "left_out_error", "drift"
ERRORS = ("held_out_error_median", "trial_error_tpot", LOADS_ERROR, DRIFT)
"""The fields of [measured] that say how far off steps are."""
MOST_DOUBT = 0.9
NOT_IN_LOGS = {"per_chunk": 0.0, "per_chunk_context_token": 0.0}
COMMENTS = {
    TITLE: "seconds for each; bends: [beyond so many, seconds for each more]",
    RANGE: "the largest step that was observed",
    "host": "seconds that a server adds to a step, to a token sampled in it, and in front of a request",
}


def write_cost(
    path: Path | str,
    model: Calibrated,
    source: str,
    measured: ObservedRange | None = None,
    more: Mapping[str, Mapping[str, object]] | None = None,
) -> None:
    """Write the coefficients, their range, and `more` tables; raises ConfigError if it cannot."""
    tables: dict[str, Mapping[str, object]] = {TITLE: asdict(model)}
    if measured is not None:
        tables[RANGE] = asdict(measured)
    tables.update(more or {})
    lines = [f"# {source}"]
    for title, table in tables.items():
        lines += ["", *([f"# {COMMENTS[title]}"] if title in COMMENTS else []), f"[{title}]"]
        # What JSON writes of numbers, texts and lists is TOML, too.
        lines += [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    try:
        write_whole(path, "\n".join([*lines, ""]))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def read_cost(path: Path | str) -> Calibrated | InRange:
    """The model that `sundog calibrate` wrote; raises ConfigError naming file and field."""
    return cost_of(read_toml(path), path)


def cost_of(values: Mapping[str, object], path: Path | str) -> Calibrated | InRange:
    """The model in the file's values."""
    table = values.get(TITLE)
    if not isinstance(table, dict):
        raise ConfigError(f"cost {path}: the table [{TITLE}] is missing: is it of calibrate?")
    names = [field.name for field in fields(Calibrated) if field.name not in BENDS]
    given = {**NOT_IN_LOGS, **table}
    seconds = [_number(path, given, name, 1e9, "seconds of at least 0") for name in names]
    model = Calibrated(*seconds, *(_bends(path, table, name) for name in BENDS))  # type: ignore[arg-type]
    measured = values.get(RANGE)
    if measured is None:
        return model
    if not isinstance(measured, dict):
        raise ConfigError(f"cost {path}: {RANGE} is {measured!r}: give a table [{RANGE}]")
    sizes = [field.name for field in fields(ObservedRange)]
    largest = ObservedRange(*(_number(path, measured, name, 1e18, "a size of at least 0") for name in sizes))
    return InRange(model, largest, doubt=_doubt(values.get(MEASURED)))


def _doubt(evidence: object) -> float:
    """The largest error of steps that calibration found where nothing was fitted; 0 where it says none.

    At most `MOST_DOUBT`, whatever happened: no step takes less than no time.
    """
    found = [evidence.get(name) for name in ERRORS] if isinstance(evidence, dict) else []
    errors = (abs(float(each)) for each in found if isinstance(each, int | float))
    return min(max(errors, default=0.0), MOST_DOUBT)


def _bends(path: Path | str, table: dict[str, object], name: str) -> Bends:
    given = table.get(name, [])
    try:
        bends = tuple((float(at), float(slope)) for at, slope in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        bends = ((-1.0, -1.0),)
    rises = all(left[0] < right[0] for left, right in pairwise(bends))
    if not rises or not all(0 <= value < 1e18 for pair in bends for value in pair):
        raise ConfigError(f"cost {path}: {name} is {given!r}: give pairs of [tokens, seconds], tokens rising")
    return bends


def _number(path: Path | str, table: dict[str, object], name: str, most: float, what: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < most:
        raise ConfigError(f"cost {path}: {name} is {value!r}: give {what}")
    return float(value)


ENGINE, HOST, HOPS = "engine", "host", "hops"
Count = Annotated[int, Field(ge=1, le=2**40)]
Seconds = Annotated[float, Field(ge=0, lt=1e6)]


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """The engine's limits; `num_gpu_blocks` includes the null block, `kv_token_bytes` may be unknown (0)."""

    model: str
    num_gpu_blocks: Count
    block_size: Count
    max_model_len: Count
    max_num_batched_tokens: Count
    max_num_seqs: Count
    async_scheduling: bool
    kv_token_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0


@dataclass(frozen=True, slots=True)
class HostShare:
    """Seconds that a server adds to a step, to each token sampled in it, to each chunk of a prompt in it,
    and to each request in front of it. The engine's own time is `slowdown` times what it is alone."""

    step_s: Seconds = 0.0
    token_s: Seconds = 0.0
    chunk_s: Seconds = 0.0
    request_s: Seconds = 0.0
    slowdown: Annotated[float, Field(ge=1, lt=1e3)] = 1.0

    def served(self, cost: CostModel) -> WithOverhead:
        """The steps of `cost` as they are served. They were timed from end to end, so that nothing of it
        overlaps with them, whether steps are planned ahead or not."""
        overhead = HostOverhead(
            step_s=self.step_s, token_s=self.token_s, chunk_s=self.chunk_s, request_s=self.request_s
        )
        return WithOverhead(cost if self.slowdown == 1 else ScaledCost(cost, self.slowdown), overhead)


def front_end_s(path: Path | str) -> float | None:
    """Seconds in front of a request, where a cost file says them; ConfigError names the file and the key."""
    host = read_toml(path).get(HOST)
    return None if host is None else checked(HostShare, host, path, (HOST,)).request_s


@dataclass(frozen=True, slots=True)
class Profile:
    """The file of a measured engine."""

    cost: InRange
    engine: MeasuredEngine
    host: HostShare
    hops: HopCosts = NO_HOPS


def read_profile(path: Path | str) -> Profile | None:
    """The engine in a cost file, None if it tells of none; ConfigError names the file and the key."""
    values = read_toml(path)
    if ENGINE not in values:
        return None
    cost = cost_of(values, path)
    if not isinstance(cost, InRange):
        raise ConfigError(f"cost {path}: the table [range] is missing: is it of `sundog calibrate MODEL`?")
    engine = checked(MeasuredEngine, values[ENGINE], path, (ENGINE,))
    host = checked(HostShare, values.get(HOST, {}), path, (HOST,))
    return Profile(cost, engine, host, checked(HopCosts, values.get(HOPS, {}), path, (HOPS,)))
