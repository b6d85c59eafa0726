"""A real server with injected faults: `python -m tests.faulty_server [--simulate]`.

SIGUSR1 crashes the engine core in its next step; SIGUSR2 fails one row of its next step that has one.
Otherwise it is `sundog serve` with one running request at a time, so that others wait.
"""

import logging
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from sundog.actors.api.context import ServedModel
from sundog.actors.api.serve_graph import serve_graph
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.engine.backend import Backend
from sundog.actors.messages import Capacity
from sundog.actors.metrics.totals import Lag
from sundog.runtime.serve import RealModel, torch_backends
from sundog.sim.cost.roofline import Roofline
from sundog.sim.emulation.answers import canned
from sundog.sim.emulation.backends import emulated_backends
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model

NUM_BLOCKS = 64
RELOAD_S = 1.0
"""Long enough for a client to see that the engine is away; the simulated one is back in 0.1 s."""
LIMITS = SchedulerConfig(max_model_len=512, max_num_seqs=1, num_gpu_blocks=NUM_BLOCKS)
CONFIG = EngineConfig(scheduler=LIMITS, debug=True)


class Faults:
    """What is to go wrong next."""

    def __init__(self) -> None:
        self.crashes = self.has_crashed = self.fails_a_row = False
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "crashes", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "fails_a_row", True))


class Vulnerable:
    """A backend to which the faults happen."""

    def __init__(self, inner: Backend, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def load(self) -> Capacity:
        if self._faults.has_crashed:
            await trio.sleep(RELOAD_S)
        return await self._inner.load()

    async def execute(self, batch: Batch) -> StepResult:
        if self._faults.crashes:
            self._faults.crashes, self._faults.has_crashed = False, True
            raise RuntimeError("injected")
        result = await self._inner.execute(batch)
        if self._faults.fails_a_row and result.tokens:
            self._faults.fails_a_row = False
            (name, _), *others = result.tokens
            result = replace(result, tokens=tuple(others), failed=((name, "injected into this row"),))
        return result

    async def close(self) -> None:
        await self._inner.close()


def main(simulates: bool) -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    model, faults = RealModel.open(None), Faults()
    make: Any
    if simulates:
        cost = Roofline(load_model("llama-3.1-8b"), load_gpu("h100"))
        eos = model.tokenizer.eos_token_ids[0]
        make = emulated_backends(
            cost, Capacity(NUM_BLOCKS, LIMITS.block_size), canned(model.tokenizer), eos, 1536, Lag(1)
        )
    else:
        make = torch_backends(model, CONFIG)
    trio.run(
        partial(
            serve_graph,
            CONFIG,
            lambda replica: Vulnerable(make(replica), faults),
            ServedModel(model.name, LIMITS.max_model_len, int(time.time())),
            model.tokenizer,
            model.vocabulary,
            ServerOptions(port=0),
            on_ready=lambda url: print(f"serves at {url}", file=sys.stderr, flush=True),
        )
    )


if __name__ == "__main__":
    main("--simulate" in sys.argv[1:])
