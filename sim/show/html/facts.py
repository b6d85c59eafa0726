"""Texts and figures of the page: headline figures, worst requests, tenants, settings."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from sundog.sim.files.run_files import JOURNAL
from sundog.sim.record.rows import finished
from sundog.sim.record.run_directory import Run

WORST = 10


class Figure(NamedTuple):
    """Row of the table of figures: a value per run; `best` are those displayed like the best one."""

    name: str
    values: list[str]
    best: tuple[int, ...]


Cells = dict[str, object]
"""Row of a table, by column heading."""


class Setting(NamedTuple):
    """Option and its value in each run."""

    name: str
    values: list[str]
    differs: bool


def seconds(value: float | None) -> str:
    """Return a duration in a suitable unit."""
    if value is None or np.isnan(value):
        return "–"
    if value < 0.9995:
        return f"{_three_digits(value * 1e3)} ms"
    return f"{_three_digits(value)} s" if value < 600 else f"{value / 60:,.0f} min"


def _three_digits(value: float) -> str:
    """Format a number with three digits, with a fixed number of decimals for a column: 12.0 beside 12.1."""
    return f"{value:#.3g}".rstrip(".") if value else "0"


ROWS: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("TTFT, median", ("ttft_s", "p50"), "s", -1),
    ("TTFT, p99", ("ttft_s", "p99"), "s", -1),
    ("TPOT, median", ("tpot_s", "p50"), "s", -1),
    ("TPOT, p99", ("tpot_s", "p99"), "s", -1),
    ("ITL, p99", ("itl_s", "p99"), "s", -1),
    ("E2E, median", ("e2e_s", "p50"), "s", -1),
    ("E2E, p99", ("e2e_s", "p99"), "s", -1),
    ("program, p99", ("program_s", "p99"), "s", -1),
    ("sent late, p99", ("client", "lateness_s", "p99"), "s", 0),
    ("queueing, p99", ("queueing_s", "p99"), "s", -1),
    ("requests per second", ("requests_per_s",), "n", 1),
    ("output tokens per second", ("output_tokens_per_s",), "n", 1),
    ("goodput, requests per second", ("goodput_requests_per_s",), "n", 1),
    ("within the limits", ("slo_attainment",), "%", 1),
    ("engines busy", ("busy_fraction",), "%", 0),
    ("tokens per step", ("tokens_per_step",), "n", 0),
    ("load over capacity", ("saturation",), "×", 0),
    ("KV blocks in use, mean", ("kv_use_mean",), "%", 0),
    ("KV blocks in use, most", ("kv_use_max",), "%", 0),
    ("prefix hit rate", ("prefix_hit_rate",), "%", 0),
    ("prefix hit rate of the host's memory", ("host", "hit_rate"), "%", 0),
    ("preemptions", ("num_preemptions",), "n", -1),
    ("tokens recomputed", ("recomputed_tokens",), "n", -1),
    ("fairness among tenants", ("fairness",), "n", 1),
    ("fairness of slowdowns", ("slowdown_fairness",), "n", 1),
    ("J per output token (upper bound)", ("energy_j_per_output_token",), "n", -1),
    ("cost per million output tokens", ("cost_per_million_output_tokens",), "n", -1),
    ("busiest replica over the mean", ("imbalance",), "n", -1),
    ("requests", ("num_requests",), "n", 0),
    ("requests finished", ("num_finished",), "n", 1),
    ("requests aborted", ("num_aborted",), "n", 0),
    ("requests refused", ("num_refused",), "n", 0),
    ("requests failed", ("num_failed",), "n", -1),
    ("steps", ("num_steps",), "n", 0),
)
"""Rows: name, place in the summary, unit, and whether more (1) or less (-1) is better."""


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the summaries side by side, without rows that no run has."""
    rows = []
    reasons = {reason: None for run in runs for reason in run.summary.get("refusals", {})}
    refused = [(f"refused: {reason}", ("refusals", reason), "n", 0) for reason in reasons]
    for name, path, unit, sense in (*ROWS, *refused):
        values = [_at(run.summary, path) for run in runs]
        if all(value is None for value in values):
            continue
        known = [value for value in values if value is not None]
        shown, best = [_shown(value, unit) for value in values], tuple[int, ...]()
        if sense and len(known) == len(runs) and len(set(shown)) > 1:
            first = shown[known.index(max(known) if sense > 0 else min(known))]
            best = tuple(number for number, words in enumerate(shown) if words == first)
        rows.append(Figure(name, shown, best))
    return rows + _objectives(runs)


def _objectives(runs: Sequence[Run]) -> list[Figure]:
    texts = dict.fromkeys(each["objective"] for run in runs for each in run.summary.get("objectives", ()))
    found = []
    for text in texts:
        held = [
            next((each for each in run.summary.get("objectives", ()) if each["objective"] == text), None)
            for run in runs
        ]
        words = ["–" if each is None else "held" if each["is_held"] else "missed" for each in held]
        best = tuple(number for number, word in enumerate(words) if word == "held")
        found.append(Figure(text, words, best if len({*words}) > 1 else ()))
    return found


def _at(summary: dict[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = summary
    for key in path:
        value = None if value is None else value.get(key)
    return None if value is None else float(value)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "s":
        return seconds(value)
    if unit == "×" and value >= 1:
        return f"{value:,.1f} times"
    if unit in "%×":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.3g}"


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Return every option of any run, differing ones first."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    rows = []
    for name in names:
        values = [str(run.config.get(name, "–")) for run in runs]
        rows.append(Setting(name.replace("_", "-"), values, len(set(values)) > 1))
    return sorted(rows, key=lambda row: not row.differs)


def worst(run: Run) -> list[Cells]:
    """Return the requests with the longest TTFT, with the cause if the run has a journal.

    For a request without a token, the wait until its end counts.
    """
    rows = [row for row in run.requests().to_pylist() if _wait_s(row) is not None]
    rows.sort(key=lambda row: (-(_wait_s(row) or 0.0), row["request_id"]))
    causes = _causes(run, [row["request_id"] for row in rows[:WORST]])
    return [
        {
            "request": row["request_id"],
            "TTFT": seconds(row["ttft_s"])
            if row["ttft_s"] is not None
            else f"none in {seconds(_wait_s(row))}",
            "queueing": seconds(row["queueing_s"]),
            "prompt": f"{row['num_prompt_tokens']:,}",
            "output": f"{row['num_output_tokens']:,}",
            "preempted": "–" if row["num_preemptions"] is None else f"{row['num_preemptions']:,}",
            "why it waited": causes.get(row["request_id"], ""),
        }
        for row in rows[:WORST]
    ]


def _wait_s(row: dict[str, Any]) -> float | None:
    wait_s: float | None = row["e2e_s"] if row["ttft_s"] is None else row["ttft_s"]
    return wait_s


def _causes(run: Run, request_ids: Sequence[str]) -> dict[str, str]:
    if not (request_ids and (run.path / JOURNAL).exists()):
        return {}
    from sundog.sim.explain.findings import first_wait
    from sundog.sim.explain.load import load

    history, causes = load(run.path), dict[str, str]()
    for name in request_ids:
        wait = first_wait(history, name)
        reasons = {} if wait is None else wait.by_reason
        words = [f"{reason} {seconds(spent_s)}" for reason, spent_s in reasons.items() if spent_s]
        causes[name] = ", ".join(words[:2])
    return causes


def replicas(runs: Sequence[Run], names: Sequence[str]) -> list[Cells]:
    """Return the replicas of each run that has several."""
    return [
        {
            "replica": number,
            **_run_of(name, runs),
            "requests": f"{of['num_requests']:,}",
            "prompt tokens": f"{of['prompt_tokens']:,}",
            "found cached": f"{of['prefix_hit_rate']:.1%}",
            "output tokens": f"{of['output_tokens']:,}",
        }
        for run, name in zip(runs, names, strict=True)
        for number, of in enumerate(run.summary.get("replicas", ()))
    ]


def tenants(runs: Sequence[Run], names: Sequence[str]) -> list[Cells]:
    """Return each tenant's share and latencies, runs side by side; empty without tenants."""
    found: list[tuple[str, Cells]] = []
    for run, run_name in zip(runs, names, strict=True):
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in run.requests().to_pylist():
            if row["tenant"] is not None:
                by_name.setdefault(row["tenant"], []).append(row)
        found += [
            (name, {"tenant": name, **_run_of(run_name, runs), **_tenant(run, name, rows)})
            for name, rows in by_name.items()
        ]
    return [cells for _, cells in sorted(found, key=itemgetter(0))]


def _run_of(name: str, runs: Sequence[Run]) -> Cells:
    return {"run": name} if len(runs) > 1 else {}


def _tenant(run: Run, name: str, rows: Sequence[dict[str, Any]]) -> Cells:
    begun = [row for row in rows if row["ttft_s"] is not None]
    done = [
        row for row, is_done in zip(rows, finished([row["reason"] for row in rows]), strict=True) if is_done
    ]
    return {
        "requests": len(rows),
        "finished": _shown(_at(run.summary, ("tenants", name, "num_finished")), "n"),
        "tokens": f"{sum(row['num_prompt_tokens'] + row['num_output_tokens'] for row in begun):,}",
        "within the limits": _shown(_at(run.summary, ("tenants", name, "slo_attainment")), "%"),
        "TTFT, median": _percentile(done, "ttft_s", 50),
        "TTFT, p99": _percentile(done, "ttft_s", 99),
        "E2E, p99": _percentile(done, "e2e_s", 99),
    }


def _percentile(rows: Sequence[dict[str, Any]], column: str, percent: float) -> str:
    values = [row[column] for row in rows if row[column] is not None]
    return seconds(float(np.percentile(values, percent))) if values else "–"
