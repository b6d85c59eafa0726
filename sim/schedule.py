"""Drive the scheduler and its pool with a recorded trace, step by step, and log every decision.

Trace and log have the format of the golden files in `tests/golden/` (described in its README), so
that decisions can be compared with a plain diff. There is no clock here: requests arrive by step.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.block_hash import block_hasher
from actors.core.batch import Batch, StepResult
from actors.core.config import ConfigError, SchedulerConfig
from actors.core.kv_cache import KVCache
from actors.core.plan import plan
from actors.core.policies import find_policy
from actors.core.request import Request, Submit
from actors.core.sampling import Sampling
from actors.core.state import SchedulerState
from actors.core.update import update

Event = dict[str, Any]

FALLBACK_TOKEN = 3
"""What a request samples whose recorded outputs have run out."""
MAX_EMPTY_STEPS = 50
"""More steps in a row that give out no token are a stall, and end the run."""
NUM_LOGGED_FREE_BLOCKS = 4096


def build(trace: dict[str, Any], engine_version: str = "0.33", **options: Any) -> SchedulerState:
    """The scheduler that a trace's configuration describes."""
    fields = dict(trace["config"])
    policy = find_policy(fields.pop("policy"))
    hash_block = block_hasher(fields.pop("hash_algo"))
    fields.pop("eos_token_id")
    config = SchedulerConfig(
        **fields,
        engine_version=engine_version,  # type: ignore[arg-type]
        leaves_uncomputed=True,
    )
    return SchedulerState(config, policy, KVCache(config, hash_block), **options)


class Drive:
    """One run of a trace: what arrives when, the model that is not there, and the log."""

    def __init__(self, trace: dict[str, Any], state: SchedulerState) -> None:
        self.state = state
        self.eos_token_id: int | None = trace["config"]["eos_token_id"]
        self.outputs = {row["id"]: row["outputs"] for row in trace["requests"]}
        self.arrivals = sorted(trace["requests"], key=lambda row: row["arrival_step"])
        self.events = sorted(trace.get("events") or [], key=lambda event: event["step"])
        self.pending: list[tuple[int, list[str]]] = []
        self.step = 0
        self.num_empty_steps = 0

    def run(self, *, check: bool = False) -> Iterator[Event]:
        """The log, event by event; with `check` every law is verified after every step."""
        depth = 2 if self.state.config.async_scheduling else 1
        while self._skip_idle_steps():
            yield from self._arrive()
            yield from self._happen("input")
            planned = self.state.has_work
            scheduled = 0
            if planned:
                event = self._schedule()
                scheduled = len(event["sched"])
                yield event
                self.num_empty_steps = 0 if scheduled else self.num_empty_steps + 1
            if self.num_empty_steps > MAX_EMPTY_STEPS:
                yield self._stall()
                break
            yield from self._happen("executing")
            if self.pending and (len(self.pending) >= depth or not scheduled):
                yield self._update()
            self.step += planned
            if check:
                self.state.check()
        pool = self.state.kv.pool
        yield {
            "ev": "end",
            "step": self.step,
            "free_blocks": pool.num_free,
            "free_queue": pool.free_order[:NUM_LOGGED_FREE_BLOCKS],
        }

    def _skip_idle_steps(self) -> bool:
        """Go on to the next step in which anything happens; False at the end."""
        if self.state.has_work or self.pending:
            return True
        coming = [row["arrival_step"] for row in self.arrivals[:1]]
        coming += [event["step"] for event in self.events[:1]]
        if coming:
            self.step = max(self.step, min(coming))
        return bool(coming)

    def _arrive(self) -> Iterator[Event]:
        while self.arrivals and self.arrivals[0]["arrival_step"] <= self.step:
            row = self.arrivals.pop(0)
            self.state.add(submit_of(row, self.eos_token_id))
            yield {"ev": "add", "step": self.step, "id": row["id"]}

    def _happen(self, when: str) -> Iterator[Event]:
        due = [e for e in self.events if e["step"] <= self.step and e["when"] == when]
        self.events = [event for event in self.events if event not in due]
        for event in due:
            if event["op"] == "abort":
                ended = self.state.abort(tuple(event["ids"]))
                yield {
                    "ev": "abort",
                    "step": self.step,
                    "when": when,
                    "ids": event["ids"],
                    "aborted": [finish.request_id for finish in ended],
                    "free_blocks": self.state.kv.pool.num_free,
                }
            else:
                done = self.state.reset_prefix_cache(reset_running=event["reset_running"])
                yield {
                    "ev": "reset",
                    "step": self.step,
                    "ok": done,
                    "free_blocks": self.state.kv.pool.num_free,
                }

    def _schedule(self) -> Event:
        state = self.state
        before = {name: state.lockstep.num_computed(r) for name, r in state.requests.items()}
        num_reset = len(state.reset_ids)
        batch, _ = plan(state)
        admitted = {a.request_id: a for a in batch.admitted}
        before |= {name: a.num_computed_tokens for name, a in admitted.items()}
        tokens = {chunk.request_id: chunk.num_tokens for chunk in batch.chunks}
        order = [name for name in state.running if self._is_scheduled(name, tokens, batch)]
        self.pending.append((self.step, self._samplers(order)))
        blocks = {name: list(a.block_ids) for name, a in admitted.items()}
        blocks |= {name: list(ids) for name, ids in batch.new_blocks}
        running = [name for name in order if name not in admitted]
        new = [name for name, a in admitted.items() if not a.resumed]
        resumed = [name for name, a in admitted.items() if a.resumed]
        logged = (*new, *running, *resumed)
        return {
            "ev": "sched",
            "step": self.step,
            "sched": [[name, tokens.get(name, 1)] for name in order],
            "new": new,
            "resumed": resumed,
            "running": running,
            "preempted": list(batch.preempted[num_reset:]),
            "computed": {name: before[name] for name in logged},
            "hit": {name: admitted[name].num_computed_tokens for name in new + resumed},
            "blocks": {name: blocks[name] for name in logged if name in blocks},
            "free_blocks": state.kv.pool.num_free,
            "finished_flush": sorted(batch.finished),
            "run_q": list(state.running),
            "wait_q": [request.request_id for request in state.waiting],
        }

    def _is_scheduled(self, name: str, tokens: dict[str, int], batch: Batch) -> bool:
        request = self.state.running[name]
        return name in tokens or (request.decodes_on_wire and name not in batch.idle)

    def _samplers(self, scheduled: list[str]) -> list[str]:
        return [name for name in scheduled if self.state.running[name].in_lockstep]

    def _update(self) -> Event:
        """The model answers the oldest step: the recorded outputs of those that are alive."""
        step, samplers = self.pending.pop(0)
        state = self.state
        alive = [state.requests[name] for name in samplers if name in state.requests]
        record = state.lockstep.in_flight[0]
        tokens = {r.request_id: self._token(r) for r in alive if r.request_id not in record.dropped}
        result = StepResult(record.step, (float(step),), tuple(tokens.items()))
        ended = update(state, result)
        pool = state.kv.pool
        return {
            "ev": "update",
            "step": step,
            "tokens": {name: [token] for name, token in tokens.items()},
            "finished": {finish.request_id: finish.reason for finish in ended},
            "stop_reason": {
                finish.request_id: finish.stop_reason for finish in ended if finish.stop_reason is not None
            },
            "free_blocks": pool.num_free,
            "cached_blocks": pool.num_cached,
        }

    def _token(self, request: Request) -> int:
        assert request.token_ids is not None
        position = len(request.token_ids) - request.submit.num_prompt_tokens
        outputs = self.outputs[request.request_id]
        return outputs[position] if position < len(outputs) else FALLBACK_TOKEN

    def _stall(self) -> Event:
        waiting = [request.request_id for request in self.state.waiting]
        return {"ev": "stall", "step": self.step, "waiting": waiting}


def submit_of(row: dict[str, Any], eos_token_id: int | None) -> Submit:
    """A trace's request."""
    return Submit(
        request_id=row["id"],
        arrival_s=row["arrival_time"],
        num_prompt_tokens=len(row["prompt"]),
        max_tokens=row["max_tokens"],
        prompt_token_ids=tuple(row["prompt"]),
        sampling=Sampling(
            min_tokens=row.get("min_tokens") or 0,
            stop_token_ids=tuple(row.get("stop_token_ids") or ()),
            ignore_eos=row.get("ignore_eos", False),
        ),
        eos_token_id=eos_token_id,
        priority=row.get("priority") or 0,
        cache_salt=row.get("cache_salt"),
        tenant=row.get("tenant"),
        slo_ttft_s=row.get("slo_ttft_s"),
        predicted_tokens=row.get("predicted_tokens"),
    )


def dump(event: Event) -> str:
    """One line of a log."""
    return json.dumps(event, separators=(",", ":"))


def log_trace(trace: Path, output: Path, engine_version: str, lockstep: bool) -> None:
    """Drive the trace in one file, plain or gzipped, and write the log to another.

    Raises ConfigError if the file holds no trace.
    """
    data = trace.read_bytes()
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        parsed = json.loads(text)
        drive = Drive(parsed, build(parsed, engine_version, lockstep_enabled=lockstep))
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        raise ConfigError(f"{trace} is not a trace in the golden format: {error!r}") from error
    lines = "".join(dump(event) + "\n" for event in drive.run())
    encoded = lines.encode()
    output.write_bytes(gzip.compress(encoded, mtime=0) if output.suffix == ".gz" else encoded)
