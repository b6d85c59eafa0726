"""Outliers of measurements: points that contradict their neighbours, since work grows along every axis.

More tokens or more context never take less time. A table in which they do holds either noise, which a running
maximum smooths, or a disturbed point, which a running maximum would spread over all points behind it: an A100
took 93.7 microseconds for 4 decodes of 512 tokens, and 22.6 and 27.4 for half and twice the context. Such
points are replaced by interpolation between their neighbours.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sundog.sim.cost.tables.interpolate import Floats, Points, log_interp

MOST_FALL: Final = 1.3
"""Factor by which a point may exceed another with more of everything: noise and choices of tiles."""
MOST_OUTLIERS: Final = 1 / 16
"""Share of a matrix above which contradictions mean another kernel rather than outliers: 1,024 decodes
with heads of 512 numbers take a tenth of the time of 512 on an H100 and on an H200.
"""


def outliers(seconds: Floats) -> NDArray[np.bool_]:
    """Return the points of a matrix that contradict the most others, until no two contradict each other.

    Two points contradict if the one with at most as much along both axes took more than `MOST_FALL` times as
    long. NaN stands for missing points. None are returned if more than two were, and more than
    `MOST_OUTLIERS` of all.
    """
    found = np.zeros(seconds.shape, dtype=np.bool_)
    filled = np.where(np.isnan(seconds), 0.0, seconds)
    highest = np.maximum.accumulate(np.maximum.accumulate(filled, axis=1), axis=0)
    if not (highest > MOST_FALL * seconds).any():
        return found
    row, column = np.nonzero(~np.isnan(seconds))
    taken_s = seconds[row, column]
    is_less = (row[:, None] <= row) & (column[:, None] <= column)
    falls = np.where(is_less, np.log(taken_s[:, None] / taken_s), 0.0)
    contradicts = falls > np.log(MOST_FALL)
    contradicts |= contradicts.T
    depth = np.where(contradicts, np.maximum(falls, falls.T), 0.0)
    while contradicts.any():
        counts = contradicts.sum(axis=1)
        # Of two points that contradict as many others, the one farther from them.
        worst = int(np.argmax(np.where(counts == counts.max(), depth.sum(axis=1), -1.0)))
        found[row[worst], column[worst]] = True
        for matrix in (contradicts, depth):
            matrix[worst] = matrix[:, worst] = 0
    few = found.sum() <= max(len(row) * MOST_OUTLIERS, 2)
    return found if few else np.zeros_like(found)


def _between(x: float, xs: Points | Floats, ys: Floats) -> float:
    """Return `ys` at `x` in log space: the first before all `xs`, and on the last line behind them."""
    return log_interp(max(x, float(xs[0])), xs.tolist(), ys.tolist())


def mended_line(sizes: Points | Floats, seconds: Floats) -> Floats:
    """Replace the outliers of a line by interpolation between the others in log space."""
    bad = outliers(seconds[None])[0]
    if not bad.any():
        return seconds
    mended = seconds.copy()
    for place in np.flatnonzero(bad).tolist():
        mended[place] = _between(float(sizes[place]), sizes[~bad], seconds[~bad])
        mended[place] = min([mended[place], *seconds[place:][~bad[place:]].tolist()])
    return mended


def mended_grid(batches: Floats, contexts: Floats, seconds: Floats) -> Floats:
    """Replace the outliers of decodes by interpolation between their neighbours.

    Linearly between contexts of the same batch; behind the last of them, and if a batch has none left,
    between batches in log space. Never more than any point with more requests and context took.
    """
    bad = outliers(seconds)
    if not bad.any():
        return seconds
    kept = np.where(bad, np.nan, seconds)
    mended = kept.copy()
    for row, column in np.argwhere(bad).tolist():
        known = np.flatnonzero(~np.isnan(kept[row]))
        if len(known) and column < known[-1]:
            between_s = float(np.interp(contexts[column], contexts[known], kept[row, known]))
        else:
            others = np.flatnonzero(~np.isnan(kept[:, column]))
            between_s = _between(float(batches[row]), batches[others], kept[others, column])
        behind = kept[row:, column:]
        mended[row, column] = min([between_s, *behind[~np.isnan(behind)].tolist()])
    return mended
