"""Simulation ahead of a live server: forecasts of waiting requests' first tokens.

It starts from the server's known requests, runs the scheduler's own decisions step by step, prices each step,
and stops when the last waiting request has its first token. Assumed, because unknown: the lengths of answers,
no prefix hits of waiting prompts, and no further arrivals.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from sundog.actors.config import EngineConfig
from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.request import Submit
from sundog.actors.core.step.commit import extend
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.core.step.update import update
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import EngineDown, EngineUp, Heard, StepOutput
from sundog.actors.metrics.forecast import Known
from sundog.sim.cost.calibrated import fit
from sundog.sim.cost.work import CostModel, StepWork, WorkFold

MOST_STEPS = 2000
"""Steps to simulate; first tokens that need more are not forecast."""
MOST_OBSERVED = 400
FEWEST_OBSERVED = 20
EVERYTHING = 2**31 - 1


class Ahead(Actor[Heard]):
    """Listener that forecasts from the number of blocks and the durations of recent steps.

    Without a `cost` it fits one to these steps; with one, it measures how much slower the machine is.
    """

    def __init__(self, config: EngineConfig, cost: CostModel | None = None) -> None:
        super().__init__("ahead")
        self._config = config
        self._cost = cost
        self._num_blocks = [0] * config.replicas
        self._folds = [WorkFold() for _ in range(config.replicas)]
        self._observed: deque[tuple[StepWork, float]] = deque(maxlen=MOST_OBSERVED)
        self._last_end_s = [0.0] * config.replicas

    def handle(self, message: Heard) -> None:
        match message:
            case StepOutput():
                self._observe(message)
            case EngineUp():
                self._num_blocks[message.replica] = message.engine.capacity.num_blocks
            case EngineDown():
                self._folds[message.replica] = WorkFold()
            case _:
                pass

    def _observe(self, output: StepOutput) -> None:
        """Estimate the host's share from steps without a pause between them."""
        fold, end_s = self._folds[output.replica], output.end_times_s[-1]
        work = fold.begin(output.batch)
        last_s, self._last_end_s[output.replica] = self._last_end_s[output.replica], end_s
        begin_s = last_s if fold.continues else output.start_s
        if work.num_tokens and end_s > begin_s:
            self._observed.append((work, end_s - begin_s))
        fold.advance(1, output.accepted)

    def first_tokens_s(
        self, replica: int, running: Sequence[Known], waiting: Sequence[Known]
    ) -> dict[str, float]:
        """Return the forecasts in seconds; none before the engine is up, or before enough steps were
        observed.
        """
        observed = list(self._observed)
        is_known = self._cost is not None or len(observed) >= FEWEST_OBSERVED
        num_blocks = self._num_blocks[replica]
        if not (is_known and num_blocks):
            return {}
        cost = self._cost or fit(observed)
        pace = 1.0 if self._cost is None else _pace(cost, observed)
        config = replace(
            self._config.with_blocks(num_blocks),
            async_scheduling=False,
            pipeline_parallel_size=1,
            num_speculative_tokens=0,
            num_lookahead_tokens=0,
        )
        found = _Run(config, self._config, cost).first_tokens_s(running, waiting)
        return {name: pace * in_s for name, in_s in found.items()}


def _pace(cost: CostModel, observed: Sequence[tuple[StepWork, float]]) -> float:
    """Return the median ratio of actual to modelled step times: an emulating machine may fall behind.

    The median, because a few delayed steps, as in a burst of arrivals, do not predict later ones.
    """
    if len(observed) < FEWEST_OBSERVED:
        return 1.0
    return median([took_s / cost.step_s(work) for work, took_s in observed])


class _Run:
    def __init__(self, config: SchedulerConfig, engine: EngineConfig, cost: CostModel) -> None:
        self._config, self._cost = config, cost
        self._state = SchedulerState(
            config, engine.policy, KVCache(config), lockstep_enabled=True, decode_runs=True, seed=engine.seed
        )
        self._fold = WorkFold()
        self._time_s = 0.0

    def first_tokens_s(self, running: Sequence[Known], waiting: Sequence[Known]) -> dict[str, float]:
        state = self._state
        decoding = [known for known in running if known.has_caught_up]
        for known in decoding:
            state.add(
                _submit(known, known.num_prompt_tokens + known.num_tokens - 1, known.num_expected_tokens + 1)
            )
        if decoding:
            # What is in the blocks already is there at once, and for nothing.
            state.config = replace(self._config, max_num_batched_tokens=EVERYTHING)
            self._step(free=True)
            state.config = self._config
        pending = set()
        for known in (*(known for known in running if not known.has_caught_up), *waiting):
            state.add(_submit(known, known.num_prompt_tokens + known.num_tokens, known.num_expected_tokens))
            pending.add(known.request_id)
        return self._until_all_began(pending)

    def _until_all_began(self, pending: set[str]) -> dict[str, float]:
        began: dict[str, float] = {}
        for _ in range(MOST_STEPS):
            if not pending:
                break
            batch = self._step()
            if not batch.num_tokens:
                break
            for chunk in batch.chunks:
                if chunk.samples and chunk.request_id in pending:
                    pending.remove(chunk.request_id)
                    began[chunk.request_id] = self._time_s
        return began

    def _step(self, *, free: bool = False) -> Batch:
        state, fold = self._state, self._fold
        state.view.advance(self._time_s)
        batch, _ = plan(state)
        work, num_steps = fold.begin(batch), batch.max_steps
        if not free and work.num_tokens:
            many = num_steps > 1
            self._time_s += (
                float(self._cost.run_s(work, num_steps).sum()) if many else self._cost.step_s(work)
            )
        if num_steps > 1:
            extend(state, num_steps - 1, self._time_s)
        update(state, StepResult(batch.step, (self._time_s,) * num_steps))
        fold.advance(num_steps)
        return batch


def _submit(known: Known, num_prompt_tokens: int, max_tokens: int) -> Submit:
    return Submit(
        known.request_id,
        0.0,
        num_prompt_tokens,
        max_tokens,
        sampling=Sampling(max_tokens=max_tokens),
        priority=known.priority,
        tenant=known.tenant,
        predicted_tokens=known.num_expected_tokens,
    )
