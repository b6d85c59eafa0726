"""The engine of the demonstration, and its requests once more on the virtual clock."""

from dataclasses import dataclass, field

from actors.config import EngineConfig, SchedulerConfig
from actors.kernel.actor import Actor
from actors.messages import Capacity, Heard
from runtime.serve import RealModel, torch_backends
from sim.backend import CostBackend, Pace, Paced
from sim.client import Recording
from sim.cost.calibrated import Calibrated
from sim.oracle import Oracle
from sim.record.journal import Journal, Past
from sim.record.recorder import Recorder
from sim.replay import replay_on

NUM_BLOCKS = 64
LIMITS = SchedulerConfig(
    max_model_len=512, max_num_batched_tokens=32, max_num_seqs=4, num_gpu_blocks=NUM_BLOCKS
)
"""Small, so that chunked prefill and waiting can be seen."""
CONFIG = EngineConfig(scheduler=LIMITS)
CAPACITY = Capacity(NUM_BLOCKS, LIMITS.block_size)


@dataclass(slots=True)
class Run:
    """What one run of the graph leaves behind."""

    journal: Journal = field(default_factory=Journal)
    recorder: Recorder = field(default_factory=lambda: Recorder(NUM_BLOCKS))

    def listeners(self) -> list[Actor[Heard]]:
        return [self.journal, Recording(self.recorder)]


def simulated(past: Past, cost: Calibrated) -> Run:
    """The cost backend on the virtual clock; only the oracle knows how long answers will be."""
    run, trace = Run(), past.trace()
    oracle = Oracle({request.request_id: request.num_output_tokens for request in trace})
    backend = CostBackend(Pace(cost, "runner-0"), oracle, CAPACITY)
    run.recorder = replay_on(
        trace, CONFIG, [backend], CAPACITY, generate_for=past.counted, listeners=[run.journal]
    )
    return run


def computed(past: Past, model: RealModel, cost: Calibrated, seed: int) -> Run:
    """The torch backend on the virtual clock, its steps as long as the cost model says."""
    run = Run()
    backend = Paced(torch_backends(model, CONFIG, seed=seed)(0), Pace(cost, "runner-0"))
    run.recorder = replay_on(
        past.trace(),
        CONFIG,
        [backend],
        CAPACITY,
        generate_for=past.exact,
        listeners=[run.journal],
        vocabulary=model.vocabulary,
    )
    return run
