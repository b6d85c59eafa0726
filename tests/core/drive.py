"""Driver of the Scheduler with a reference runner, with tokens or with counts only.

Uses the driver of `sundog schedule`; records the batches, and the pool's state after each update.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sundog.actors.block_hash import block_hasher
from sundog.actors.core.batch import Batch, Finish
from sundog.actors.core.request import Submit
from sundog.sim.backend import SampledSteps
from sundog.sim.schedule import driver as happenings
from sundog.sim.schedule.decision_log import FALLBACK_TOKEN
from sundog.sim.schedule.driver import Aborted, Driver, Happening, HasStalled
from sundog.sim.schedule.step_trace import StepTraceRow, parse_trace
from tests.core.folding import ReferenceRunner
from tests.core.guessing import GuessingSource
from tests.core.traces import Trace


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


@dataclass(frozen=True)
class Drafting:
    """Drafts of a run: at most `num_tokens`, each right or not as `guess` says of (request, tokens known)."""

    num_tokens: int
    num_lookahead_tokens: int
    guess: Callable[[str, int], list[bool]]


class ReferenceSource:
    """The reference runner as a source of tokens, named or counted.

    A run ends with the first step in which a request samples an end token that it heeds.
    """

    def __init__(self, runner: ReferenceRunner, ends: Callable[[str, int], bool], counts: bool) -> None:
        self.runner = runner
        self._ends = ends
        self._counts = counts
        self._tokens: list[tuple[str, int]] = []

    def begin(self, batch: Batch) -> int:
        self._tokens = self.runner.step(batch)
        for ahead in range(batch.max_steps - 1):
            if any(self._ends(name, self._ahead(name, ahead)) for name, _ in self._tokens):
                return ahead + 1
        return batch.max_steps

    def sample(self, num_steps: int) -> SampledSteps:
        for _ in range(num_steps - 1):
            self._tokens = self.runner.decode()
        if not self._counts:
            return SampledSteps(tuple(self._tokens), ())
        return SampledSteps(None, tuple(name for name, token in self._tokens if self._ends(name, token)))

    def _ahead(self, name: str, num_steps: int) -> int:
        """The token that the request samples so many steps after this one."""
        request = self.runner.requests[name]
        return self.runner.output(name, len(request.tokens) - request.num_prompt_tokens - 1 + num_steps)


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
        leaves_uncomputed: bool = False,
        drafting: Drafting | None = None,
    ) -> None:
        parsed = parse_trace(trace, engine_version)
        self.config = replace(parsed.config, leaves_uncomputed=leaves_uncomputed)
        if drafting is not None:
            self.config = replace(
                self.config,
                num_speculative_tokens=drafting.num_tokens,
                num_lookahead_tokens=drafting.num_lookahead_tokens,
            )
        self.rows = {row["id"]: row for row in trace["requests"]}
        self.eos: int = trace["config"]["eos_token_id"]
        self.counts = counts
        self.hash_block = block_hasher(trace["config"]["hash_algo"])
        rows = tuple(replace(row, submit=self._submit(row)) for row in parsed.rows)
        prompts = {name: row["prompt"] for name, row in self.rows.items()}
        self.runner = ReferenceRunner(
            self.config.block_size, prompts, self.output, keeps_slots=not decode_runs
        )
        self.source: ReferenceSource | GuessingSource = ReferenceSource(self.runner, self._ends, counts)
        if drafting is not None:
            self.source = GuessingSource(self.runner, self._ends, counts, drafting.guess)
        self.driver = Driver(
            replace(parsed, config=self.config, rows=rows),
            self.source,
            self._watch,
            lockstep=lockstep,
            decode_runs=decode_runs,
        )
        self.state = self.driver.state
        self.log: Log = []
        self.watch: Callable[[Planned | Updated], None] = lambda event: None
        self.stalled = False
        self.ended: list[Finish] = []
        """Every request that ended, aborted or not."""
        self.delivered: dict[str, list[int]] = {}
        """The tokens of each request, where they are named."""

    def output(self, name: str, position: int) -> int:
        """The token that a request samples as its output of this number."""
        outputs = self.rows[name]["outputs"]
        return outputs[position] if position < len(outputs) else FALLBACK_TOKEN

    def run(self) -> Log:
        """Everything planned and updated, with the laws of the state checked after every update."""
        self.driver.run()
        return self.log

    def _submit(self, row: StepTraceRow) -> Submit:
        submit = row.submit
        tokens = submit.prompt_token_ids
        if not self.counts or tokens is None:
            return submit
        size, keys = self.config.block_size, []
        for end in range(size, len(tokens) + 1, size):
            parent = keys[-1] if keys else None
            keys.append(self.hash_block(parent, tokens[end - size : end], submit.cache_salt, submit.adapter))
        return replace(submit, prompt_token_ids=None, block_hashes=tuple(keys))

    def _ends(self, name: str, token: int) -> bool:
        return token == self.eos and not self.rows[name]["ignore_eos"]

    def _watch(self, happening: Happening) -> None:
        if isinstance(happening, Aborted):
            self.ended += happening.finished
        elif isinstance(happening, HasStalled):
            self.stalled = True
        elif isinstance(happening, happenings.HasPlanned):
            waiting = tuple(request.request_id for request in self.state.waiting)
            self._keep(Planned(happening.step, happening.batch, waiting))
        elif isinstance(happening, happenings.Updated):
            self.state.check()
            self.ended += happening.finished
            for name, token in happening.result.tokens or ():
                if name not in happening.dropped:
                    self.delivered.setdefault(name, []).append(token)
            self._keep(self._updated(happening))

    def _updated(self, updated: happenings.Updated) -> Updated:
        pool, is_at_rest = self.state.kv.pool, not self.state.running
        num_cached = pool.num_cached if is_at_rest or not self.counts else None
        return Updated(updated.step, updated.finished, tuple(pool.free_order), num_cached, is_at_rest)

    def _keep(self, event: Planned | Updated) -> None:
        self.log.append(event)
        self.watch(event)
