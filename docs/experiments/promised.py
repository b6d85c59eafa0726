"""Three answers of another planner, played: `python docs/experiments/promised.py`."""

from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from shown import HERE, number, save

import sundog
from sundog.library.plots import COLOURS, STYLE, Plot

RATE = "workload.arrivals.rate_per_s"
METRICS = ["ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "tpot_s.p99"]
WAITING = 1.8
"""AIConfigurator's factor of TTFT for waiting (`_AUTOSCALE_TTFT_CORRECTION_FACTOR` in its sdk/sweep.py)."""


class Answer(NamedTuple):
    """The first answer with pools: its engines, the requests a second, TTFT and TPOT in milliseconds."""

    prefill: str
    replicas: int
    decode: str
    per_s: float
    ttft_ms: float
    tpot_ms: float


ANSWERS = {
    "24 h100": Answer("h100:tp2", 8, "h100:tp8x1:max_num_seqs=208", 12.845, 896.281, 29.854),
    "16 h200": Answer("h200:tp2", 6, "h200:tp4x1:max_num_seqs=136", 8.657, 897.179, 28.963),
    "8 b200": Answer("b200:tp1", 4, "b200:tp4x1:max_num_seqs=176", 8.492, 762.892, 24.673),
}


def played(
    answer: Answer, spec: str, replicas: int | None = None, per_s: float | None = None, **more: Any
) -> list[float]:
    """Return TTFT and TPOT, the mean and p99 of each, in milliseconds."""
    prefill = f"prefill={answer.prefill}x{replicas or answer.replicas}:max_num_seqs=1"
    found = sundog.sweep(
        HERE / spec,
        model="llama-3.1-70b",
        max_model_len=38000,
        vary={"pool": [f"{prefill}+decode={answer.decode}"], RATE: [per_s or answer.per_s]},
        metrics=METRICS,
        warmup_s=20,
        **{"replications": 4, **more},
    )
    (cell,) = found.cells
    return [1000 * cell.interval(each, found.confidence)[0] for each in METRICS]


def rows(answer: Answer) -> dict[str, list[float]]:
    """Return what is promised, and what comes of it."""
    fixed, room = "promised_fixed.toml", int(answer.decode.rpartition("=")[2]) + 32
    alone = played(answer, fixed, per_s=0.5, max_concurrency=1, replications=1)
    full = played(answer, fixed, replicas=16, per_s=50, max_concurrency=room, replications=1)
    return {
        "promised": [answer.ttft_ms, answer.tpot_ms],
        "promised, but for waiting": [answer.ttft_ms / WAITING, answer.tpot_ms],
        "one request alone, a full batch": [alone[0], full[2]],
        "fixed lengths": played(answer, fixed),
        "lengths that differ": played(answer, "promised.toml"),
    }


def picture(found: dict[str, dict[str, list[float]]]) -> Plot:
    """Draw TTFT and TPOT of each fleet: promised, with fixed lengths, with lengths that differ."""
    names = ("promised", "fixed lengths", "lengths that differ")
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        for column, (axes, title) in enumerate(zip(figure.subplots(1, 2), ("TTFT", "TPOT"), strict=True)):
            for place, name in enumerate(names):
                values = [each[name] for each in found.values()]
                means = [value[column if len(value) == 2 else 2 * column] for value in values]
                places = [at + 0.25 * (place - 1) for at in range(len(found))]
                axes.bar(places, means, width=0.25, color=COLOURS[(0, 5, 2)[place]], label=name)
            axes.set(ylabel=f"{title} mean ms", xticks=range(len(found)), xticklabels=list(found))
            axes.grid(visible=False, axis="x")
            axes.set_axisbelow(True)
        figure.axes[0].legend(loc="upper center")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return Plot(figure)


def main() -> None:
    """Print what three fleets promise and what they do, and draw it."""
    found = {fleet: rows(answer) for fleet, answer in ANSWERS.items()}
    print(f"{'':42}{'TTFT mean ms':>14}{'TTFT p99 ms':>13}{'TPOT mean ms':>14}{'TPOT p99 ms':>13}")
    for fleet, each in found.items():
        for name, values in each.items():
            cells = values if len(values) == 4 else [values[0], None, values[1], None]
            shown = ("-" if value is None else number(value) for value in cells)
            line = "".join(text.rjust(width) for text, width in zip(shown, (14, 13, 14, 13), strict=True))
            print(f"{fleet:9}{name:33}{line}")
    save(picture(found))


if __name__ == "__main__":
    main()
