"""The doubt of a predicted step: what was measured, and how far outside of it the model was asked.

A doubt of d says that a step takes from 1 / (1 + d) to 1 + d times as long as predicted. Its parts are
not fitted server by server; they are errors of whole kinds of prediction, rounded up.
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
"""The doubt of measured tables: steps not fitted to are within 2 %; two runs of one server differ by 0.7."""
PER_DOUBLING = 0.01
"""The doubt for each doubling beyond the measured sizes of an operator."""
EXPERTS = 0.04
"""The doubt of how tokens are routed: the two tables of one layer differ by a tenth and more. Kernels of
models that were not measured, and other kinds of layers, are off by more (sim/cost/tables/left_out.py)."""
WHOLE_EXPERTS = 0.25
"""The doubt of experts given whole to ranks: a token takes 0.96 and 1.23 times as long as predicted on two
servers (MiniMax-M2.5 on eight and on four H100, docs/accuracy.md)."""
HOST_LINK = 0.05
"""The doubt of all-reduces through the host's memory: their rule is within 14 % of what was measured, and
they are up to a third of a step."""
WALKED = 0.02
"""The doubt where a kernel walks through contexts alone (FlashAttention 2): decodes with chunks are priced
within 12 % of two profiles, and they are up to a sixth of a step."""
ROOFLINE = 0.10
"""The doubt of rooflines, whose efficiencies were fitted on an H100 alone, to dense models in 16 bits."""
UNFITTED = 0.30
"""The doubt of other GPUs, formats and kinds of layers: products in fp8 on five GPUs take 0.97 to 1.38 of
what a roofline says, as measured in three batches of Qwen3-32B."""
ROUTED = 0.30
EXCHANGED = 0.30
"""The doubt of experts by a roofline, and of each doubling of the ranks they are split over: their many small
kernels, uneven loads and the tokens' way to them were not measured. Two such servers take 1.2 times as long
as predicted for a token (Qwen3-30B-A3B on two RTX PRO 6000) and 2.3 times (MiniMax-M2.5, fp8, eight H200)."""
BETWEEN_MACHINES = 1.0
"""The doubt of a network: several machines are priced by the link of one, which is several times faster."""
CALIBRATED = 0.05
"""The doubt of a calibrated file: shapes that were not fitted were explained to 3 to 5 % on nearly quiet
machines (median, docs/measuring.md). A file that says more of itself is doubted as much."""
PER_DOUBLING_OF_A_LOG = 0.05
"""The doubt for each doubling beyond the steps of a log, where a straight line is a guess."""
BEYOND = 1.1
"""A factor beyond the steps of a log from which on a remark is due."""
FAR = 2.0
"""A factor outside the measured sizes from which on a remark is due."""


def kernels_of(cost: CostModel) -> CostModel:
    """The model below the host's share, any scaling and any draft model."""
    while isinstance(cost, WithDrafts | WithOverhead | ScaledCost):
        cost = cost.model
    return cost


def outside_measured(*costs: CostModel) -> dict[str, float]:
    """Return, by operator, how far outside its measured sizes any of the costs was asked, if that is far."""
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
"""The share by which a front end's time may be off: it was fitted to one server, and hangs on its CPU."""


def step_doubt(cost: CostModel) -> float:
    """The doubt of a step; after a run, for what it asked."""
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
        if model.has_experts:
            doubt += ROUTED + EXCHANGED * math.log2(model.num_ranks)
        return doubt + BETWEEN_MACHINES * (model.num_ranks > MACHINE_GPUS)
    if not isinstance(model, TablesCost):
        return ROOFLINE
    doubt = (
        TABLES + WALKED * (not model.splits_contexts) + BETWEEN_MACHINES * (model.num_ranks > MACHINE_GPUS)
    )
    whole = WHOLE_EXPERTS * ("whole experts" in model.families)
    doubt += max(EXPERTS * model.has_experts, model.left_out_error, whole)
    doubt += HOST_LINK * model.reduces_through_host
    return doubt + PER_DOUBLING * sum(math.log2(f) for f in model.coverage.factors.values())
