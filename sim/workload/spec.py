"""A workload: arrivals, lengths, sessions, tenants; the same seed gives the same requests.

A TOML file describes it, or a recorded trace that is scaled; every key is checked when the file is read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from actors.core.config import ConfigError
from sim.files.toml import checked, read_toml
from sim.trace.read import read_trace
from sim.trace.record import MAX_ARRIVAL_S, TraceRequest, default_id
from sim.workload import stream
from sim.workload.distributions import STRICT, Arrivals, Lengths, check_positive
from sim.workload.sessions import BLOCK_TOKENS, Sessions, SystemPrompts, session_rows


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a share of the sessions are, how urgent, and what times they want."""

    name: str
    share: float
    priority: int = 0
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_positive(self, "share")
        for name in ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s"):
            if getattr(self, name) is not None:
                check_positive(self, name)


@dataclass(frozen=True, slots=True)
class Workload:
    """Each arrival within `duration_s` begins a session, of one request without `sessions`."""

    duration_s: float
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    sessions: Sessions | None = None
    system_prompts: SystemPrompts | None = None
    tenants: tuple[Tenant, ...] = ()
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_positive(self, "duration_s")
        if self.duration_s > MAX_ARRIVAL_S:
            raise ConfigError(f"duration_s is {self.duration_s}: at most {MAX_ARRIVAL_S:g}")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise ConfigError(f"tenants have the names {', '.join(names)}: each needs its own")

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per id of the prompts' contents; 0 where nothing repeats."""
        return BLOCK_TOKENS if self.sessions or self.system_prompts else 0

    @property
    def repeats(self) -> bool:
        """True if every seed gives the same requests: a metronome of fixed lengths, say."""
        return self.requests(0) == self.requests(1)

    def requests(self, seed: int) -> list[TraceRequest]:
        """The requests for a seed in order of arrival, instants in whole microseconds."""
        times = self.arrivals.times(stream(seed, "arrivals"), self.duration_s).round(6)
        times = times[times < self.duration_s]
        prompts = self.prompt.draw(stream(seed, "prompt lengths"), len(times)).tolist()
        rows = session_rows(seed, times.tolist(), prompts, self.sessions, self.output, self.system_prompts)
        if self.tenants:
            owners = self._owners(seed, len(times))
            rows = (
                (session, _owned(row, t)) for session, row in rows for t in (self.tenants[owners[session]],)
            )
        ordered = sorted(rows, key=lambda row: (row[1].arrival_s, row[0]))
        if self.sessions is not None:
            return [row for _, row in ordered]
        return [row._replace(request_id=default_id(i)) for i, (_, row) in enumerate(ordered)]

    def _owners(self, seed: int, count: int) -> list[int]:
        """Each session's tenant."""
        shares = np.array([tenant.share for tenant in self.tenants])
        owners: list[int] = (
            stream(seed, "tenants").choice(len(shares), count, p=shares / shares.sum()).tolist()
        )
        return owners


def _owned(row: TraceRequest, tenant: Tenant) -> TraceRequest:
    return row._replace(
        tenant=tenant.name,
        priority=tenant.priority,
        slo_ttft_s=tenant.slo_ttft_s,
        slo_tpot_s=tenant.slo_tpot_s,
        slo_e2e_s=tenant.slo_e2e_s,
    )


PATHS = ("trace", "tokenizer")
"""Keys, in any table, whose values are files."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A recorded trace, `rate_scale` times as fast, with prompts and outputs so much longer.

    What prompts contain is kept where they keep their length, and unknown otherwise.
    """

    trace: str
    rate_scale: float = 1.0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    limit: int | None = None
    tokenizer: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_positive(self, "rate_scale", "prompt_scale", "output_scale")
        if self.limit is not None:
            check_positive(self, "limit")

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per id of the prompts' contents; 0 where they are not known."""
        first = next(iter(read_trace(self.trace, self.tokenizer)))
        return first.hash_block_tokens if self.prompt_scale == 1 else 0

    @property
    def is_plain(self) -> bool:
        """True if this is the trace as it was recorded."""
        return self.rate_scale == self.prompt_scale == self.output_scale == 1

    @property
    def repeats(self) -> bool:
        """True, because every seed gives the same requests."""
        return True

    def requests(self, seed: int) -> list[TraceRequest]:
        """Return the scaled requests, the same for every seed."""
        rows: list[TraceRequest] = []
        for row in read_trace(self.trace, self.tokenizer):
            if self.limit is not None and len(rows) == self.limit:
                break
            rows.append(self._scaled(row))
        return rows

    def _scaled(self, row: TraceRequest) -> TraceRequest:
        if self.is_plain:
            return row
        kept = self.prompt_scale == 1
        return row._replace(
            arrival_s=round(row.arrival_s / self.rate_scale, 9),
            num_prompt_tokens=max(round(row.num_prompt_tokens * self.prompt_scale), 1),
            num_output_tokens=max(round(row.num_output_tokens * self.output_scale), 1),
            hash_ids=row.hash_ids if kept else None,
            hash_block_tokens=row.hash_block_tokens if kept else 0,
        )


Source = Workload | Scaled


def read_spec(path: str | Path) -> Source:
    """The workload that a TOML file describes; raises ConfigError, which names the field.

    With a table `scaled` it is a recorded trace, otherwise one of generated requests.
    """
    return parse_spec(read_values(path), path)


def read_values(path: str | Path) -> dict[str, Any]:
    """Read the values in a file; traces in it are relative to the file."""
    return _rooted(read_toml(path), Path(path).parent)


def parse_spec(values: dict[str, Any], path: str | Path) -> Source:
    """The workload that these values describe; errors name `path`."""
    if "scaled" in values:
        if extra := values.keys() - {"scaled"}:
            raise ConfigError(f"{path}: {min(extra)} does not go with the table scaled")
        return checked(Scaled, values["scaled"], path, ("scaled",))
    return checked(Workload, values, path)


def _rooted(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values with every path in them put behind the folder of the file that holds them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found[name] = _rooted(value, folder)
        else:
            is_path = name in PATHS and isinstance(value, str)
            found[name] = str(folder / Path(value).expanduser()) if is_path else value
    return found
