"""A plan for people, and as JSON."""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sundog.planning.search import Candidate, intervals

if TYPE_CHECKING:
    from rich.table import Table

    from sim.figures.named import Objective
    from sundog.planning.planner import Advice
    from sundog.planning.trial import TrialResult

MOST_ROWS = 20


def named(candidate: Candidate, count: int) -> str:
    """Name a fleet: `8 x h100, TP 2 (16 GPUs)`, and further settings."""
    settings = dict(candidate.settings)
    gpu, ranks = settings.pop("gpu"), settings.pop("tensor_parallel_size")
    further = "".join(f", {name}={value}" for name, value in settings.items())
    gpus = count * candidate.num_gpus
    return f"{count} x {gpu}, TP {ranks}{further} ({gpus} GPU{'s' * (gpus != 1)})"


def why(candidate: Candidate, count: int, result: "TrialResult", objectives: "Sequence[Objective]") -> str:
    """Say in words why a fleet fails: which objectives it misses, and by how much."""
    if result.refused is not None:
        return result.refused
    if result.share < 1 and result.num_unfinished:
        return f"lost when {result.share:.0%} of the requests had ended"
    missed = [
        f"{each.text} is {result.values[each.metric.name]:.3g} s"
        for each in objectives
        if not result.values.get(each.metric.name, math.inf) <= each.below_s
    ]
    return "; ".join(missed) or "holds each draw, and its interval reaches beyond the limit"


def print_advice(
    advice: "Advice", objectives: "Sequence[Objective]", confidence: float, has_prices: bool
) -> None:
    """To stdout: the fleets that were looked at, the cheapest first, and what to know of the winner."""
    from sim.show.console import console_for, print_table

    console = console_for()
    print_table(console, _table(advice, objectives, has_prices))
    if advice.winner is None:
        console.print("No fleet holds the objectives: allow a larger one (--max-gpus), or other settings.")
        return
    if (further := len(advice.candidates) - MOST_ROWS) > 0:
        console.print(f"and {further} more, which cost more or cannot run")
    for line in _lines(advice, objectives, confidence, has_prices):
        console.print(line, markup=False, soft_wrap=True)


def print_commands(advice: "Advice", model: str, source: str, slo: str | None) -> None:
    """To stdout: the commands that simulate the winner, and serve it."""
    if advice.winner is not None:
        for command in commands(advice.winner, model, source, slo):
            print(f"  {command}")


def _table(advice: "Advice", objectives: "Sequence[Objective]", has_prices: bool) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fleet")
    table.add_column("cost/h" if has_prices else "GPUs", justify="right")
    table.add_column("")
    ordered = sorted(advice.candidates, key=lambda each: min(each.cost, each.bound))
    for each in ordered[:MOST_ROWS]:
        if each.is_verified and each.holding is not None:
            table.add_row(named(each, each.holding), f"{each.cost:,.2f}", "holds")
            continue
        reason = "not looked at: it costs more"
        if each.refused is not None:
            reason = each.refused.partition(": ")[0]
        elif each.failing:
            last = next(r for (n, _), r in each.tried.items() if n == each.failing and not r.is_held)
            reason = f"{each.failing} too few: {why(each, each.failing, last, objectives)}"
        bound = "" if math.isinf(each.bound) else f">= {each.bound:,.2f}"
        table.add_row(named(each, min(each.failing + 1, each.most)), bound, reason)
    return table


def _lines(
    advice: "Advice", objectives: "Sequence[Objective]", confidence: float, has_prices: bool
) -> Iterator[str]:
    """What to know of the winner, a line each."""
    winner, held = advice.winner, advice.held
    assert winner is not None and winner.holding is not None
    price = f", {winner.cost:,.2f} an hour" if has_prices else ""
    yield f"Buy {named(winner, winner.holding)}{price}."
    for each, interval in zip(objectives, intervals(objectives, held, confidence), strict=True):
        spread = "" if math.isnan(interval.half_width) else f" ± {interval.half_width:.3g}"
        draws = f"{len(held)} draws" if len(held) > 1 else "one draw, so that there is no interval"
        yield f"  {each.text}: {interval.mean:.3g}{spread} s ({draws})"
    hours = sum(each.span_s for each in held) / 3600
    if has_prices and hours:
        per_token = [
            f"{winner.cost * hours / count * 1e6:,.3f} per million tokens {way}"
            for way, count in (
                ("in", sum(each.prompt_tokens for each in held)),
                ("out", sum(each.output_tokens for each in held)),
            )
            if count
        ]
        yield f"  If either paid for all of it: {', '.join(per_token)}."
    spare = named(winner, winner.holding + 1)
    yield f"  To hold with one replica lost: {spare}" + (
        f", {winner.cost + winner.price:,.2f} an hour." if has_prices else "."
    )
    if advice.headroom is not None:
        yield f"  Headroom: one draw holds up to {advice.headroom:.2f} times this load."
    if advice.cheaper is not None:
        candidate, count, result = advice.cheaper
        reason = why(candidate, count, result, objectives)
        yield f"The next cheaper fleet fails. {named(candidate, count)}: {reason}."
    if advice.at_means is not None and advice.at_means.holding is not None:
        mean = advice.at_means
        yield f"At mean lengths one would have bought {named(mean, mean.holding or 0)}" + (
            f", {mean.cost:,.2f} an hour." if has_prices else "."
        )


def commands(winner: Candidate, model: str, source: str, slo: str | None) -> Iterator[str]:
    """The commands that simulate the fleet, and serve it."""
    settings = dict(winner.settings)
    words = ["sundog", "sweep", source, "--model", model]
    for name, value in settings.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    words += ["--replicas", str(winner.holding)]
    words += [] if slo is None else ["--slo", slo]
    yield shlex.join(words)
    yield f"{shlex.join(serving(winner, model))}  # {winner.holding} times, behind a router"


def serving(winner: Candidate, model: str) -> list[str]:
    """The command of one replica; `model` is the name by which vLLM is to load it."""
    settings = winner.settings
    words = ["vllm", "serve", model, "--tensor-parallel-size", str(settings["tensor_parallel_size"])]
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
        if name in settings:
            words += ["--" + name.replace("_", "-"), str(settings[name])]
    return words


def deployment(winner: Candidate, model: str) -> str:
    """A Kubernetes Deployment of the winner's replicas; a Service or a router goes in front of it."""
    program, verb, *arguments = serving(winner, model)
    listed = "\n".join(f"            - {json.dumps(each)}" for each in arguments)
    return f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: vllm
spec:
  replicas: {winner.holding}
  selector:
    matchLabels: {{app: vllm}}
  template:
    metadata:
      labels: {{app: vllm}}
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai
          command: [{program}, {verb}]
          args:
{listed}
          ports: [{{containerPort: 8000}}]
          resources:
            limits: {{nvidia.com/gpu: {winner.num_gpus}}}
"""


def to_json(advice: "Advice", objectives: "Sequence[Objective]", confidence: float, has_prices: bool) -> str:
    """The plan as JSON; costs are numbers of GPUs where there are no prices."""

    def fleet(candidate: Candidate | None, count: int | None) -> dict[str, Any] | None:
        if candidate is None or count is None:
            return None
        gpus = count * candidate.num_gpus
        return {
            "settings": candidate.settings,
            "replicas": count,
            "gpus": gpus,
            "cost_per_h": count * candidate.price,
        }

    winner, held = advice.winner, advice.held
    found: dict[str, Any] = {
        "has_prices": has_prices,
        "winner": fleet(winner, winner.holding if winner is not None else None),
        "objectives": [],
        "headroom": advice.headroom,
        "at_mean_lengths": fleet(advice.at_means, advice.at_means.holding if advice.at_means else None),
        "next_cheaper": None,
        "candidates": [],
    }
    if winner is not None:
        for each, interval in zip(objectives, intervals(objectives, held, confidence), strict=True):
            half = None if math.isnan(interval.half_width) else interval.half_width
            found["objectives"].append(
                {"objective": each.text, "mean_s": interval.mean, "half_width_s": half}
            )
    if advice.cheaper is not None:
        candidate, count, result = advice.cheaper
        found["next_cheaper"] = (fleet(candidate, count) or {}) | {
            "why": why(candidate, count, result, objectives),
            "values_s": result.values,
        }
    for one in advice.candidates:
        found["candidates"].append(
            {
                "settings": one.settings,
                "fails_with": one.failing,
                "holds_with": one.holding if one.is_verified else None,
                "refused": one.refused,
                "trials": len(one.tried),
            }
        )
    return json.dumps(found, indent=1)
