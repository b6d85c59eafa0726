"""Errors of each family of kernels where measurements were left out (`tools/distil/leave_out.py`).

Mean absolute errors over H100, H200, B200 and RTX PRO 6000, the worst of them, of aiconfigurator-core 0.12.0.
They are of one family's kernels; a step has others beside them.
"""

from typing import Final

LEFT_OUT: Final[dict[str, float]] = {
    "experts": 0.04,
    "experts alike": 0.24,
    "mxfp4 alike": 0.62,
    "whole experts": 0.08,
    "block products": 0.06,
    "latent": 0.09,
    "sparse": 0.08,
    "delta": 0.14,
    "window": 0.06,
    "exchange": 0.07,
}
"""`experts` between measured numbers of tokens; `experts alike` of a model that was left out with all its
rows (medians 8 to 14 %; in mxfp4 only gpt-oss and Kimi-K3 were measured); `whole experts` with half of what
the two ways to route differ by at the fullest rank; `block products` between shapes, and against modules
timed in a graph (2 to 5 %); `latent`, `sparse`, `window`, `delta` of decodes (1 to 14 %) and prompts
(2 to 10 %; those that choose their keys by a fit)."""


def left_out_error(families: frozenset[str]) -> float:
    """The largest error of the families of kernels in a step; 0 where there are none of them."""
    return max((LEFT_OUT[name] for name in families), default=0.0)
