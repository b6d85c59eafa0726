"""Real tokens at a modelled pace: torch on the virtual clock."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from actors.core.batch import Batch, StepResult
from actors.engine.backend import Backend
from actors.kernel.clock import Event, now_s, sleep_until
from actors.messages import Capacity
from sim.backend import Pace
from sim.cost.work_fold import WorkFold


def accepted_of(batch: Batch, result: StepResult) -> tuple[tuple[str, int], ...]:
    """How many of the drafts of each request were accepted, by its tokens where they are named."""
    if not batch.drafts or result.tokens is None:
        return result.accepted
    counts = Counter(name for name, _ in result.tokens)
    return tuple((name, counts[name] - 1) for name, _ in batch.drafts if name in counts)


class Paced:
    """Real tokens of an inner Backend at the modelled pace.

    Does one step per batch. Where the inner backend itself takes time, the step ends when both
    the model and the inner backend are done.
    """

    __slots__ = ("_fold", "_inner", "_pace")

    def __init__(self, inner: Backend, pace: Pace) -> None:
        self._inner, self._pace = inner, pace
        self._fold = WorkFold()

    async def load(self) -> Capacity:
        """The inner backend's capacity."""
        return await self._inner.load()

    async def execute(self, batch: Batch) -> StepResult:
        """One step: the inner backend's tokens, the cost model's end time."""
        work = self._fold.begin(batch)
        end_times_s: Sequence[float] = ()
        if work.num_tokens:
            end_times_s = self._pace.end_times_s(work, 1, now_s(), self._fold.continues)
        result = await self._inner.execute(batch)
        if end_times_s:
            await sleep_until(end_times_s[0], Event.STEP_END, self._pace.key)
            self._pace.done(end_times_s[0])
        self._fold.advance(1, accepted_of(batch, result))
        return replace(result, end_times_s=(max((now_s(), *end_times_s)),))

    async def close(self) -> None:
        """Close the inner backend."""
        await self._inner.close()
