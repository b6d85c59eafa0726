"""HTML page: data as JSON, the chart library and the style included, nothing to fetch."""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.config import ConfigError
from sundog.sim.explain.history import History
from sundog.sim.explain.instants import Instants, Json
from sundog.sim.figures.verdict import finite_percentiles, judged
from sundog.sim.files.run_files import write_whole
from sundog.sim.record.rows import finished
from sundog.sim.record.run_directory import Run
from sundog.sim.show.html.facts import figures, replicas, settings, tenants, worst

if TYPE_CHECKING:
    import pyarrow as pa


Floats = NDArray[np.float64]
Timeline = list[float] | list[None]

NUM_BUCKETS = 240
"""Points of a timeline: about one for three pixels."""
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queueing_s")
MOST_LIMITS = 4
"""Most limits to draw: more of them hide the curve."""
PERCENTS = np.concatenate((np.linspace(0, 90, 91), np.linspace(90.5, 99, 18), [99.5, 99.9, 100]))


@dataclass(frozen=True, slots=True)
class Series:
    """Data of a run for drawing: cumulative distributions, and timelines over `time_s`.

    `cdfs` gives for each latency the seconds at the `PERCENTS` of all requests, as far as they were answered;
    `limits_s` the SLOs, if few. Timelines are per bucket: means over time except `waiting`, which is the
    maximum, so that no queue hides between points. Figures unknown to clients are None.
    """

    time_s: list[float]
    cdfs: dict[str, list[float] | None]
    limits_s: dict[str, list[float]]
    waiting: Timeline
    batch: Timeline
    kv_use: Timeline
    decode_tokens_per_s: Timeline
    prefill_tokens_per_s: Timeline
    arrivals_per_s: Timeline


def series(run: Run) -> Series:
    """Compute the chart data of a run. O(requests + steps)."""
    if run.is_clients:
        return _seen_by_clients(run)
    requests, steps = run.requests(), run.steps()
    arrivals = _floats(requests, "arrival_s")
    start, end = _floats(steps, "start_s"), _floats(steps, "end_s")
    first = float(arrivals.min()) if len(arrivals) else 0.0
    span_s = max((float(end.max()) if len(end) else 1.0) - first, 1e-9)
    edges = first + np.linspace(0, span_s, NUM_BUCKETS + 1)
    width_s = span_s / NUM_BUCKETS
    bucket = np.clip(((end - first) / width_s).astype(int), 0, NUM_BUCKETS - 1)
    decodes, prefills = _floats(steps, "num_decodes"), _floats(steps, "num_prefill_tokens")
    size = decodes + _floats(steps, "num_prefills")
    replica, length_s = _floats(steps, "replica"), end - start

    def over_time(amounts: Floats) -> Floats:
        return _spread(amounts, start, end, replica, edges) / width_s

    centers = (edges[1:] + edges[:-1]) / 2
    return Series(
        time_s=_rounded(centers - first),
        cdfs={name: _cdf(requests, name) for name in LATENCIES},
        limits_s=_limits_s(run, requests),
        waiting=_rounded(_most(steps, bucket)),
        batch=_rounded(over_time(size * length_s)),
        kv_use=_rounded(_kv_use(steps, centers, int(run.summary["num_kv_blocks"]))),
        decode_tokens_per_s=_rounded(over_time(decodes)),
        prefill_tokens_per_s=_rounded(over_time(prefills)),
        arrivals_per_s=_rounded(_rate(arrivals, edges)),
    )


def _seen_by_clients(run: Run) -> Series:
    """Return arrivals and tokens as clients saw them; an answer's tokens are spread evenly between the first
    and the last. O(requests)
    """
    requests = run.requests()
    arrivals, first, last = (_floats(requests, f"{name}_s") for name in ("arrival", "first_token", "finish"))
    known = ~np.isnan(first) & ~np.isnan(last)
    first, last, num_tokens = first[known], last[known], _floats(requests, "num_output_tokens")[known]
    begin = float(arrivals.min()) if len(arrivals) else 0.0
    span_s = max(float(last.max()) - begin if len(last) else 1.0, 1e-9)
    edges = begin + np.linspace(0, span_s, NUM_BUCKETS + 1)
    width_s, decoding_s = span_s / NUM_BUCKETS, np.maximum(last - first, 1e-9)
    done = [float((num_tokens * np.clip((edge - first) / decoding_s, 0, 1)).sum()) for edge in edges]
    unknown: list[None] = [None] * NUM_BUCKETS
    return Series(
        time_s=_rounded((edges[1:] + edges[:-1]) / 2 - begin),
        cdfs={name: _cdf(requests, name) for name in LATENCIES},
        limits_s=_limits_s(run, requests),
        waiting=unknown,
        batch=unknown,
        kv_use=unknown,
        decode_tokens_per_s=_rounded(np.diff(done) / width_s),
        prefill_tokens_per_s=unknown,
        arrivals_per_s=_rounded(_rate(arrivals, edges)),
    )


def _limits_s(run: Run, requests: "pa.Table") -> dict[str, list[float]]:
    parts = str(run.config.get("slo") or "").split(",")
    pairs = (part.strip().partition("=") for part in parts if "=" in part and "<" not in part)
    of_run = {f"{name}_s": float(limit_s) for name, _, limit_s in pairs}
    limits = {}
    for name in LATENCIES:
        column = f"slo_{name}"
        own = _floats(requests, column) if column in requests.column_names else np.full(len(requests), np.nan)
        found = np.unique(np.where(np.isnan(own), of_run.get(name, np.nan), own))
        limits[name] = found[~np.isnan(found)].tolist()
    return {name: found for name, found in limits.items() if 0 < len(found) <= MOST_LIMITS}


def _rate(instants: Floats, edges: Floats) -> Floats:
    span_s = max(edges[-1] - edges[0], 1.0)
    num_parts = max(n for n in range(1, NUM_BUCKETS + 1) if NUM_BUCKETS % n == 0 and n <= span_s)
    counts = np.histogram(instants, edges[:: NUM_BUCKETS // num_parts])[0]
    return np.repeat(counts * (num_parts / span_s), NUM_BUCKETS // num_parts)


def _spread(amounts: Floats, start: Floats, end: Floats, replica: Floats, edges: Floats) -> Floats:
    total = np.zeros(len(edges))
    for number in np.unique(replica):
        own = replica == number
        sums = np.concatenate(([0.0], np.cumsum(amounts[own])))
        # Under async scheduling a step begins before the last has ended.
        begin = np.maximum(start[own], np.concatenate(([-np.inf], end[own][:-1])))
        instants = np.stack((begin, end[own]), axis=1).ravel()
        total += np.interp(edges, instants, np.stack((sums[:-1], sums[1:]), axis=1).ravel())
    return np.diff(total)


def _floats(table: "pa.Table", name: str) -> Floats:
    values: Floats = table[name].to_numpy().astype(np.float64)
    return values


def _cdf(requests: "pa.Table", name: str) -> list[float] | None:
    is_done = finished(requests["reason"].to_pylist())
    values, num_unanswered = judged(_floats(requests, name), np.ones(len(is_done), dtype=bool), is_done)
    found = finite_percentiles(values, num_unanswered, PERCENTS) if len(values) else values
    return _rounded(found) if len(found) else None


def _most(steps: "pa.Table", bucket: NDArray[Any]) -> Floats:
    most = np.zeros(NUM_BUCKETS)
    replica, waiting = _floats(steps, "replica"), _floats(steps, "num_waiting")
    for number in np.unique(replica):
        of_replica = replica == number
        own = np.zeros(NUM_BUCKETS)
        np.maximum.at(own, bucket[of_replica], waiting[of_replica])
        most += own
    return most


def _kv_use(steps: "pa.Table", times_s: Floats, num_blocks: int) -> Floats:
    used, start, end = (_floats(steps, name) for name in ("used_blocks", "start_s", "end_s"))
    replica, total = _floats(steps, "replica"), np.zeros(len(times_s))
    replicas = np.unique(replica)
    for number in replicas:
        known = (replica == number) & ~np.isnan(used)
        if known.any():
            held = used[known]
            before, after = (
                _floats(steps, name)[known] if name in steps.column_names else held
                for name in ("used_blocks_before", "used_blocks_after")
            )
            # A step that prefills takes blocks as it begins, and one in which requests end leaves some.
            taken = np.where(np.isnan(before), np.nan, held)
            at_s = np.column_stack((start[known], start[known], end[known], end[known])).ravel()
            blocks = np.column_stack((before, taken, held, after)).ravel()
            sure = ~np.isnan(blocks)
            total += np.interp(times_s, at_s[sure], blocks[sure], left=0.0, right=0.0)
    return total / max(num_blocks * len(replicas), 1)


def _rounded(values: Floats) -> list[float]:
    """Round to six significant digits: more than a chart shows, and half the size of the page."""
    return [float(f"{value:.6g}") for value in values]


TITLE = "Sundog report"


def render(runs: Sequence[Run]) -> str:
    """Render a self-contained HTML page of these runs; the same runs give the same bytes."""
    from jinja2 import Environment

    names = _names(runs)
    drawn = [asdict(series(run)) | {"name": name} for run, name in zip(runs, names, strict=True)]
    here = files("sundog.sim.show.html")
    data = {"percents": PERCENTS.tolist(), "runs": drawn}
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        (here / "page.html.jinja").read_text(encoding="utf-8")
    )
    return page.render(
        title=TITLE if len(runs) > 1 else f"{names[0]} – {TITLE}",
        names=names,
        figures=figures(runs),
        settings=settings(runs),
        worst=[(name, worst(run)) for run, name in zip(runs, names, strict=True)],
        tenants=tenants(runs, names),
        replicas=replicas(runs, names),
        seen_by_clients=[name for run, name in zip(runs, names, strict=True) if run.is_clients],
        # Nothing in a script may look like its end.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        style=_asset("page.css"),
        library_style=_asset("assets/uPlot.min.css"),
        library=_asset("assets/uPlot.iife.min.js"),
        script=_asset("page.js"),
    )


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Write the page; raises ConfigError when it cannot be written."""
    text = render(runs)
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _names(runs: Sequence[Run]) -> list[str]:
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def _asset(name: str) -> str:
    return files("sundog.sim.show.html").joinpath(name).read_text(encoding="utf-8")


PLACE = "<!-- recorded -->"
"""Mark in the live page where a recorded run is inserted."""


def replayed_page(history: History, name: str, num_instants: int, from_s: float, to_s: float) -> str:
    """Return the live page of a run, with evenly spaced instants from `from_s` to `to_s`."""
    header, instants = history.header, Instants(history)
    facts: Json = {
        "model": name,
        "recorded": True,
        "policy": header.policy or "unknown policy",
        "router": header.router or "one engine",
        "max_model_len": None,
        "max_num_seqs": header.max_num_seqs,
        "max_num_batched_tokens": header.max_num_batched_tokens,
        "version": None,
    }
    gap_s = (to_s - from_s) / max(num_instants - 1, 1)
    lines = [
        json.dumps(instants.at(from_s + number * gap_s) | {"facts": facts}, separators=(",", ":"))
        for number in range(num_instants)
    ]
    # No time stamp inside, so that equal runs are equal pages.
    packed = base64.b64encode(gzip.compress("\n".join(lines).encode(), mtime=0)).decode()
    page = (files("sundog.actors.api") / "pages" / "dashboard.html").read_text(encoding="utf-8")
    assert PLACE in page
    return page.replace(PLACE, f'<script id="recorded" type="text/plain">{packed}</script>')


def write_replayed(path: Path, page: str) -> None:
    """Write the page; raises OSError."""
    write_whole(path, page)
