"""Memory that the torch engine keeps after thousands of small requests.

The scheduler and the embedded model, without HTTP: up to 32 requests at once, of 1 to 60 tokens in
and 1 to 24 out, under the rows of each step as they come and padded to the ladder. Prints resident
memory after so many requests, the kernels that oneDNN made (its own count of cache misses), and
the milliseconds of processor time a request took on one thread (more would burn it waiting); then
those of a decode step.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

STAGES = (100, 1000, 2000, 4000)
MOST_AT_ONCE = 32
DECODING = (1, 8, 32)
NUM_STEPS = 150
MISS = "create:cache_miss"
AS_THEY_COME = "as they come"


class Load:
    """The embedded model on one thread under a scheduler, and requests to give it."""

    def __init__(self) -> None:
        from sundog.actors.block_hash import block_hasher
        from sundog.actors.core.blocks.kv_cache import KVCache
        from sundog.actors.core.config import SchedulerConfig
        from sundog.actors.core.policies import Fcfs
        from sundog.actors.core.step.state import SchedulerState
        from sundog.runtime.engine.backend import TorchBackend
        from sundog.runtime.serve import EMBEDDED_MODEL

        config = SchedulerConfig(max_num_seqs=MOST_AT_ONCE, max_model_len=1024, num_gpu_blocks=4096)
        self.backend = TorchBackend(EMBEDDED_MODEL, num_gpu_blocks=4096, max_model_len=1024, num_threads=1)
        self.state = SchedulerState(config, Fcfs(), KVCache(config, block_hasher()))
        self.rng = random.Random(1)
        self.num_submitted = 0

    def submit(self, num_tokens: int) -> None:
        """A greedy request for so many tokens after a short prompt."""
        from sundog.actors.core.params.sampling import Sampling
        from sundog.actors.core.request import Submit

        prompt = tuple(self.rng.randrange(6, 1500) for _ in range(self.rng.randint(1, 60)))
        sampling = Sampling(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        name = f"r{self.num_submitted}"
        self.state.add(Submit(name, 0.0, len(prompt), num_tokens, prompt, sampling=sampling))
        self.num_submitted += 1

    async def step(self) -> None:
        from sundog.actors.core.step.plan import plan
        from sundog.actors.core.step.update import update

        batch, _ = plan(self.state)
        update(self.state, await self.backend.execute(batch))

    async def serve_until(self, num_requests: int) -> None:
        """Answer until so many requests have come and gone, now few at once, now many."""
        at_once = 1
        while self.num_submitted < num_requests or self.state.requests:
            if self.rng.random() < 0.02:
                at_once = self.rng.randint(1, MOST_AT_ONCE)
            while len(self.state.requests) < at_once and self.num_submitted < num_requests:
                self.submit(self.rng.randint(1, 24))
            await self.step()

    async def decode_ms(self, num_running: int) -> float:
        """Processor time of a step in which so many decode."""
        while len(self.state.requests) < num_running:
            self.submit(900)
        for _ in range(10):
            await self.step()
        begin_s = time.process_time()
        for _ in range(NUM_STEPS):
            await self.step()
        return 1e3 * (time.process_time() - begin_s) / NUM_STEPS


async def serve() -> None:
    """The child: answer requests, print a line per stage."""
    import psutil  # type: ignore[import-untyped]  # ships no types

    load = Load()
    await load.backend.load()
    begin_s = time.process_time()
    for stage in STAGES:
        await load.serve_until(stage)
        megabytes = psutil.Process().memory_info().rss / 2**20
        print(f"{stage} {megabytes:.0f} {1e3 * (time.process_time() - begin_s) / stage:.1f}", flush=True)
    for num_running in DECODING:
        print(f"step {num_running} {await load.decode_ms(num_running):.2f}", flush=True)


def measure(rows: str) -> None:
    """Run a child and count what its oneDNN says."""
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, __file__, rows],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "ONEDNN_VERBOSE": "profile_create"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    num_misses = 0
    for line in child.stdout:
        num_misses += MISS in line
        if line.startswith("step"):
            _, num_running, ms = line.split()
            print(f"{rows:<14} a decode step of {num_running}: {ms} ms", flush=True)
        elif line[0].isdigit():
            stage, megabytes, ms = line.split()
            print(f"{rows:<14} {stage:>8} {megabytes:>6} MB {num_misses:>8} {ms:>8} ms", flush=True)
    assert child.wait() == 0


def main() -> None:
    print(f"{'rows':<14} {'requests':>8} {'resident':>9} {'kernels':>8} {'CPU each':>11}")
    for rows in (AS_THEY_COME, "padded"):
        measure(rows)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        import trio

        from sundog.runtime.model import model

        if sys.argv[1] == AS_THEY_COME:
            model.padded = int  # type: ignore[assignment]  # what it was before there was a ladder
        trio.run(serve)
