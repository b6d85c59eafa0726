"""The backends of emulated replicas: the cost model's pace, and answers in the place of a model's."""

from collections.abc import Callable

from actors.config.speculative import SpeculativeConfig
from actors.messages import Capacity
from actors.metrics.totals import Lag
from sim.backend import CostBackend
from sim.cost.composed import InStep
from sim.cost.work import CostModel
from sim.emulation.answers import Answers
from sim.emulation.made_up_logprobs import MadeUpLogprobs
from sim.emulation.pace import LivePace
from sim.emulation.scripts import Scripted, Scripts
from sim.in_step import RankBackend, Wave
from sim.pipelined import PipelinedBackend, cost_backend
from sim.speculated import AcceptanceModel, Speculated


def emulated_backends(
    cost: CostModel,
    capacity: Capacity,
    answers: Answers,
    eos_token_id: int,
    vocab_size: int,
    lag: Lag,
    seed: int = 0,
    speculation: SpeculativeConfig | None = None,
    before_step: Callable[[], None] = lambda: None,
) -> Callable[[int], CostBackend | PipelinedBackend | RankBackend]:
    """Return the maker of a replica's backend, which has the pace of `cost` and tells `lag` of its own.

    What `before_step` raises crashes the engine, and with it those that go in step with it.
    """
    drafts = None if speculation is None else AcceptanceModel.of(speculation, seed)

    def tokens() -> Scripted:
        scripts = Scripts(answers, eos_token_id)
        return Scripted(scripts, None if drafts is None else Speculated(scripts, drafts))

    waves: dict[int, Wave] = {}

    def new_backend(replica: int) -> CostBackend | PipelinedBackend | RankBackend:
        source = MadeUpLogprobs(tokens(), vocab_size)
        if not isinstance(cost, InStep):
            return cost_backend(LivePace(cost, replica, lag, before_step), source, capacity)
        number = replica // cost.num_ranks
        if number not in waves:
            first = number * cost.num_ranks
            waves[number] = Wave(cost, number, LivePace(cost, first, lag, before_step))
        return RankBackend(waves[number], replica, source, capacity)

    return new_backend
