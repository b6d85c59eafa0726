"""A plan for people, and as JSON."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sundog.planning.pools import PoolsCandidate
from sundog.planning.search import MOST_LOAD, Candidate, intervals
from sundog.sim.show import words

if TYPE_CHECKING:
    from rich.table import Table

    from sundog.planning.advice import Advice
    from sundog.planning.trial import TrialResult
    from sundog.sim.figures.named import Objective

MOST_ROWS = 20


def named(candidate: Candidate, count: int, spare: int | None = None) -> str:
    """Return the name of a fleet, such as `8 x h100, TP 2 (16 GPUs)`, with further settings.

    The fleet has `count` replicas and the spare ones. Pools are named as in `--pool`: `prefill=h100:tp2x3,
    decode=h100:tp4x1 (10 GPUs)`.
    """
    spare = candidate.spare if spare is None else spare
    settings = dict(candidate.settings_of(count, spare))
    if isinstance(candidate, PoolsCandidate):
        machines = settings.pop("pool").replace("+", ", ")
    else:
        gpu, ranks = settings.pop("gpu"), settings.pop("tensor_parallel_size")
        machines = f"{count + spare} x {gpu}, TP {ranks}"
    further = "".join(f", {name}={value}" for name, value in settings.items())
    gpus = candidate.gpus_of(count, spare)
    return f"{machines}{further} ({gpus} GPU{'s' * (gpus != 1)})"


def why(result: "TrialResult", objectives: "Sequence[Objective]") -> str:
    """Return why a fleet fails: the objectives it misses, and by how much."""
    if result.refused is not None:
        return result.refused
    if result.turned_away is not None:
        return result.turned_away
    if result.is_lost_early:
        return f"{_missed(result, objectives)} missed for certain after {result.share:.0%} of the requests"
    missed = [
        f"{each.text} is {'infinite' if math.isinf(value) else f'{value:.3g} s'}"
        for each in objectives
        if not (value := result.values.get(each.metric.name, 0.0)) <= each.below_s
    ]
    if result.num_unfinished:
        missed.append(_unanswered(result))
    return "; ".join(missed) or "every sample meets it, but the confidence interval crosses the limit"


def _unanswered(result: "TrialResult") -> str:
    return f"{result.num_unfinished:,} of {result.num_requests:,} requests got no answer"


def _missed(result: "TrialResult", objectives: "Sequence[Objective]") -> str:
    values = result.values
    missed = [e.text for e in objectives if not values.get(e.metric.name, 0.0) <= e.below_s]
    return " and ".join(missed or [each.text for each in objectives])


def print_advice(
    advice: "Advice", objectives: "Sequence[Objective]", confidence: float, has_prices: bool
) -> None:
    """Print the fleets that were tried, the cheapest first, and the advice on the winner."""
    from sundog.sim.show.console import console_for, print_table

    console = console_for()
    print_table(console, _table(advice, objectives, has_prices))
    if (further := len(_shown(advice)) - MOST_ROWS) > 0:
        console.print(f"and {further} more, which cost no less or cannot run")
    if advice.winner is None:
        console.print(_why_none(advice), markup=False, soft_wrap=True)
        return
    for line in _lines(advice, objectives, confidence, has_prices):
        console.print(line, markup=False, soft_wrap=True)


def _why_none(advice: "Advice") -> str:
    """Return the reason why no fleet was found, and what to change."""
    able = [each for each in advice.candidates if each.refused is None]
    if not able:
        return "No fleet can run: the table has the reason for each. Try other GPUs (--gpu) or ranks (-tp)."
    if all([each.is_hopeless for each in able]):
        return (
            "No fleet meets the objectives, however large: on each machine even a request alone misses them."
            " Loosen them, or try other GPUs (--gpu), ranks (-tp) or a smaller model."
        )
    return "No fleet meets the objectives: allow a larger one (--max-gpus), or other settings."


def _shown(advice: "Advice") -> list[Candidate]:
    ordered = sorted(advice.candidates, key=lambda each: min(each.cost, each.bound))
    return [each for each in ordered if each is advice.winner or not each.is_variant]


def _table(advice: "Advice", objectives: "Sequence[Objective]", has_prices: bool) -> "Table":
    from rich import box
    from rich.table import Table

    def amount(value: float) -> str:
        return f"{value:,.2f}" if has_prices else f"{value:,.0f}"

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fleet")
    table.add_column("cost/h" if has_prices else "GPUs", justify="right")
    table.add_column("")
    for each in _shown(advice)[:MOST_ROWS]:
        if each.is_verified and each.holding is not None:
            size = _size(advice, each)
            table.add_row(named(each, each.holding), amount(each.cost), f"holds{size and f'; {size}'}")
            continue
        count, reason = min(each.failing + 1, each.most), "not tried: it costs no less"
        if each.refused is not None:
            count, reason = 1, each.refused.partition(": ")[0]
        elif each.alone is not None and each.is_hopeless:
            missed = f"even a request alone misses {_missed(each.alone, objectives)}"
            count, reason = 1, f"no number works: {each.alone.turned_away or missed}"
        elif each.failing:
            last = [result for (n, _), result in each.tried.items() if n == each.failing]
            lost = next((result for result in last if not result.is_held), last[0])
            count, reason = each.failing, why(lost, objectives)
        bound = "" if math.isinf(each.bound) else f">= {amount(each.bound)}"
        table.add_row(named(each, count), bound, reason)
    return table


def _lines(
    advice: "Advice", objectives: "Sequence[Objective]", confidence: float, has_prices: bool
) -> Iterator[str]:
    winner, held = advice.winner, advice.held
    assert winner is not None and winner.holding is not None
    price = f", {winner.cost:,.2f} an hour" if has_prices else ""
    yield f"Buy {named(winner, winner.holding)}{price}."
    for each, interval in zip(objectives, intervals(objectives, held, confidence), strict=True):
        spread = "" if math.isnan(interval.half_width) else f" ± {interval.half_width:.3g}"
        samples = f"{len(held)} samples" if len(held) > 1 else "one sample, so no interval"
        yield f"  {each.text}: {interval.mean:.3g}{spread} s ({samples})"
    if winner.doubt:
        range_ = words.steps_within(winner.doubt)
        size = _size(advice, winner)
        range_ += size and f", {size}"
        yield f"  The model's own range: {range_}. The intervals above are of samples alone."
    # The worst sample alone: a mean would hide requests that objectives of percentiles let go unanswered.
    for result in sorted(held, key=lambda each: -each.num_unfinished)[:1]:
        if result.num_unfinished:
            why_not = "" if result.turned_away is None else f" ({result.turned_away})"
            yield f"  {_unanswered(result)}{why_not}, as the objectives allow."
    hours = sum(each.span_s for each in held) / 3600
    if has_prices and hours:
        # One bill cannot be split between input and output tokens: each price is as if the other were free.
        per_token = [
            f"{winner.cost * hours / count * 1e6:,.3f} per million tokens {way}"
            for way, count in (
                ("in", sum(each.prompt_tokens for each in held)),
                ("out", sum(each.output_tokens for each in held)),
            )
            if count
        ]
        yield f"  Price if input or output tokens carried the whole bill: {', '.join(per_token)}."
    if winner.spare:
        lost = "of either pool" if isinstance(winner, PoolsCandidate) else "of these replicas"
        yield f"  It meets the objectives with {winner.spare} {lost} down; all figures here are for this."
    else:
        one_more = replace(winner, spare=1)
        yield f"  To meet them with one replica down: {named(one_more, winner.holding)}" + (
            f", {one_more.price_of(winner.holding):,.2f} an hour." if has_prices else "."
        )
    if advice.headroom is not None:
        limit = "up to" if advice.headroom < MOST_LOAD else "even at"
        yield f"  Headroom: one sample meets the objectives {limit} {advice.headroom:.2f} times this load."
    yield from _compared(advice, objectives, winner, has_prices)
    if (resized := advice.resized) is not None:
        hours, whole = resized.replica_hours, winner.bought * resized.span_s / 3600
        yield (
            f"A perfect autoscaler, which resizes the fleet every {resized.window_s:g} s and foresees"
            f" the load, takes {hours * winner.num_gpus:,.2f} GPU-hours where this fleet takes"
            f" {whole * winner.num_gpus:,.2f} ({hours / whole:.0%}):"
            f" {min(resized.replicas)} to {max(resized.replicas)} replicas."
        )


def _compared(
    advice: "Advice", objectives: "Sequence[Objective]", winner: Candidate, has_prices: bool
) -> Iterator[str]:
    """Yield what else could have been bought, and why it was not."""
    if advice.cheaper is not None:
        candidate, count, result = advice.cheaper
        reason = why(result, objectives)
        yield f"The next cheaper fleet fails. {named(candidate, count)}: {reason}."
    if not has_prices and len({each.settings.get("gpu") for each in advice.candidates} - {None}) > 1:
        yield "GPUs are counted as if all cost the same: --prices FILE compares them by price."
    if (mean := advice.at_means) is not None and mean.holding is not None:
        bought = named(mean, mean.holding) + (f", {mean.cost:,.2f} an hour" if has_prices else "")
        if winner.holding is not None and named(mean, mean.holding) == named(winner, winner.holding):
            bought = "the same"
        yield f"Sized by mean lengths alone, one would have bought {bought}."
    if advice.tuned:
        values = "; ".join(f"{name} {', '.join(map(str, tried))}" for name, tried in advice.tuned.items())
        verb = "Chosen among" if winner.is_variant else "No fewer replicas meet the objectives with"
        yield f"{verb} other settings ({values})."


def _size(advice: "Advice", candidate: Candidate) -> str:
    """Return the range of GPUs that a candidate needs, as words; empty if it is a single number."""
    found = advice.range_of(candidate)
    assert candidate.holding is not None
    if found is None or found.least == found.most:
        return ""
    least = candidate.gpus_of(found.least, candidate.spare)
    if found.most is None:
        return f"{least} to more than {candidate.gpus_of(candidate.most, candidate.spare)} GPUs"
    return f"{least} to {candidate.gpus_of(found.most, candidate.spare)} GPUs"


def to_json(advice: "Advice", objectives: "Sequence[Objective]", confidence: float, has_prices: bool) -> str:
    """Return the plan as JSON; costs are numbers of GPUs if there are no prices."""

    def fleet(candidate: Candidate | None, count: int | None) -> dict[str, Any] | None:
        if candidate is None or count is None:
            return None
        return {
            "settings": candidate.settings_of(count, candidate.spare),
            "replicas": candidate.replicas_of(count, candidate.spare),
            "gpus": candidate.gpus_of(count, candidate.spare),
            "cost_per_h": candidate.price_of(count),
        }

    def sizes(candidate: Candidate) -> dict[str, Any] | None:
        """Return the smallest and largest size of a fleet within the error of the cost model; None if the
        largest fails.
        """
        found = advice.range_of(candidate)
        if found is None:
            return None
        least = fleet(candidate, found.least)
        return {"doubt": candidate.doubt, "least": least, "most": fleet(candidate, found.most)}

    winner, held = advice.winner, advice.held
    found: dict[str, Any] = {
        "has_prices": has_prices,
        "winner": fleet(winner, None if winner is None else winner.holding),
        "winner_range": None if winner is None else sizes(winner),
        "objectives": [],
        "unanswered": [result.num_unfinished for result in held],
        "spare_replicas": 0 if winner is None else winner.spare,
        "headroom": advice.headroom,
        "headroom_is_most_tried": advice.headroom == MOST_LOAD,
        "at_mean_lengths": fleet(advice.at_means, advice.at_means.holding if advice.at_means else None),
        "tuned": advice.tuned,
        "autoscaler": None,
        "next_cheaper": None,
        "candidates": [],
    }
    if winner is not None:
        for each, interval in zip(objectives, intervals(objectives, held, confidence), strict=True):
            half = None if math.isnan(interval.half_width) else interval.half_width
            found["objectives"].append(
                {"objective": each.text, "mean_s": interval.mean, "half_width_s": half}
            )
    if winner is not None and (resized := advice.resized) is not None:
        found["autoscaler"] = {
            "window_s": resized.window_s,
            "replicas": list(resized.replicas),
            "gpu_hours": resized.replica_hours * winner.num_gpus,
            "gpu_hours_of_winner": winner.bought * winner.num_gpus * resized.span_s / 3600,
        }
    if advice.cheaper is not None:
        candidate, count, result = advice.cheaper
        found["next_cheaper"] = (fleet(candidate, count) or {}) | {
            "why": why(result, objectives),
            "values_s": {n: None if math.isinf(v) else v for n, v in result.values.items()},
            "unanswered": result.num_unfinished,
        }
    for one in advice.candidates:
        found["candidates"].append(
            {
                "settings": one.settings_of(one.holding or min(one.failing + 1, one.most), one.spare),
                "fails_with": one.failing,
                "holds_with": one.holding if one.is_verified else None,
                "refused": one.refused,
                "is_hopeless": one.is_hopeless,
                "trials": len(one.tried),
                "step_doubt": one.doubt,
                "range": sizes(one),
            }
        )
    return json.dumps(found, indent=1)
