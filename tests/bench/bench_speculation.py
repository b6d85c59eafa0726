"""Speed-up by n-gram drafts, predicted and measured: the embedded model on repetitive prompts.

The same requests, all at once, are computed by torch on one thread without drafts and with them. One cost
of steps is fitted to the processor time of the steps of both runs, and what each request accepts is read from
the journal of the second; then both runs are simulated. Steps are counts, exact on a busy machine, too;
seconds are of processor time.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.acceptance import Acceptance
from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.engine.backend import Backend
from sundog.actors.messages import Capacity, Generate
from sundog.sim.backend import accepted_of
from sundog.sim.cost.calibrated import Calibrated, fit
from sundog.sim.cost.work import StepWork, WorkFold
from sundog.sim.explain.load import measured_drafts
from sundog.sim.record.journal import Journal, Past
from sundog.sim.record.journal_file import JournalFile
from sundog.sim.record.journal_rows import Header
from sundog.sim.replay import replay, replay_on
from sundog.sim.trace.record import TraceRequest

NUM_TOKENS, NUM_AT_ONCE = 240, 4
CAPACITY = Capacity(2048, 16)
NGRAM = SpeculativeConfig("ngram", 4, lookup_min=2, lookup_max=4)
TEXTS = (
    "The cat sat on the mat. The cat sat on the mat. The cat",
    "{} had a red ball. He",
    "What is a {}? ",
    "{} and the dog. {} and the dog. {} and",
)
NAMES = ("Tom", "Ben", "Anna")


class Timed:
    """A backend whose steps are timed, in processor seconds, with what each computed."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._fold = backend, WorkFold()
        self.steps: list[tuple[StepWork, float]] = []

    async def load(self) -> Capacity:
        return await self._backend.load()

    async def execute(self, batch: Batch) -> StepResult:
        work, start_s = self._fold.begin(batch), time.process_time()
        answer = self._backend.execute(batch)
        result = await answer  # type: ignore[misc]  # torch answers with a coroutine
        self.steps.append((work, time.process_time() - start_s))
        self._fold.advance(1, accepted_of(batch, result))
        return result

    async def close(self) -> None:
        await self._backend.close()

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.steps)


def config(speculation: SpeculativeConfig | None) -> EngineConfig:
    limits = SchedulerConfig(
        max_num_seqs=NUM_AT_ONCE,
        max_model_len=1024,
        num_gpu_blocks=CAPACITY.num_blocks,
        num_speculative_tokens=speculation.num_tokens if speculation else 0,
    )
    return EngineConfig(scheduler=limits, speculation=speculation)


def measured(speculation: SpeculativeConfig | None, folder: Path) -> tuple[Timed, Journal]:
    """The run on torch, and its journal in that folder too."""
    import torch

    from sundog.runtime.serve import RealModel, torch_backends

    model = RealModel.open(None)
    settings = config(speculation)
    torch.set_num_threads(1)
    texts = [text.replace("{}", name) for name in NAMES for text in TEXTS]
    prompts = [tuple(model.tokenizer.encode(text)) for text in texts]
    sampling = Sampling(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    rows = [TraceRequest(f"r{n}", 0.0, len(prompt), NUM_TOKENS) for n, prompt in enumerate(prompts)]
    asked = {f"r{n}": Generate(prompt, sampling, request_id=f"r{n}") for n, prompt in enumerate(prompts)}
    timed, journal = Timed(torch_backends(model, settings, dtype="float32", num_threads=1)(0)), Journal()
    replay_on(
        rows,
        settings,
        [timed],
        CAPACITY,
        generate_for=lambda row: asked[row.request_id],
        vocabulary=model.vocabulary,
        listeners=[journal, JournalFile(folder, Header.of(settings, CAPACITY.num_blocks))],
    )
    return timed, journal


def simulated(speculation: SpeculativeConfig | None, cost: Calibrated, past: Past) -> tuple[int, float]:
    """Steps and seconds of the same requests, with tokens only counted."""
    settings = config(speculation)
    recorder = replay(past.trace(), settings, cost, CAPACITY)
    return recorder.steps[0].num_steps, recorder.steps[0].busy_s


def main() -> None:
    """Print both runs, measured beside predicted."""
    with tempfile.TemporaryDirectory() as made:
        plain, journal = measured(None, Path(made) / "plain")
        drafted, drafts = measured(NGRAM, Path(made) / "drafted")
        rates = replace(NGRAM, measured=measured_drafts(Path(made) / "drafted", NGRAM.num_tokens))
    counts = Acceptance()
    for output in drafts.outputs:
        counts.add(output.batch.drafts, output.accepted)
    verified = f"{counts.num_drafts} verifications"
    print(f"{counts.num_accepted_tokens} of {counts.num_draft_tokens} drafts accepted in {verified}")
    past, cost = Past.of(journal), fit([*plain.steps, *drafted.steps])
    rows: list[tuple[str, Timed, tuple[int, float]]] = [
        ("plain", plain, simulated(None, cost, past)),
        ("n-grams", drafted, simulated(rates, cost, past)),
    ]
    print(f"{'':8} {'steps':>7} {'predicted':>9} {'seconds':>8} {'predicted':>9}")
    for name, timed, (num_steps, seconds) in rows:
        print(f"{name:8} {len(timed.steps):7} {num_steps:9} {timed.seconds:8.2f} {seconds:9.2f}")
    (_, _, (plain_steps, plain_s)), (_, _, (steps, seconds)) = rows
    times = len(plain.steps) / len(drafted.steps)
    print(f"speed-up in steps   {times:.2f}, predicted {plain_steps / steps:.2f}")
    print(f"speed-up in seconds {plain.seconds / drafted.seconds:.2f}, predicted {plain_s / seconds:.2f}")


if __name__ == "__main__":
    main()
