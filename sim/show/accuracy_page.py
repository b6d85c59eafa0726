"""The accuracy page: what `sundog validate --page` writes and `docs/accuracy.md` shows."""

from collections.abc import Sequence

from sim.show.validation_table import SHOWN, Refusal, Row, cell, counts, error_cell, short, summary, title

HEAD = """# How exact predictions are

`sundog validate DIR --page docs/accuracy.md` writes this page from records of real servers in DIR; without
DIR, from the one that comes with Sundog.

A cell is what was measured, the range that was predicted, and the error of its middle. *Held out* are
loads that no constant was fitted to, though their errors were seen while mechanisms were weighed; where a
constant was fitted, or the form of a part chosen, the row names it. Near and beyond the knee waiting
hangs on the last percent of a step's time: there only the range counts, and throughput.
"""
KNOWN = """## What is predicted, and what is refused

- Step times come from measured kernels of one layer where there are any: A100 80 GB, H100, H200, L40S, RTX
  PRO 6000 (tables of aiconfigurator-core, Apache-2.0), and RTX 4090 (fits to a profile of
  LLMServingSim, MIT); else from a roofline, whose steps are taken to be within 10 %.
- Fitted to servers are 0.43 ms between two steps, 1 ms more where a batch is too large for a captured
  graph, 7 ms of a front end (all: Qwen3-14B on an H100); 2 microseconds of skew between ranks
  (Llama-2-70b on four H100); 0.5 and 0.83 ms to launch a layer without a graph, on one rank and on
  several (p99 of Llama-2 on H100); half a tile for each key head of a decode beside a chunk, and that
  bandwidth bounds the attention of decodes from above (Llama-2-7b; all its loads were looked at).
  Fitted to kernels are tiles of decodes beside chunks (profiles of two RTX cards) and what an
  all-reduce takes through the host's memory (two tables of a pair of RTX PRO 6000).
- The range is the run with steps shorter and longer by what is not known of them (3 % of a dense model
  with tables; more for experts, ranks without peer access, kernels that do not split contexts, sizes
  outside the measured ones), two standard deviations of each figure's estimate, what two identical
  runs differ by, 30 % of a front end, and for p99 what rare things add (35 % of TTFT, 20 % of E2E).
- Near the knee the draw of arrivals moves waiting as much as steps do. Llama-2-70b at 20/s, whose mean
  TTFT is the largest miss (121 ms), was played with four other draws of its arrivals: 70 to 83 ms; with
  steps 2.5 % longer, as its TPOT says they are, three of them took 83 to 102, the medians 64 to 65
  (68 measured). Why a tenth of its requests waited longer still, a summary does not tell.
- Data, pipeline and expert parallelism, drafts, formats of weights and caches of measured servers are
  predicted, and none of these records has one. What is not modelled (LoRA, offloading, eager execution) is
  a line with the reason, and so is a model or GPU that is not known. Clients that give up are not
  simulated: such loads are shown and not counted.
"""


def accuracy_page(rows: Sequence[Row], refusals: Sequence[Refusal]) -> str:
    """Write the accuracy page in Markdown."""
    heads = ["server", "load", "full", "fitted", *map(title, SHOWN)]
    lines = [HEAD, "## Errors", "", *_errors(rows), ""]
    lines += [f"- {line}" for line in counts(rows)]
    lines += ["", "## Servers", "", "Milliseconds, and requests a second.", "", *_head(heads)]
    for row in rows:
        fitted = row.stage.fitted or "–"
        if row.stage.num_gave_up:
            fitted = f"{row.stage.num_gave_up:,} clients gave up"
        first = [
            short(row.server),
            f"{row.stage.rate_per_s:.3g}/s",
            f"{row.prediction.saturation:.0%}",
            fitted,
        ]
        lines.append(_line([*first, *("<br>".join(cell(row, name)) for name in SHOWN)]))
    if refusals:
        lines += ["", "Refused:", "", *(f"- {refusal.server}: {refusal.reason}" for refusal in refusals)]
    return "\n".join([*lines, "", KNOWN])


def _errors(rows: Sequence[Row]) -> list[str]:
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
