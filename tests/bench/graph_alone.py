"""Graph of `sundog emulate` without HTTP: the cost of the same requests without a door.

    python -m tests.bench.graph_alone STREAMS TOKENS STEP_SCALE

Plays that many requests at once, of few tokens and of many, a few times; each line has the processor time of
both in seconds, and of those with many the longest wait for a first token and the 99th percentile of the gaps
between steps. `python -m tests.bench door` compares a server's with it.
"""

import sys
import time
from functools import partial
from itertools import pairwise

import trio

from sundog.actors.api.front import Behind
from sundog.actors.api.serve_graph import serve_graph
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.front.async_llm import FromClients
from sundog.actors.kernel.actor import Ref
from sundog.actors.kernel.clock import now_s
from sundog.actors.kernel.stream import DeltaStream
from sundog.actors.messages import Accepted, Generate
from sundog.builds.emulated import emulated
from sundog.builds.server import shown_model
from sundog.options.engine import EngineOptions
from sundog.options.serving import EmulatedServing
from sundog.options.simulation import CostOptions

FEW = 20
"""The tokens of a short answer."""
ROUNDS = 3
LOOK_S = 0.1
"""How often streams are read: seldom, for that is what HTTP would do."""


class Inside:
    """Clients in the server's own process (`sundog.actors.api.front.Front`)."""

    def __init__(self, num_streams: int, num_tokens: int) -> None:
        self._num_streams, self._num_tokens = num_streams, num_tokens

    async def serve(self, behind: Behind, *, task_status: trio.TaskStatus[int]) -> None:
        task_status.started(0)
        await self._played(behind.llm, "warm", FEW)
        for number in range(ROUNDS):
            few, *_ = await self._played(behind.llm, f"few-{number}", FEW)
            print(few, *await self._played(behind.llm, f"many-{number}", self._num_tokens), flush=True)
        behind.stop.set()

    async def _played(self, llm: Ref[FromClients], name: str, num_tokens: int) -> tuple[float, float, float]:
        """Processor seconds of all streams at once, the last first token after so many, and long gaps."""
        before_s, begin_s = time.process_time(), now_s()
        unfinished, times_s = list[DeltaStream](), dict[DeltaStream, list[float]]()
        sampling = Sampling(max_tokens=num_tokens, ignore_eos=True)
        for number in range(self._num_streams):
            prompt = tuple(300 + (number * 31 + position * 7) % 700 for position in range(16))
            accepted = await llm.ask(Generate(prompt, sampling, request_id=f"{name}-{number}"))
            assert isinstance(accepted, Accepted), accepted
            unfinished.append(accepted.stream)
            times_s[accepted.stream] = []
        while unfinished:
            await trio.sleep(LOOK_S)
            taken = [(stream, stream.take()) for stream in unfinished]
            for stream, delta in taken:
                times_s[stream] += () if delta is None else delta.times_s
            unfinished = [stream for stream, delta in taken if delta is None or delta.finish_reason is None]
        cpu_s, every = time.process_time() - before_s, list(times_s.values())
        gaps_s = sorted(later - sooner for ends in every for sooner, later in pairwise(ends))
        return cpu_s, max(ends[0] for ends in every) - begin_s, gaps_s[int(len(gaps_s) * 0.99)]


def main(num_streams: int, num_tokens: int, step_scale: float) -> None:
    engine = EngineOptions(max_num_seqs=1024, max_model_len=4096)
    costs = CostOptions(step_scale=step_scale, front_cost="request=0,response=0")
    served = emulated("llama-3.1-8b", EmulatedServing(), engine, costs)
    options = ServerOptions(log_requests=False, log_stats=False)
    trio.run(
        partial(
            *(
                serve_graph,
                served.config,
                served.new_engine,
                shown_model(served, served.config),
                served.tokenizer,
            ),
            *(served.vocabulary, options),
            emulation=served.emulation,
            front=Inside(num_streams, num_tokens),
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
