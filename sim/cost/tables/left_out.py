"""Errors of each family of kernels for left-out measurements (`tools/distil/leave_out.py`).

Mean absolute errors on H100, H200, B200 and RTX PRO 6000, the worst of them, of aiconfigurator-core 0.12.0.
They are those of one family's kernels; a step has others, too.
"""

from typing import Final

LEFT_OUT: Final[dict[str, float]] = {
    "experts": 0.04,
    "experts alike": 0.24,
    "mxfp4 alike": 0.62,
    "marlin alike": 0.07,
    "whole experts": 0.08,
    "block products": 0.06,
    "latent": 0.09,
    "sparse": 0.08,
    "delta": 0.14,
    "window": 0.06,
    "derived window": 0.45,
    "exchange": 0.07,
}
"""Error by family: `experts` between measured numbers of tokens; `experts alike` of a model that was left
out with all its rows (medians 8 to 14 %; in mxfp4 only gpt-oss and Kimi-K3 were measured); `marlin alike` the
same of ten models in 4 bits on an A100 (3 to 7 %); `derived window` of windows of 128 that were measured
elsewhere, derived from kernels without one (decodes 3 to 42 %); `whole
experts` with half of the difference between both ways to route at the fullest rank; `block products`
between shapes, and against modules timed in a graph (2 to 5 %); `latent`, `sparse`, `window`, `delta`
of decodes (1 to 14 %) and prompts (2 to 10 %; sparse ones by a fit).
"""


def left_out_error(families: frozenset[str]) -> float:
    """Return the largest error of the families of kernels in a step; 0 without any."""
    return max((LEFT_OUT[name] for name in families), default=0.0)
