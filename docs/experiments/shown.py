"""What the experiments share: a sweep as a table of text, and a picture beside the script that drew it."""

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from sundog import SweepResult
from sundog.library.plots import COLOURS, STYLE, Plot
from sundog.sim.figures.sweep.ranking import blocks

HERE = Path(__file__).parent


def number(value: float) -> str:
    """Three digits of a value: 12.3, 0.0456, 7,890."""
    return f"{float(f'{value:.3g}'):,.10g}"


def show(found: SweepResult) -> None:
    """Print a row for each setting: its axes, each metric, and how the first metric changes.

    All with the half-width of their intervals. The change is to the first setting, or to the first with the
    same value of `by`, and is taken seed by seed: it is known better than the means are.
    """
    axes, first = list(found.cells[0].settings), found.metrics[0]
    heads = [axis.rpartition(".")[2] for axis in axes]
    lines = [[*heads, first.title, "change", *(each.title for each in found.metrics[1:])]]
    for block in blocks(found.cells, found.by):
        for cell in block.cells:
            shown = [(cell.interval(each.name, found.confidence), each.scale) for each in found.metrics]
            shown.insert(1, (cell.change(block.cells[0], first.name, found.confidence), first.scale))
            figures = [f"{number(mean * scale)} ± {number(half * scale)}" for (mean, half), scale in shown]
            figures[1] = "-" if cell is block.cells[0] else figures[1]
            lines.append([*(str(cell.settings[axis]) for axis in axes), *figures])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def bars(found: SweepResult, *names: str) -> Plot:
    """Draw a panel for each of these metrics, in it a bar for each setting and the interval of its mean."""
    shown = [metric for metric in found.metrics if metric.name in names]
    labels = [
        "\n".join(
            v if isinstance(v, str) else f"{name.replace('_', ' ')} {v}" for name, v in each.settings.items()
        )
        for each in found.cells
    ]
    with rc_context(STYLE):
        figure = Figure(
            figsize=(7.2, 0.8 + 0.28 * len(labels) * len(found.cells[0].settings)), layout="constrained"
        )
        for axes, metric in zip(figure.subplots(1, len(shown), sharey=True), shown, strict=True):
            known = [cell.interval(metric.name, found.confidence) for cell in found.cells]
            means, halves = ([part * metric.scale for part in parts] for parts in zip(*known, strict=True))
            axes.barh(labels, means, xerr=halves, color=COLOURS[5], ecolor=COLOURS[0], height=0.6)
            axes.set(xlabel=metric.title, xlim=(0, None))
            axes.grid(visible=False, axis="y")
            axes.set_axisbelow(True)
            axes.locator_params(axis="x", nbins=5)
        figure.axes[0].invert_yaxis()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return Plot(figure)


def save(picture: Plot) -> None:
    """Write the picture beside the script, or into the folder that its first argument names."""
    script = Path(sys.argv[0])
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else script.parent
    picture.save(folder / f"{script.stem}.svg")
