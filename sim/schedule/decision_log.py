"""Log of decisions in the format of `tests/golden/README.md`, and the command that writes it."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sundog.actors.core.batch import Admission, Batch
from sundog.actors.core.config import ConfigError
from sundog.actors.core.step.state import SchedulerState
from sundog.sim.backend import SampledSteps
from sundog.sim.emulation.scripts import NamedTokens
from sundog.sim.files.lines import decode, read_lines
from sundog.sim.files.run_files import write_whole
from sundog.sim.schedule.driver import (
    Aborted,
    Added,
    Driver,
    Happening,
    HasEnded,
    HasPlanned,
    HasStalled,
    Updated,
    WasRefused,
    WasReset,
)
from sundog.sim.schedule.step_trace import StepTrace, parse_trace

FALLBACK_TOKEN = 3
"""Token of a request after all its recorded outputs."""


class RecordedOutputs(NamedTokens):
    """Source of each request's recorded outputs; the scheduler detects the end itself."""

    __slots__ = ("_outputs",)

    def __init__(self, outputs: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self._outputs = outputs

    def token(self, request_id: str, index: int) -> int:
        outputs = self._outputs[request_id]
        return outputs[index] if index < len(outputs) else FALLBACK_TOKEN


Drafts = Sequence[tuple[int, int]]
"""Numbers of drafts for each output of a request: how many are proposed for its step, and how many are right.
"""


class DraftedOutputs(RecordedOutputs):
    """Recorded outputs with drafts for some of the tokens, verified as recorded.

    A request that computes drafts in a step samples as many tokens as drafts were right, and one more.
    """

    __slots__ = ("_drafted", "_drafts")

    def __init__(self, outputs: Mapping[str, Sequence[int]], drafts: Mapping[str, Drafts]) -> None:
        super().__init__(outputs)
        self._drafts = drafts
        self._drafted: dict[str, int] = {}

    def begin(self, batch: Batch) -> int:
        """Apply the batch and the numbers of drafts that it verifies; return 1, its number of steps."""
        self._drafted = dict(batch.drafts)
        return super().begin(batch)

    def sample(self, num_steps: int) -> SampledSteps:
        """Return the accepted drafts and the token after them for each sampling request, and the next
        offers.
        """
        tokens: list[tuple[str, int]] = []
        offered: list[tuple[str, int]] = []
        joining = frozenset(self._joining)
        for name, token in super().sample(num_steps).tokens or ():
            after = self._decoding[name]
            tokens.append((name, token))
            accepted = 0 if name in joining else min(self._drafted.get(name, 0), self._of(name, after - 1)[1])
            for index in range(after, after + accepted):
                tokens.append((name, self.token(name, index)))
            self._decoding[name] = after + accepted
            if (num_drafts := self._of(name, after + accepted)[0]) > 0:
                offered.append((name, num_drafts))
        return SampledSteps(tuple(tokens), (), drafts=tuple(offered))

    def _of(self, name: str, index: int) -> tuple[int, int]:
        drafts = self._drafts[name]
        return drafts[index] if index < len(drafts) else (0, 0)


Line = dict[str, Any]

NUM_LOGGED_FREE_BLOCKS = 4096


class DecisionLog:
    """Driver of a trace that logs events line by line."""

    def __init__(self, trace: StepTrace, *, lockstep: bool = True) -> None:
        outputs = {row.submit.request_id: row.outputs for row in trace.rows}
        source = RecordedOutputs(outputs)
        if trace.config.num_speculative_tokens:
            source = DraftedOutputs(outputs, {row.submit.request_id: row.drafts for row in trace.rows})
        self._driver = Driver(trace, source, self._watch, lockstep=lockstep)
        self.state = self._driver.state
        self.lines: list[Line] = []
        self.stalled: str | None = None
        """Reason why the trace did not end, if so."""
        self._scheduled: dict[int, list[str]] = {}
        """Requests of each running step, in order."""

    def run(self) -> list[Line]:
        self._driver.run()
        return self.lines

    def _watch(self, happening: Happening) -> None:
        self.lines.append(self._line(happening))

    def _line(self, happening: Happening) -> Line:
        step, pool = happening.step, self.state.kv.pool
        match happening:
            case Added():
                return {"ev": "add", "step": step, "id": happening.request_id}
            case WasRefused():
                finish = happening.finish
                return {"ev": "refuse", "step": step, "id": finish.request_id, "reason": finish.error}
            case HasPlanned():
                return self._planned(step, happening.batch)
            case Updated():
                return self._updated(happening)
            case Aborted():
                return {
                    "ev": "abort",
                    "step": step,
                    "when": happening.when,
                    "ids": list(happening.request_ids),
                    "aborted": [finish.request_id for finish in happening.finished],
                    "free_blocks": pool.num_free,
                }
            case WasReset():
                return {"ev": "reset", "step": step, "ok": happening.done, "free_blocks": pool.num_free}
            case HasStalled():
                self.stalled = happening.reason
                waiting = [request.request_id for request in self.state.waiting]
                return {"ev": "stall", "step": step, "waiting": waiting}
            case HasEnded():
                return {
                    "ev": "end",
                    "step": step,
                    "free_blocks": pool.num_free,
                    "free_queue": pool.free_order[:NUM_LOGGED_FREE_BLOCKS],
                }

    def _planned(self, step: int, batch: Batch) -> Line:
        state = self.state
        admitted = {admission.request_id: admission for admission in batch.admitted}
        tokens = dict(_tokens(state, batch))
        order = [name for name in state.running if name in tokens]
        self._scheduled[step] = order
        running = [name for name in order if name not in admitted]
        new = [name for name, a in admitted.items() if not a.resumed]
        resumed = [name for name, a in admitted.items() if a.resumed]
        blocks = {name: list(a.block_ids) for name, a in admitted.items()}
        blocks |= {name: list(ids) for name, ids in batch.new_blocks}
        by_whom = zip(batch.preempted, batch.preempted_for, strict=True)
        logged = (*new, *running, *resumed)
        state.waiting.peek()  # ranks those anew that were passed over before the last admission
        return {
            "ev": "sched",
            "step": step,
            "sched": [[name, tokens[name]] for name in order],
            "new": new,
            "resumed": resumed,
            "running": running,
            "preempted": [name for name, needy in by_whom if needy is not None],
            "computed": {name: self._computed_before(name, tokens[name], admitted) for name in logged},
            "hit": {name: admitted[name].num_computed_tokens for name in new + resumed},
            "blocks": {name: blocks[name] for name in logged if name in blocks},
            "free_blocks": state.kv.pool.num_free,
            "finished_flush": sorted(batch.finished),
            "run_q": list(state.running),
            "wait_q": [request.request_id for request in state.waiting],
        }

    def _computed_before(self, name: str, num_tokens: int, admitted: dict[str, Admission]) -> int:
        if name in admitted:
            return admitted[name].num_computed_tokens
        return self.state.lockstep.num_computed(self.state.running[name]) - num_tokens

    def _updated(self, updated: Updated) -> Line:
        sampled: dict[str, list[int]] = {}
        for name, token in updated.result.tokens or ():
            sampled.setdefault(name, []).append(token)
        order = self._scheduled.pop(updated.step)
        taken = [name for name in order if name in sampled and name not in updated.dropped]
        pool = self.state.kv.pool
        return {
            "ev": "update",
            "step": updated.step,
            "tokens": {name: sampled[name] for name in taken},
            "finished": {finish.request_id: finish.reason for finish in updated.finished},
            "stop_reason": {
                finish.request_id: finish.stop_reason
                for finish in updated.finished
                if finish.stop_reason is not None
            },
            "free_blocks": pool.num_free,
            "cached_blocks": pool.num_cached,
        }


def _tokens(state: SchedulerState, batch: Batch) -> Iterator[tuple[str, int]]:
    idle = set(batch.idle)
    drafts = dict(batch.drafts)
    chunks = {chunk.request_id: chunk.num_tokens for chunk in batch.chunks}
    for name, request in state.running.items():
        if name in chunks:
            yield name, chunks[name]
        elif request.decodes_on_wire and name not in idle:
            yield name, 1 + drafts.get(name, 0)


def dump(line: Line) -> str:
    """Return one line of a log."""
    return json.dumps(line, separators=(",", ":"))


def read_step_trace(path: Path, engine_version: str) -> StepTrace:
    """Read the trace in a file, plain or gzipped. Raises ConfigError that names the file and the field."""

    def error_at(name: str, line: int, reason: str) -> ConfigError:
        where = f"{name} is no trace in the golden format: line {line}"
        return ConfigError(f"{where}: {reason} (arrivals in seconds are for `sundog replay --out`)")

    text = b"\n".join(read_lines(str(path), error_at))
    trace = decode(str(path), 1, text, error_at)
    try:
        return parse_trace(trace, engine_version)
    except ConfigError as error:
        raise ConfigError(f"{path} is no trace in the golden format: {error}") from None


def log_trace(trace: StepTrace, output: Path, lockstep: bool) -> str | None:
    """Run a trace, and write the log; return why it stalled, if it did."""
    log = DecisionLog(trace, lockstep=lockstep)
    encoded = "".join(dump(line) + "\n" for line in log.run()).encode()
    write_whole(output, gzip.compress(encoded, mtime=0) if output.suffix == ".gz" else encoded)
    return log.stalled
