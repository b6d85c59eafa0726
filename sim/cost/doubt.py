"""Doubt of a predicted step: how well its kinds of kernels were measured, and how far it extrapolates.

A doubt of d means that a step takes from 1 / (1 + d) to 1 + d times as long as predicted. Its parts are not
fitted server by server; they are errors of whole kinds of prediction, rounded up.
"""

import math

from sundog.sim.cost.calibrated import Calibrated, InRange
from sundog.sim.cost.composed import Pipeline, ScaledCost, WithDrafts
from sundog.sim.cost.overhead import WithOverhead
from sundog.sim.cost.roofline import Roofline
from sundog.sim.cost.tables.model import TablesCost
from sundog.sim.cost.work import CostModel
from sundog.sim.hardware.gpu import MACHINE_GPUS

TABLES = 0.03
"""Doubt of measured tables: steps that were not fitted are within 2 %; two runs of one server differ by 0.7.
"""
PER_DOUBLING = 0.01
"""Relative error added per doubling beyond an operator's measured sizes."""
EXPERTS = 0.04
"""Doubt of how tokens are routed to experts: the two tables of one layer differ by a tenth and more. Kernels
of models that were not measured, and other kinds of layers, are off by more (sim/cost/tables/left_out.py).
"""
WHOLE_EXPERTS = 0.25
"""Doubt of whole experts on ranks: a token takes 0.96 and 1.23 times as long as predicted on two servers
(MiniMax-M2.5 on eight and on four H100, docs/accuracy.md).
"""
LATENT = 0.32
"""Doubt of latent attention: a token of DeepSeek-R1 takes 1.31 times as long as predicted with four clients
(eight H200, vLLM 0.11). Which of its kernels differ from the measured ones of 0.24 is not known.
"""
HOST_LINK = 0.05
"""Doubt of all-reduces through host memory: their rule is within 14 % of the measurements, and they are up
to a third of a step.
"""
WALKED = 0.02
"""Doubt of kernels that do not split contexts (FlashAttention 2): decodes with chunks are priced within 12 %
of two profiles, and take up to a sixth of a step.
"""
DERIVED_CACHE = 0.15
"""Doubt of attention on an 8-bit cache that is derived from 16-bit kernels: decodes that read half the bytes
take 0.51 to 0.55 of the time on an H100 and a B200 and 0.65 to 0.7 on an H200, where both were measured, and
attention is up to two thirds of a step.
"""
ROOFLINE = 0.10
"""Doubt of rooflines, whose efficiencies were fitted on an H100 alone, to dense models in 16 bits."""
UNFITTED = 0.30
"""Doubt of other GPUs, formats and kinds of layers: products in fp8 on five GPUs take 0.97 to 1.38 of the
roofline, as measured in three batches of Qwen3-32B.
"""
FOUR_BITS = 2.0
"""Doubt of 4-bit weights that are multiplied in 16 bits, by a roofline: it depends on the server's kernel
(AWQ and GPTQ servers took 2.2 to 3 times as long as predicted).
"""
ROUTED = 0.30
EXCHANGED = 0.30
"""Doubt of experts by a roofline, and of each doubling of the ranks they are split over: their many small
kernels, uneven loads and the transfers of tokens were not measured. Two such servers take 1.2 times as
long as predicted for a token (Qwen3-30B-A3B on two RTX PRO 6000) and 2.3 times (MiniMax-M2.5, fp8,
eight H200).
"""
BETWEEN_MACHINES = 1.0
"""Doubt of a network: several machines are priced by the link of one, which is several times faster."""
CALIBRATED = 0.05
"""Relative error of a calibrated file, unless the file itself has a larger one.

Shapes outside the fit were off by 3 to 5 % on nearly quiet machines (median, docs/measuring.md).
"""
PER_DOUBLING_OF_A_LOG = 0.05
"""Relative error added per doubling of a step's size beyond the steps of a log, to which the cost was fitted.
"""
BEYOND = 1.1
"""Ratio to the largest step of a log from which a remark is printed."""
FAR = 2.0
"""Ratio to the measured sizes, above or below, from which a remark is printed."""


def kernels_of(cost: CostModel) -> CostModel:
    """Return the cost model without the host's share, scaling and draft model around it."""
    while isinstance(cost, WithDrafts | WithOverhead | ScaledCost):
        cost = cost.model
    return cost


def outside_measured(*costs: CostModel) -> dict[str, float]:
    """Return how far outside its measured sizes each operator was used, by name; small ratios are omitted."""
    found: dict[str, float] = {}
    for cost in costs:
        model = kernels_of(cost)
        if isinstance(model, Pipeline):
            far_out = outside_measured(*model.stages)
        elif isinstance(model, TablesCost | InRange):
            far = FAR if isinstance(model, TablesCost) else BEYOND
            far_out = {name: factor for name, factor in model.coverage.factors.items() if factor >= far}
        else:
            continue
        for name, factor in far_out.items():
            found[name] = max(factor, found.get(name, 0.0))
    return found


FRONT_END_DOUBT = 0.3
"""Error of a front end's time, as a share: it was fitted to one server, and depends on its CPU."""


def step_doubt(cost: CostModel) -> float:
    """Return the doubt of a step: of all sizes before a run, of the sizes that were used after it."""
    if isinstance(cost, Pipeline):
        return max(step_doubt(stage) for stage in cost.stages)
    model = kernels_of(cost)
    if isinstance(model, Calibrated):
        return CALIBRATED
    if isinstance(model, InRange):
        doublings = sum(math.log2(factor) for factor in model.coverage.factors.values())
        return max(CALIBRATED, model.doubt) + PER_DOUBLING_OF_A_LOG * doublings
    if isinstance(model, Roofline):
        doubt = ROOFLINE if model.was_fitted else UNFITTED
        doubt = FOUR_BITS if model.unpacks_weights else doubt
        if model.has_experts:
            doubt += ROUTED + EXCHANGED * math.log2(model.num_ranks)
        return doubt + BETWEEN_MACHINES * (model.num_ranks > MACHINE_GPUS)
    if not isinstance(model, TablesCost):
        return ROOFLINE
    doubt = (
        TABLES + WALKED * (not model.splits_contexts) + BETWEEN_MACHINES * (model.num_ranks > MACHINE_GPUS)
    )
    whole = WHOLE_EXPERTS * ("whole experts" in model.families)
    latent = LATENT * bool({"latent", "sparse"} & model.families)
    doubt += max(EXPERTS * model.has_experts, model.left_out_error, whole, latent)
    doubt += HOST_LINK * model.reduces_through_host + DERIVED_CACHE * model.derives_cache
    return doubt + PER_DOUBLING * sum(math.log2(f) for f in model.coverage.factors.values())
