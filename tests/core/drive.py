"""Drive plan and update with a reference runner between them, in a world of tokens or of counts.

The loop is the one of `sim/schedule.py`; what is kept is the batches themselves, and the state of
the pool after each update.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from actors.block_hash import block_hasher
from actors.core.batch import Batch, Finish, StepResult
from actors.core.plan import extend, plan
from actors.core.request import Submit
from actors.core.update import update
from sim.schedule import FALLBACK_TOKEN, build, submit_of
from tests.core.folding import ReferenceRunner
from tests.core.traces import Trace

MAX_EMPTY_STEPS = 5
MAX_STEPS = 20_000


@dataclass(frozen=True)
class Planned:
    """A plan, at a step of the trace."""

    step: int
    batch: Batch
    waiting: tuple[str, ...]


@dataclass(frozen=True)
class Updated:
    """What came of the step, and the pool after it.

    Where tokens are counted, blocks of one's own count as cached when they are let go: their number
    is that of a world of tokens when nobody runs.
    """

    step: int
    finished: tuple[Finish, ...]
    free_order: tuple[int, ...]
    num_cached: int | None
    is_at_rest: bool


Log = list[Planned | Updated]


class Driven:
    """One run of a trace. With `counts` the scheduler is told numbers of tokens, never tokens."""

    def __init__(
        self,
        trace: Trace,
        *,
        counts: bool = False,
        lockstep: bool = True,
        decode_runs: bool = False,
        engine_version: str = "0.33",
    ) -> None:
        options = {"lockstep_enabled": lockstep, "decode_runs": decode_runs}
        self.state = build(trace, engine_version, **options)
        if self.state.config.async_scheduling:
            # Its runs need a Scheduler that plans late: tests/sim/test_replay.py.
            self.state.decode_runs = False
        self.state.leaves_uncomputed = False
        self.rows = {row["id"]: row for row in trace["requests"]}
        self.eos: int = trace["config"]["eos_token_id"]
        self.counts = counts
        self.hash_block = block_hasher(trace["config"]["hash_algo"])
        self.arrivals = sorted(trace["requests"], key=lambda row: row["arrival_step"])
        self.events = sorted(trace["events"], key=lambda event: event["step"])
        prompts = {name: row["prompt"] for name, row in self.rows.items()}
        self.runner = ReferenceRunner(
            self.state.config.block_size, prompts, self.output, keeps_slots=not decode_runs
        )
        self.pending: list[tuple[int, Batch, int, list[tuple[str, int]]]] = []
        self.step = 0
        self.stalled = False
        self.ended: list[Finish] = []
        """Everyone who ended, aborted or not."""

    def output(self, name: str, position: int) -> int:
        """The token that a request samples as its output of this number."""
        outputs = self.rows[name]["outputs"]
        return outputs[position] if position < len(outputs) else FALLBACK_TOKEN

    def run(self) -> Log:
        """Everything planned and updated, with the laws of the state checked after every step."""
        return list(self._run())

    def _run(self) -> Iterator[Planned | Updated]:
        depth = 2 if self.state.config.async_scheduling else 1
        num_empty_steps = 0
        while self._skip_idle_steps():
            assert self.step < MAX_STEPS, "the run does not end"
            self._arrive()
            self._happen("input", self.step)
            num_tokens = 0
            if self.state.has_work:
                planned = self._plan()
                yield planned
                num_tokens = planned.batch.num_tokens
                num_empty_steps = 0 if num_tokens else num_empty_steps + 1
                self.stalled = num_empty_steps > MAX_EMPTY_STEPS
                if self.stalled:
                    return
            if self.pending and (len(self.pending) >= depth or not num_tokens):
                yield self._update()
            else:
                self._happen("executing", self.step)
                self.step += 1
            self.state.check()

    def _skip_idle_steps(self) -> bool:
        if self.state.has_work or self.pending:
            return True
        coming = [row["arrival_step"] for row in self.arrivals[:1]]
        coming += [event["step"] for event in self.events[:1]]
        if coming:
            self.step = max(self.step, min(coming))
        return bool(coming)

    def _arrive(self) -> None:
        while self.arrivals and self.arrivals[0]["arrival_step"] <= self.step:
            self.state.add(self._submit(self.arrivals.pop(0)))

    def _submit(self, row: Trace) -> Submit:
        submit = submit_of(row, self.eos)
        if not self.counts:
            return submit
        size, keys = self.state.config.block_size, []
        for end in range(size, len(row["prompt"]) + 1, size):
            tokens = tuple(row["prompt"][end - size : end])
            keys.append(self.hash_block(keys[-1] if keys else None, tokens, row["cache_salt"]))
        return replace(submit, prompt_token_ids=None, block_hashes=tuple(keys))

    def _happen(self, when: str, step: int) -> None:
        due = [e for e in self.events if e["step"] <= step and e["when"] == when]
        self.events = [event for event in self.events if event not in due]
        for event in due:
            if event["op"] == "abort":
                self.ended += self.state.abort(tuple(event["ids"]))
            else:
                self.state.reset_prefix_cache(reset_running=event["reset_running"])

    def _plan(self) -> Planned:
        batch, _ = plan(self.state)
        limit = self._steps_until_anything(batch.max_steps)
        tokens, num_steps = self.runner.step(batch), 1
        while num_steps < limit and not any(self._ends(name, token) for name, token in tokens):
            tokens = self.runner.decode()
            num_steps += 1
        self.pending.append((self.step, batch, num_steps, tokens))
        waiting = tuple(request.request_id for request in self.state.waiting)
        return Planned(self.step, batch, waiting)

    def _steps_until_anything(self, max_steps: int) -> int:
        """A run ends where a message comes, as the real one does when it is interrupted."""
        limits = [row["arrival_step"] - self.step for row in self.arrivals[:1]]
        limits += [e["step"] - self.step + (e["when"] == "executing") for e in self.events]
        return max(1, min([max_steps, *limits]))

    def _ends(self, name: str, token: int) -> bool:
        return token == self.eos and not self.rows[name]["ignore_eos"]

    def _update(self) -> Updated:
        step, batch, num_steps, tokens = self.pending.pop(0)
        last = self.step + num_steps - 1
        if num_steps > 1:
            extend(self.state, num_steps - 1)
        self._happen("executing", last)
        end_times_s = [float(step + i) for i in range(num_steps)]
        if self.counts:
            ended = tuple(name for name, token in tokens if self._ends(name, token))
            result = StepResult(batch.step, end_times_s, None, ended)
        else:
            result = StepResult(batch.step, end_times_s, tuple(tokens))
        finished = tuple(update(self.state, result))
        self.ended += finished
        self.step = last + 1
        pool, is_at_rest = self.state.kv.pool, not self.state.running
        num_cached = pool.num_cached if is_at_rest or not self.counts else None
        order = tuple(pool.free_order)
        return Updated(step + num_steps - 1, finished, order, num_cached, is_at_rest)
