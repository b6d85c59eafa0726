"""Options that only simulations have: the hardware, the arrivals, and the terms of a run."""

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from sundog.actors.config import ConfigError
from sundog.actors.config.front_costs import parse_front_costs
from sundog.actors.config.hop_costs import parse_hop_costs
from sundog.actors.core.records import dataclass
from sundog.actors.core.scalers import SCALERS
from sundog.options.names import gpu_names, model_names
from sundog.options.row import RECORDING, AnyText, Parsed, Real, Switch, Whole, option, rows

if TYPE_CHECKING:
    from sundog.actors.core.routers.fleet_state import Role
    from sundog.sim.figures.named import Objective
    from sundog.sim.trace.read import Trace

COSTS = "Cost of steps"
COSTS_FURTHER = "Cost of steps, further"
CLIENTS = "Clients"
TERMS = "Targets and prices"
READING = "Traces"


OFFLOADING = "Host memory"
FLEET = "Pools, faults, autoscaling"
LINK_GB_PER_S = 50.0
"""GB/s between two GPUs: a NIC of 400 Gbit/s for each."""


class PoolSpec(NamedTuple):
    """Pool as `ROLE=GPU:dpKtpNxM`, with further options of its engines by name."""

    role: "Role"
    gpu: str
    data_parallel_size: int
    tensor_parallel_size: int
    replicas: int
    own: "dict[str, int]"

    @property
    def name(self) -> str:
        """Short name of the pool, for tables."""
        ranks = f"dp{self.data_parallel_size}" if self.data_parallel_size > 1 else ""
        return f"{self.role}={self.gpu}:{ranks}tp{self.tensor_parallel_size}x{self.replicas}"


ROLE = "(?:prefill|decode|both)="
"""Pattern of the role that begins a pool's text."""
OWN_OPTIONS = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks")
"""Options that may differ between pools."""


def parse_named_columns(text: str) -> object:
    """Parse the names of a table's columns, as in `--columns`."""
    from sundog.sim.trace.table_rows import parse_columns

    return parse_columns(text)


def parse_pool(text: str) -> PoolSpec:
    """Parse `prefill=h200:tp2x3`: three engines of two H200; `decode=h200:dp8x1` is one of eight ranks.

    `:max_num_seqs=64` and similar may follow.
    """
    form = r"(both|prefill|decode)=(.+?):(?:dp(\d{1,4}))?(?:tp(\d{1,4}))?x(\d{1,4})((?::\w+=\d{1,9})*)"
    found = re.fullmatch(form, text)
    if found is None:
        raise ValueError(
            "give ROLE=GPU:tpNxM, as in prefill=h200:tp2x3, or decode=h200:dp8x1 for data-parallel ranks;"
            " roles are prefill, decode, both, and whole experts are --enable-expert-parallel"
        )
    own: dict[str, int] = {}
    for part in filter(None, found[6].split(":")):
        name, _, value = part.partition("=")
        if name not in OWN_OPTIONS:
            raise ValueError(f"a pool has no {name} of its own: give {', '.join(OWN_OPTIONS)}")
        own[name] = int(value)
    num_ranks, num_gpus, replicas = (int(each or 1) for each in found.group(3, 4, 5))
    if min(num_ranks, num_gpus, replicas) < 1:
        raise ValueError("a pool has at least one replica of at least one rank and GPU")
    role: Any = found[1]
    return PoolSpec(
        role,
        found[2],
        data_parallel_size=num_ranks,
        tensor_parallel_size=num_gpus,
        replicas=replicas,
        own=own,
    )


# Without slots, because two such classes cannot both be a third one's parents.
@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Options of the model and its absent GPUs."""

    model: str = option(
        "llama-3.1-8b",
        AnyText("MODEL", is_path=True),
        "A known model, a folder, or a name on the hub.",
        completes=model_names,
    )
    gpu: str = option(
        "h100",
        AnyText("GPU", is_path=True),
        "A known GPU or FILE.toml, with its link if not the usual one: NAME:pcie.",
        completes=gpu_names,
    )


def parse_offloading_backend(text: str) -> str:
    """Parse `native`; vLLM's other backend is refused by its name."""
    if text != "native":
        raise ValueError("give native: lmcache and others are not simulated")
    return text


@dataclass(frozen=True, kw_only=True)
class OffloadingOptions:
    """Options of host memory as a second tier for KV blocks, by vLLM's names."""

    kv_offloading_size: float = option(
        0.0,
        Real(0, 1e6),
        "GiB of host memory for KV blocks, for all ranks of a replica together.",
        section=OFFLOADING,
    )
    kv_offloading_backend: str = option(
        "native",
        Parsed(parse_offloading_backend, "native"),
        "How blocks are copied: native, vLLM's own.",
        section=OFFLOADING,
        rare=True,
    )
    kv_offloading_gb_per_s: float | None = option(
        None,
        Real(0, 1e6, above=True),
        "Bandwidth between a GPU and the host's memory, each way; the GPU's own if not given.",
        section=OFFLOADING,
        rare=True,
    )

    @property
    def offloading(self) -> tuple[float, float | None]:
        """Size and bandwidth."""
        return self.kv_offloading_size, self.kv_offloading_gb_per_s


@dataclass(frozen=True, kw_only=True)
class CostOptions(OffloadingOptions):
    """Options of the duration of steps on absent GPUs."""

    cost: str = option(
        "auto",
        AnyText("COST", is_path=True),
        "tables (measured kernels), roofline, auto (tables if any), or a calibrated FILE.toml.",
        section=COSTS,
    )
    host_overhead: bool = option(
        True, Switch(), "Time that the host adds to each step and request.", section=COSTS_FURTHER, rare=True
    )
    front_cost: str | None = option(
        None,
        Parsed(parse_front_costs, "NAME=S,…"),
        "Seconds of an API process, which does one thing at a time: request=0.007,response=0,prompt_token=0,"
        "output_token=0; the stages=3 of reading a request, between which others take turns; the number of"
        " processes=1.",
        section=COSTS_FURTHER,
    )
    step_scale: float = option(
        1.0,
        Real(0, 1000, above=True),
        "Let every step take this many times as long.",
        section=COSTS,
        rare=True,
    )
    kv_transfer_gb_per_s: float | None = option(
        None,
        Real(0, 1e6, above=True),
        "Bandwidth of a GPU's link to other engines, for KV transfers; 50 (400 Gbit/s) if not given.",
        section=COSTS_FURTHER,
    )


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Options of fleets whose engines differ."""

    pool: tuple[str, ...] = option(
        (),
        Parsed(parse_pool, "ROLE=GPU:tpNxM"),
        "A pool of M engines of N GPUs each, instead of --gpu and --replicas: prefill, decode or both.",
        section=FLEET,
        many=True,
    )
    kv_transfer_latency_s: float | None = option(
        None, Real(0, 3600), "Latency of a KV transfer between engines, in seconds.", section=FLEET, rare=True
    )

    faults: str | None = option(
        None,
        AnyText("FILE", is_path=True),
        "Faults of engines, links and clients to simulate: FILE.toml (docs/fleets.md), or none.",
        section=FLEET,
    )

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        return tuple(map(parse_pool, self.pool))


def parse_scalers(text: str) -> "dict[Role | None, str]":
    """Parse `prefill=keda:target=8,decode=hpa`, a scaler for each pool by its role; the key of a single
    scaler is None.

    A plus is accepted instead of the comma before a role: in a sweep, commas separate values.
    """
    if re.match(ROLE, text) is None:
        return {None: text}
    found: dict[Role | None, str] = {}
    for part in re.split(rf"[,+](?={ROLE})", text):
        name, _, scaler = part.partition("=")
        role: Any = name
        if role in found:
            raise ConfigError(f"--scaler names {role} twice: give it one scaler")
        if not scaler:
            raise ConfigError(f"--scaler names {role} and no scaler: give {role}=NAME, as in {role}=keda")
        found[role] = scaler
    return found


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """Options of a fleet that grows and shrinks."""

    scaler: str | None = option(
        None,
        AnyText("SCALER", is_path=True),
        f"Number of replicas over time, up to --replicas: {', '.join(SCALERS)}, FILE.py:NAME, or one for each"
        " pool: prefill=keda:target=8,decode=hpa; parameters as of policies.",
        section=FLEET,
    )
    scale_start_s: float | None = option(
        None,
        Real(0, 1e6),
        "Seconds from a scale-up decision until the replica serves; 60 if not given.",
        section=FLEET,
    )
    scale_every_s: float | None = option(
        None,
        Real(0, 1e6, above=True),
        "Seconds between two decisions of the scaler; 15 if not given.",
        section=FLEET,
        rare=True,
    )
    scale_least: int | None = option(
        None,
        Whole(1, 4096),
        "Fewest replicas (of each pool that scales), also at the start; 1 if not given.",
        section=FLEET,
    )


@dataclass(frozen=True, kw_only=True)
class TargetOptions(ScalingOptions, PoolOptions, CostOptions, MachineOptions):
    """Options of the machine, and of the durations of its steps and messages."""

    hop_cost: str | None = option(
        None,
        Parsed(parse_hop_costs, "NAME=S,…"),
        "Seconds for messages to and from an engine's process: submit=1e-4,token=1e-8,output=1e-4; else 0.",
        section=COSTS_FURTHER,
        rare=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingOptions:
    """Options of the log of steps, for `sundog calibrate` and tools that read forward-pass metrics."""

    step_log: str | None = option(
        None,
        AnyText("FILE"),
        "File for each step's work and time: forward-pass metrics, JSON lines.",
        kept=False,
        section=RECORDING,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of reading a trace, or a part of it."""

    limit: int | None = option(None, Whole(1, 2**40), "Take only the first N requests of the trace.")
    tokenizer: str | None = option(
        None, AnyText("FILE", is_path=True), "For traces of texts: a tokenizer.json or a model's folder."
    )
    columns: str | None = option(
        None,
        Parsed(parse_named_columns, "arrival=A,prompt=P,output=O"),
        "The columns of a CSV, JSONL or Parquet file of another form; arrival=A:ms says the unit.",
        section=READING,
    )
    from_s: float | None = option(
        None,
        Real(0, 2**24),
        "Leave out sessions that begin before this second of the trace.",
        flag="--from",
        section=READING,
    )
    until_s: float | None = option(
        None,
        Real(0, 2**24, above=True),
        "Leave out sessions that begin at this second of the trace, or later.",
        flag="--until",
        section=READING,
    )
    sample_sessions: float | None = option(
        None,
        Real(0, 1, above=True),
        "Share of sessions and single requests to keep, the same ones each time.",
        section=READING,
        rare=True,
    )
    max_idle_s: float | None = option(
        None,
        Real(0, 2**22, above=True),
        "Shorten times without arrivals, and pauses in sessions, to this many seconds.",
        section=READING,
        rare=True,
    )

    def trace(self, path: str) -> "Trace":
        """Return the selected part of the trace at a path; raises ConfigError."""
        from sundog.fetched import tokenizer_folder
        from sundog.sim.trace.read import read_trace
        from sundog.sim.trace.window import TracePart

        from_s = self.from_s or 0.0
        if self.until_s is not None and self.until_s <= from_s:
            raise ConfigError(
                f"--until is {self.until_s:g}, and --from {from_s:g}: no request can be between them"
            )
        part = TracePart(from_s, self.until_s, self.sample_sessions or 1.0, self.max_idle_s)
        tokenizer = None if self.tokenizer is None else tokenizer_folder(self.tokenizer)
        return read_trace(path, tokenizer, columns=self.columns, part=part)

    def scaled(self, path: str) -> "dict[str, Any]":
        """Return the table `scaled` of a workload that describes this part of a trace."""
        self.trace(path)
        given = {row.name: getattr(self, row.name) for row in rows(type(self))}
        kept = {name: value for name, value in given.items() if value is not None}
        return {"trace": path, "limit": self.limit, "tokenizer": self.tokenizer, **kept}


def parse_rate(text: str) -> float:
    """Parse requests per second: a number above 0, or `inf`."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (0 < rate <= 1e9 or rate == math.inf):
        raise ValueError("give requests a second, above 0 to 1,000,000,000, or inf")
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of the arrivals of a trace's requests."""

    request_rate: str | None = option(
        None,
        Parsed(parse_rate, "RATE"),
        "Other arrivals: a Poisson process, or inf for all at once.",
        section=CLIENTS,
    )
    max_concurrency: int | None = option(
        None, Whole(1, 2**30), "Clients have at most this many requests unfinished.", section=CLIENTS
    )
    client_timeout: float | None = option(
        None,
        Real(0, 1e9, above=True),
        "Seconds after which clients give up a request.",
        section=CLIENTS,
        rare=True,
    )
    predictor: str | None = option(
        None,
        AnyText("NAME"),
        "Predictor of output lengths for the policy: oracle, class-mean, noisy, or FILE.py:NAME.",
        section=CLIENTS,
    )


class ServiceLevel(NamedTuple):
    """Service level: limits of each request in seconds, and objectives of the whole run."""

    limits_s: "dict[str, float]"
    objectives: "tuple[Objective, ...]"


def parse_slo(text: str) -> ServiceLevel:
    """Parse `ttft=0.5,tpot=0.05`, limits of each request, and `p95(ttft)<1`, limits of the run."""
    from sundog.sim.figures.named import Objective

    limits: dict[str, float] = {}
    objectives: list[Objective] = []
    for part in map(str.strip, text.split(",")):
        if "<" in part or "(" in part:
            objectives.append(Objective.parse(part))
            continue
        name, _, value = part.partition("=")
        if name not in ("ttft", "tpot", "e2e"):
            raise ValueError(f"it has {name!r}; give ttft, tpot or e2e, as in ttft=0.5 or p95(ttft)<1")
        if name in limits:
            raise ValueError(f"it has {name} twice")
        try:
            limits[name] = Real(0, 1e9, above=True).take(value)
        except ValueError as error:
            raise ValueError(f"{name} is in seconds: {error}, as in {name}=0.5") from None
    return ServiceLevel(limits, tuple(objectives))


@dataclass(frozen=True, slots=True, kw_only=True)
class TermsOptions:
    """Options of the limits and prices of a run."""

    slo: str | None = option(
        None,
        Parsed(parse_slo, "TERM,…"),
        "Limits in seconds: of each request, for goodput (ttft=0.5,tpot=0.05,e2e=10), and of the run"
        " ('p95(ttft)<1, tenant rag: p95(tpot)<0.04').",
    )
    gpu_price_per_h: float | None = option(
        None, Real(0, 1e9), "Price of a GPU per hour, in any currency.", section=TERMS
    )

    @property
    def service_level(self) -> ServiceLevel:
        return ServiceLevel({}, ()) if self.slo is None else parse_slo(self.slo)
