"""What a server adds to the steps of its engine: a real one, with clients of its own, on this machine.

`sundog serve` runs in a process, `sundog bench` in another. Steps are logged from end to end: what they take
beyond the engine's own time is the host's. TTFT beyond that, with one client, is the front end's.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from actors.config import ConfigError
from sim.cost.calibrated import nonnegative_least_squares
from sim.cost.profile import Host
from sim.cost.work import CostModel, StepWork
from sim.figures.calibrate.from_steps import logged_works
from sim.record.run_directory import open_run
from sundog.child import serving
from sundog.options import Switch
from sundog.options.engine import Engine
from sundog.options.row import rows

CLIENTS = (1, 4, 16)
STAGE_S = 2.0
"""How long each number of clients asks, about."""
PROMPT_TOKENS, OUTPUT_TOKENS = 48, 64
FEWEST_STEPS = 8
"""Of one kind of steps, to count."""
PATIENCE_S = 300.0
"""For one stage, which takes two requests a client at most where they are slow."""


def measure_host(
    source: str, device: str, engine: Engine, cost: CostModel, limits: tuple[int, int], quantile: float
) -> Host:
    """The host's share; `limits` are most requests at once, and the longest context."""
    most, context = limits
    prompt = min(PROMPT_TOKENS, max(1, context // 2))
    output = min(OUTPUT_TOKENS, max(2, context - prompt))
    with TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "steps.jsonl"
        options = [*_options(engine), "--device", device, "--step-log", str(log)]
        with serving(source, folder, *options) as url:
            for clients in sorted({min(clients, most) for clients in CLIENTS}):
                request_s = cost.step_s(StepWork(0, 0, ((prompt, 0),), 1))
                request_s += output * cost.step_s(StepWork(clients, clients * (prompt + output), (), clients))
                requests = clients * max(2, min(50, round(STAGE_S / request_s)))
                trace = folder / f"{clients}.csv"
                row = f"0.0,{prompt},{output}\n"
                trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + row * requests)
                _ask(url, trace, clients, folder / str(clients))
        host = fit_host([(work, s) for work, s in logged_works(log)], cost, quantile)
        seen = open_run(folder / "1").requests()
        ttft_s = (seen["first_token_s"].to_numpy() - seen["arrival_s"].to_numpy()).astype(np.float64)
    first_s = cost.step_s(StepWork(0, 0, ((prompt, 0),), 1)) + host.step_s + host.token_s
    return Host(host.step_s, host.token_s, max(0.0, float(np.nanquantile(ttft_s, quantile)) - first_s))


def fit_host(steps: Sequence[tuple[StepWork, float]], cost: CostModel, quantile: float) -> Host:
    """Seconds per step, and per token sampled in it, beyond what `cost` says."""
    extra_s: dict[tuple[int, int], list[float]] = defaultdict(list)
    for work, seconds in steps:
        extra_s[work.num_decodes, len(work.chunks)].append(seconds - cost.step_s(work))
    kinds = {kind: each for kind, each in extra_s.items() if len(each) >= FEWEST_STEPS}
    if not kinds:
        raise ConfigError("too few steps were served to tell the host's share: give --no-http")
    weights = np.sqrt([len(each) for each in kinds.values()])
    features = np.array([(1.0, float(sum(kind))) for kind in kinds]) * weights[:, None]
    typical = np.array([max(0.0, np.quantile(each, quantile)) for each in kinds.values()]) * weights
    step_s, token_s = nonnegative_least_squares(features, typical)
    return Host(float(step_s), float(token_s))


def _options(engine: Engine) -> Iterator[str]:
    """The same options on a command line."""
    for row in rows(Engine):
        value = getattr(engine, row.name)
        if value == row.default:
            continue
        if isinstance(row.kind, Switch):
            yield row.flag if value else f"--no-{row.flag[2:]}"
        else:
            yield from (row.flag, str(value))


def _ask(url: str, trace: Path, clients: int, out: Path) -> None:
    command = ["bench", url, str(trace), "--clients", str(clients), "--out", str(out), "--json"]
    whole = [sys.executable, "-m", "sundog", *command]
    try:
        done = subprocess.run(whole, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the server has not answered {clients} clients for {PATIENCE_S:.0f} s") from None
    if done.returncode:
        raise ConfigError(f"the server did not answer: {done.stderr.strip()}")
