"""The log of decisions in the format of `tests/golden/README.md`, and the command that writes it."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.core.batch import Admission, Batch
from actors.core.config import ConfigError
from actors.core.step.state import SchedulerState
from sim.files.lines import decode, read_lines
from sim.files.whole_file import write_whole
from sim.schedule.driver import Driver
from sim.schedule.happenings import (
    Aborted,
    Added,
    Ended,
    Happening,
    HasStalled,
    Planned,
    Refused,
    Updated,
    WasReset,
)
from sim.schedule.outputs import DraftedOutputs, recorded_outputs
from sim.schedule.step_trace import StepTrace, parse_trace
from sim.trace.read import read_trace
from sim.trace.record import TraceError

Line = dict[str, Any]

NUM_LOGGED_FREE_BLOCKS = 4096


class DecisionLog:
    """Drives a trace, and says what happens, line by line."""

    def __init__(self, trace: StepTrace, *, lockstep: bool = True) -> None:
        outputs = {row.submit.request_id: row.outputs for row in trace.rows}
        source = recorded_outputs(outputs)
        if trace.config.num_speculative_tokens:
            source = DraftedOutputs(outputs, {row.submit.request_id: row.drafts for row in trace.rows})
        self._driver = Driver(trace, source, self._watch, lockstep=lockstep)
        self.state = self._driver.state
        self.lines: list[Line] = []
        self.stalled: str | None = None
        """Why the trace came to no end, if it did not."""
        self._scheduled: dict[int, list[str]] = {}
        """The requests of each step that runs, in order."""

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
            case Refused():
                finish = happening.finish
                return {"ev": "refuse", "step": step, "id": finish.request_id, "reason": finish.error}
            case Planned():
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
            case Ended():
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
        """What was computed before the step that has just been planned."""
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
    """Each request of the step that has just been planned, and how many tokens it computes."""
    idle = set(batch.idle)
    drafts = dict(batch.drafts)
    chunks = {chunk.request_id: chunk.num_tokens for chunk in batch.chunks}
    for name, request in state.running.items():
        if name in chunks:
            yield name, chunks[name]
        elif request.decodes_on_wire and name not in idle:
            yield name, 1 + drafts.get(name, 0)


def dump(line: Line) -> str:
    """One line of a log."""
    return json.dumps(line, separators=(",", ":"))


def read_step_trace(path: Path, engine_version: str) -> StepTrace:
    """The trace in a file, plain or gzipped. Raises ConfigError that names the file and the field."""

    def error_at(name: str, line: int, reason: str) -> ConfigError:
        return ConfigError(f"{name} is no trace in the golden format: line {line}: {reason}")

    text = b"\n".join(read_lines(str(path), error_at))
    trace = decode(str(path), 1, text, error_at)
    try:
        return parse_trace(trace, engine_version)
    except ConfigError as error:
        raise ConfigError(f"{path} is no trace in the golden format: {error}") from None


def is_by_steps(path: Path, tokenizer: str | None = None) -> bool:
    """Whether a file is to be read as a trace in the golden format: a JSON object of no other known kind.

    Raises TraceError for what is neither.
    """
    try:
        kind = read_trace(str(path), tokenizer).format
    except TraceError:
        if next(read_lines(str(path), TraceError)).lstrip().startswith(b"{"):
            return True
        raise
    if kind != "vllm-bench":
        return False
    # It, too, is one object on several lines.
    text = b"\n".join(read_lines(str(path), TraceError))
    return not {"config", "requests"} - decode(str(path), 1, text, TraceError).keys()


def log_trace(trace: StepTrace, output: Path, lockstep: bool) -> str | None:
    """Drive a trace, and write the log; returns why it stalled, if it did."""
    log = DecisionLog(trace, lockstep=lockstep)
    encoded = "".join(dump(line) + "\n" for line in log.run()).encode()
    write_whole(output, gzip.compress(encoded, mtime=0) if output.suffix == ".gz" else encoded)
    return log.stalled
