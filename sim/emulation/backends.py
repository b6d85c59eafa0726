"""What an emulated replica runs on: the cost model's pace, and answers in the place of a model's."""

from collections.abc import Callable

from actors.core.config import ConfigError
from actors.messages import Capacity
from actors.metrics.lag import Lag
from actors.speculative_config import SpeculativeConfig
from sim.acceptance import AcceptanceModel
from sim.backend import CostBackend
from sim.cost.in_step import InStep
from sim.cost.work import CostModel
from sim.emulation.answers import Answers
from sim.emulation.made_up_logprobs import MadeUpLogprobs
from sim.emulation.pace import LivePace
from sim.emulation.scripts import Scripted, Scripts
from sim.pipelined import PipelinedBackend, cost_backend
from sim.speculated import Speculated


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
) -> Callable[[int], CostBackend | PipelinedBackend]:
    """What makes the backend of a replica, which answers at the pace of `cost` and tells `lag` of its own.

    What `before_step` raises crashes the engine. Raises ConfigError for ranks that go in step.
    """
    if isinstance(cost, InStep):
        raise ConfigError(
            f"data_parallel_size is {cost.num_ranks}: ranks that share experts go in step, which only replay"
            " and sweep simulate; leave it at 1"
        )
    drafts = None if speculation is None else AcceptanceModel.of(speculation, seed)

    def tokens() -> Scripted:
        scripts = Scripts(answers, eos_token_id)
        return Scripted(scripts, None if drafts is None else Speculated(scripts, drafts))

    def new_backend(replica: int) -> CostBackend | PipelinedBackend:
        pace = LivePace(cost, replica, lag, before_step)
        return cost_backend(pace, MadeUpLogprobs(tokens(), vocab_size), capacity)

    return new_backend
