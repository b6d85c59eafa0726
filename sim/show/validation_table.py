"""Predicted beside real: a row per stage, then the errors of each group of stages."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from sim.cost.doubt import BETWEEN_MACHINES, EXCHANGED, FRONT_END_DOUBT, ROOFLINE, ROUTED, TABLES, UNFITTED
from sim.figures.validate.errors import (
    COMPARED,
    MEANS,
    SHOWN,
    TARGET,
    ValidationRow,
    by_family,
    counts,
    coverages,
    summary,
)
from sim.figures.validate.measured import THROUGHPUT, MeasuredServer
from sim.figures.validate.predict import RARE
from sim.show.console import print_table, table_of


class ShownRefusal(NamedTuple):
    """A server of which nothing is predicted, and why."""

    server: str
    reason: str


def print_validation(
    rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal], console: Console
) -> None:
    """Milliseconds (and requests a second), real, predicted, error; near the knee the range instead."""
    table = table_of("server, load", "of the knee", *map(title, SHOWN))
    for row in rows:
        table.add_row(
            f"{short(row.server)}, {row.stage.rate_per_s:.3g}/s"
            + (f"\n  fitted: {row.stage.fitted}" if row.stage.fitted else "")
            + (f"\n  {row.stage.num_gave_up:,} gave up" if row.stage.num_gave_up else ""),
            f"{row.prediction.load:.0%}",
            *("\n".join(cell(row, name)) for name in SHOWN),
        )
    print_table(console, table)
    for refusal in refusals:
        console.print(f"{refusal.server}: refused: {refusal.reason}", markup=False)
    print_table(console, _summary(rows))
    for heads, lines in (FAMILIES, families(rows)), (RANGES, ranges(rows)):
        further = table_of(*heads, num_names=len(heads))
        for cells in lines:
            further.add_row(*cells)
        print_table(console, further)
    for line in counts(rows):
        console.print(line)


def title(name: str) -> str:
    """A figure's name as a head."""
    if name == THROUGHPUT:
        return "requests/s"
    return name.replace("ttft", "TTFT").replace("tpot", "TPOT").replace("e2e", "E2E")


def short(server: MeasuredServer) -> str:
    """A server's name without the instant at which it was measured."""
    return server.name.split("-", 2)[-1] if server.name[:8].isdigit() else server.name


def cell(row: ValidationRow, name: str) -> tuple[str, ...]:
    """Write the measured figure, the predicted range, and the error."""
    error, real = row.error(name), row.stage.figures.get(name)
    if error is None or real is None:
        return ("–",)
    write = _per_s if name == THROUGHPUT else _ms
    prediction = row.prediction
    bounds = f"{write(prediction.low[name])}–{write(prediction.high[name])}"
    if prediction.is_beyond_knee and name not in (THROUGHPUT, "tpot mean"):
        held = prediction.holds(name, real)
        return write(real), bounds, "within" if held else f"{error:+.0%}"
    return write(real), bounds, f"{error:+.1%}"


def _per_s(value: float) -> str:
    return f"{value:.3g}"


def _ms(value_s: float) -> str:
    ms = value_s * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 30 else f"{ms:.2f}"


def _summary(rows: Sequence[ValidationRow]) -> Table:
    table = table_of("mean |error| (median; bias)", *map(title, SHOWN))
    for group, errors in summary(rows).items():
        if errors["stages"]:
            table.add_row(
                f"{group}, {errors['stages']} loads",
                *("\n".join(error_cell(errors["errors"].get(name))) for name in SHOWN),
            )
    return table


def error_cell(error: dict[str, float] | None) -> tuple[str, ...]:
    """Mean, then median and bias."""
    if error is None:
        return ("–",)
    return f"{error['mape']:.1%}", f"({error['median']:.1%}; {error['bias']:+.1%})"


def to_json(rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal]) -> str:
    """Everything in the tables and more; seconds."""
    stages = [
        {
            "server": row.server.name,
            "stage": row.stage.name,
            "rate_per_s": row.stage.rate_per_s,
            "fitted": row.stage.fitted,
            "num_gave_up": row.stage.num_gave_up,
            "family": row.family,
            "saturation": row.prediction.saturation,
            "load": row.prediction.load,
            "amplification": row.prediction.amplification,
            "regime": row.prediction.regime,
            "regime_right": row.is_regime_right,
            "beyond_knee": row.prediction.is_beyond_knee,
            "step_doubt": row.prediction.doubt,
            "real_s": row.stage.figures,
            "predicted_s": row.prediction.figures,
            "predicted_low_s": row.prediction.low,
            "predicted_high_s": row.prediction.high,
        }
        for row in rows
    ]
    found = {
        "stages": stages,
        "refused": [refusal._asdict() for refusal in refusals],
        "groups": summary(rows),
        "families": {name: each._asdict() | {"rise": each.rise} for name, each in by_family(rows).items()},
        "coverage": [{"kind": kind, "name": name, **each._asdict()} for kind, name, each in coverages(rows)],
        "counts": list(counts(rows)),
    }
    return json.dumps(found, indent=1)


FAMILIES = ("family", "loads", *map(title, MEANS), "E2E, lightest load", "heaviest", "rise")
RANGES = ("left out", "figures", "within", "within those of the others", "their width")


def families(rows: Sequence[ValidationRow]) -> Iterator[tuple[str, ...]]:
    """Write the cells of `FAMILIES`."""
    for name, found in by_family(rows).items():
        errors = (found.errors.get(figure) for figure in MEANS)
        over = (found.light, found.heavy, found.rise)
        yield (
            name,
            str(found.num_loads),
            *("–" if error is None else f"{error:.1%}" for error in errors),
            *("–" if error is None else f"{error:+.1%}" for error in over),
        )


def ranges(rows: Sequence[ValidationRow]) -> Iterator[tuple[str, ...]]:
    """Write the cells of `RANGES`."""
    for kind, name, found in coverages(rows):
        shown = name.split("-", 2)[-1] if name[:8].isdigit() else name.rpartition("/")[2]
        others = ("–", "–")
        if found.left_out is not None and found.scale is not None:
            others = (f"{found.left_out:.0%}", f"{found.scale:.2f}")
        yield f"{kind} {shown}", str(found.num_figures), f"{found.as_is:.0%}", *others


HEAD = """# How exact predictions are

`sundog validate DIR --page docs/accuracy.md` writes this page from records of real servers in DIR; without
DIR, from the one that comes with Sundog.

A cell is what was measured, the range that was predicted, and the error of its middle. *Held out* are
loads that no constant was fitted to, though their errors were seen while mechanisms were weighed; where a
constant was fitted, or the form of a part chosen, the row names it. Near and beyond the knee waiting
hangs on the last percent of a step's time: there only the range counts, and throughput.
"""
FAMILY_WORDS = f"""## Families, and errors over load

Mean absolute errors of the means, loads at the knee included; and the error of E2E at the lightest and at
the heaviest load up to {COMPARED:.0%} of the knee. An error that grows with load is a part of a step that is
priced wrong."""
RANGE_WORDS = f"""## What ranges hold

Figures within their ranges, one server, GPU or model at a time; and within ranges that were made without it:
as wide as {TARGET:.0%} of all the others' figures need (their width, of the ranges as they are)."""
SERVER_WORDS = """Milliseconds, and requests a second. *Of the knee* is 1 - 1 / a, where E2E is predicted to
be a % longer with steps 1 % longer, or, if that is more, the share of running slots that are taken."""
KNOWN = f"""## What is predicted, and what is refused

- Step times come from measured kernels of one layer where there are any: A100 80 GB, H100, H200, L40S, RTX
  PRO 6000 (tables of aiconfigurator-core, Apache-2.0), and RTX 4090 (fits to a profile of
  LLMServingSim, MIT); else from a roofline.
- Fitted to servers are 0.43 ms between two steps and 7 ms of a front end (both: Qwen3-14B on an H100, 2
  requests a second); 1.6 microseconds of skew between ranks (Llama-2-70b on four H100, 5 requests a
  second); 0.5 and 0.83 ms to launch a layer without a graph, on one rank and on several (p99 of Llama-2
  on H100); that bandwidth bounds the attention of decodes from above (Llama-2-7b); the 741 TFLOP/s that
  products in 16 bits are bounded by on H100 and H200 (Qwen3-14B at 8 requests a second; four values
  were tried). Fitted to kernels are tiles of decodes beside chunks (profiles of two RTX cards) and what
  an all-reduce takes through the host's memory (two tables of a pair of RTX PRO 6000). Not fitted are
  decodes beside chunks on an H100 (whole tiles of 128 rows, then reading), nor the sampler (lines
  through what the authors of vLLM's three filters measured).
- Clients of the Llama-2 servers sent no settings of sampling, so that vLLM 0.15 sorted all logits for the
  models' top_p of 0.9. Pricing that took the place of a constant: half a tile for each decode beside a
  short chunk, once fitted to Llama-2-7b at 20 requests a second, hid it. The other servers are greedy:
  the logs' author asks for it, and so does `sundog bench`, by which Qwen3-14B is taken to be measured.
- The range is the run with steps shorter and longer by what is not known of them, two standard deviations
  of each figure's estimate, what two identical runs differ by, {FRONT_END_DOUBT:.0%} of a front end, and for
  p99 what rare things add ({RARE["ttft p99"]:.0%} of TTFT, {RARE["e2e p99"]:.0%} of E2E). Not known of steps
  are {TABLES:.0%} of a dense model with tables (more for experts, ranks without peer access, kernels that do
  not split contexts, sizes outside the measured ones), {ROOFLINE:.0%} by the roofline of a dense model in 16
  bits on an H100, {UNFITTED:.0%} by any other, {ROUTED:.0%} more with experts, {EXCHANGED:.0%} for each
  doubling of the ranks that they are split over, and {BETWEEN_MACHINES:.0%} across machines. A step that may
  be 100% longer may be half as long.
- Near the knee the draw of arrivals moves waiting as much as steps do: mean TTFT of Llama-2-70b at 20/s
  (121 ms) was 70 to 83 ms in four other draws, and 83 to 102 in three of them with steps 2.5 % longer; the
  medians hardly moved (64 to 65, 68 measured).
- First steps with experts are slower than priced, and TTFT of a server with experts is too short by them,
  its p99 most. vLLM's `fused_moe_kernel` is compiled for each tile that a number of tokens selects, and again
  where that number divides by 16 or not; warming up reaches some of these only, so the first prompts of a
  new length wait for a compiler (vLLM's pull request 55268: four kernels a rank while serving; 0.2 to 2 s
  each, by TensorRT-LLM's pull request 15311). That hangs on what the server was asked before, and is not
  simulated.
- Without a graph a layer with experts has five kernels more to launch than Llama's ten, of 50 microseconds
  each as fitted there. The router's product, its choice and, for MiniMax-M2, its arithmetic in 32 bits are
  priced beside the experts, whose tables begin with tokens that have been routed. No server was fitted to,
  but one was seen before: MiniMax-M2.5 on eight H100, experts split, four clients (InferenceX pull request
  832, vLLM 0.16, graphs in pieces) has TTFT 84 and TPOT 8.96 ms, predicted 83 and 9.3, and without all this
  67 and 8.7. On four H100 it has 130 and 13.3, predicted 87 and 10.8: why is not known.
- Data, pipeline and expert parallelism, drafts, formats of weights and caches of measured servers are
  predicted, and none of these records has one. What is not modelled (LoRA, offloading, eager execution) is
  a line with the reason, and so is a model or GPU that is not known. Clients that give up are not
  simulated: such loads are shown and not counted.
"""


def accuracy_page(rows: Sequence[ValidationRow], refusals: Sequence[ShownRefusal]) -> str:
    """Write the accuracy page in Markdown."""
    heads = ["server", "load", "of the knee", "fitted", *map(title, SHOWN)]
    lines = [HEAD, "## Errors", "", *_errors(rows), ""]
    lines += [f"- {line}" for line in counts(rows)]
    lines += ["", FAMILY_WORDS, "", *_head(FAMILIES), *map(_line, families(rows))]
    lines += ["", RANGE_WORDS, "", *_head(RANGES), *map(_line, ranges(rows))]
    lines += ["", "## Servers", "", SERVER_WORDS, "", *_head(heads)]
    for row in rows:
        fitted = row.stage.fitted or "–"
        if row.stage.num_gave_up:
            fitted = f"{row.stage.num_gave_up:,} clients gave up"
        first = [short(row.server), f"{row.stage.rate_per_s:.3g}/s", f"{row.prediction.load:.0%}", fitted]
        lines.append(_line([*first, *("<br>".join(cell(row, name)) for name in SHOWN)]))
    if refusals:
        lines += ["", "Refused:", "", *(f"- {refusal.server}: {refusal.reason}" for refusal in refusals)]
    return "\n".join([*lines, "", KNOWN])


def _errors(rows: Sequence[ValidationRow]) -> list[str]:
    lines = _head(["mean absolute error (median; bias)", "loads", *map(title, SHOWN)])
    for group, found in summary(rows).items():
        if found["stages"]:
            cells = (" ".join(error_cell(found["errors"].get(name))) for name in SHOWN)
            lines.append(_line([group, str(found["stages"]), *cells]))
    return lines


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), _line(["---"] * len(names))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
