"""`python -m tests.runtime.ranks.together FOLDER...`: run two ranks by gloo, and write their answers to a
file.

Torch is imported once, and each rank is forked from there. Rank 0 runs the scheduler and hands its batches to
rank 1 over a pipe, as an Executor does. Each line of the file is an `Answered`.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.config import SchedulerConfig
from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.engine.engine import Engine, Flight
from sundog.runtime.model.model import Model
from sundog.runtime.ranks.rank import RankPlace, first_of
from tests.runtime.mixtures import drawn, greedy, mixture, remembering
from tests.runtime.scheduled import answers

LIMITS = {"max_model_len": 128, "block_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 5}
SAMPLINGS = {"greedy": greedy, "drawn": drawn, "remembering": remembering}
COUNT = 2


@dataclass(frozen=True)
class Case:
    """A model's folder, what is asked of it, and how."""

    folder: str
    sampling: str = "greedy"
    num_blocks: int = 200
    ahead: bool = False


@dataclass
class Answered:
    """What the requests of a case were answered, the logits of its first steps, and what it went through."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    logits: list[list[list[float]]] = field(default_factory=list)
    num_preempted: int = 0
    num_hits: int = 0
    num_key_heads: int = 0


def cases(folders: list[str]) -> Iterator[Case]:
    """Each model chunked and mixed, on cached prefixes, preempted; the first also drawn, and ahead."""
    for folder in folders:
        yield Case(folder)
        yield Case(folder, num_blocks=24)
    yield Case(folders[0], "drawn")
    yield Case(folders[0], "remembering", num_blocks=24)
    yield Case(folders[0], "drawn", ahead=True)


class Kept:
    """A model that keeps the first logits that it makes."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.logits_SRV: list[list[list[float]]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def logits(self, *step: object) -> torch.Tensor:
        found = self._model.logits(*step)  # type: ignore[arg-type]
        if len(self.logits_SRV) < 6:
            self.logits_SRV.append(found.tolist())
        return found


class Leading:
    """An engine whose batches go to the other ranks, too."""

    def __init__(self, engine: Engine, others: list[Connection]) -> None:
        self._engine, self._others = engine, others

    def launch(self, batch: Batch) -> Flight:
        for each in self._others:
            each.send(batch)
        return self._engine.launch(batch)

    def finish(self, flight: Flight, end_s: float) -> StepResult:
        return self._engine.finish(flight, end_s)


def opened(case: Case, rank: RankPlace | None) -> tuple[Engine, Kept, TorchBackend]:
    backend = TorchBackend(
        case.folder,
        dtype="float32",
        block_size=4,
        num_gpu_blocks=200,
        max_model_len=128,
        ahead=case.ahead,
        rank=rank,
        num_threads=1,
    )
    engine, model, num_blocks = backend.open()
    assert num_blocks == 200
    engine._model = kept = Kept(model)  # type: ignore[assignment]
    return engine, kept, backend


def answered(case: Case, rank: RankPlace | None = None, others: list[Connection] | None = None) -> Answered:
    """What the case is answered by one rank, or by rank 0 of several."""
    engine, kept, backend = opened(case, rank)
    config = SchedulerConfig(num_gpu_blocks=case.num_blocks, async_scheduling=case.ahead, **LIMITS)  # type: ignore[arg-type]
    requests = mixture(case.num_blocks, SAMPLINGS[case.sampling])
    said = answers(Leading(engine, others or []), requests, config)  # type: ignore[arg-type]
    for each in others or []:
        each.send(None)
    if backend._group is not None:
        backend._group.close()
    return Answered(
        said.tokens,
        {name: [each.logprob for each in found] for name, found in said.logprobs.items()},
        kept.logits_SRV,
        said.num_preempted,
        said.num_hits,
        kept._model.cache.keys_SPKD[0].shape[2],
    )


def follow(case: Case, rank: RankPlace, batches: Connection) -> None:
    """Take the same steps as rank 0, until it has none."""
    engine, _, backend = opened(case, rank)
    while (batch := batches.recv()) is not None:
        result = engine.finish(engine.launch(batch), 0.0)
        assert result.tokens is None
    assert backend._group is not None
    backend._group.close()


def main(folders: list[str]) -> None:
    """Fork rank 1, be rank 0, and print a line for each case."""
    ours, theirs = Pipe()
    todo = [(case, first_of(COUNT)) for case in cases(folders)]
    if not os.fork():
        code = 1
        try:
            for case, first in todo:
                assert first.listening is not None
                os.close(first.listening)
                follow(case, first.other(1), theirs)
            code = 0
        finally:
            os._exit(code)
    for case, first in todo:
        print(json.dumps(asdict(answered(case, first, [ours]))), flush=True)
    assert os.wait()[1] == 0


if __name__ == "__main__":
    assert all(Path(folder).is_dir() for folder in sys.argv[1:])
    main(sys.argv[1:])
