"""Journal of one run, of any world: every Submit and StepOutput, for analysis or repetition."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sundog.actors.core.batch import Batch
from sundog.actors.core.params.sampling import DEFAULTS, Sampling
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Generate, Heard, StepOutput, Submit
from sundog.sim.cost.work import StepWork, WorkFold
from sundog.sim.trace.record import TraceRequest


class Journal(Actor[Heard]):
    """Listener that stores every message; memory grows with the run."""

    def __init__(self) -> None:
        super().__init__("journal")
        self.submits: list[Submit] = []
        self.outputs: list[StepOutput] = []

    def handle(self, message: Heard) -> None:
        match message:
            case Submit():
                self.submits.append(message)
            case StepOutput():
                self.outputs.append(message)


@dataclass(frozen=True, slots=True)
class Past:
    """Requests in a journal, complete enough to send them again in any world."""

    submits: dict[str, Submit]
    output_tokens: dict[str, tuple[int, ...]]
    refused: frozenset[str]

    @classmethod
    def of(cls, journal: Journal, *, since: int = 0) -> "Past":
        """Return the requests from the `since`-th on, with their tokens.

        Under async scheduling a backend may sample once more for a request that has ended.
        """
        submits = {submit.request_id: submit for submit in journal.submits[since:]}
        tokens: dict[str, list[int]] = {name: [] for name in submits}
        unfinished, refused = set(submits), set[str]()
        for output in journal.outputs:
            for name, token in output.tokens or ():
                if name in unfinished:
                    tokens[name].append(token)
            unfinished -= {finish.request_id for finish in output.finished}
            refused |= {finish.request_id for finish in output.finished if finish.reason == "refused"}
        return cls(submits, {name: tuple(ids) for name, ids in tokens.items()}, frozenset(refused))

    def trace(self) -> list[TraceRequest]:
        """Return the requests as a trace that begins at 0, with their actual lengths.

        A refused request has its largest allowed length; one aborted before its first token is left out.
        """
        start_s = min((submit.arrival_s for submit in self.submits.values()), default=0.0)
        return [
            TraceRequest(
                request_id=name,
                arrival_s=submit.arrival_s - start_s,
                num_prompt_tokens=submit.num_prompt_tokens,
                num_output_tokens=len(self.output_tokens[name]) or submit.max_tokens,
                priority=submit.priority,
                tenant=submit.tenant,
                session=submit.session,
                slo_ttft_s=submit.slo_ttft_s,
                slo_tpot_s=submit.slo_tpot_s,
                slo_e2e_s=submit.slo_e2e_s,
            )
            for name, submit in self.submits.items()
            if self.output_tokens[name] or name in self.refused
        ]

    def counted(self, request: TraceRequest) -> Generate:
        """Return the request for simulated engines that only count tokens, with block keys of the prompt."""
        submit = self.submits[request.request_id]
        limits = Sampling(max_tokens=submit.max_tokens)
        return replace(
            self.exact(request),
            prompt=submit.num_prompt_tokens,
            sampling=limits,
            block_hashes=submit.block_hashes,
        )

    def exact(self, request: TraceRequest) -> Generate:
        """Return the request with the tokens of its prompt."""
        submit = self.submits[request.request_id]
        assert submit.prompt_token_ids is not None, f"{request.request_id} has only a count"
        return Generate(
            prompt=submit.prompt_token_ids,
            sampling=submit.sampling,
            request_id=submit.request_id,
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            tenant=submit.tenant,
            slo_ttft_s=submit.slo_ttft_s,
            predicted_tokens=submit.predicted_tokens,
            slo_tpot_s=submit.slo_tpot_s,
            slo_e2e_s=submit.slo_e2e_s,
            adapter=submit.adapter,
            session=submit.session,
        )


class Observation(NamedTuple):
    """Work of one step, and its duration."""

    step: int
    work: StepWork
    seconds: float


def observations(
    outputs: Sequence[StepOutput], arrivals_s: Mapping[str, float] | None = None
) -> Iterator[Observation]:
    """Yield the work of each step of one replica, with its seconds.

    A step that follows another without a pause counts from the end of that one, so that it includes the
    host's time between both. After a pause a step counts from its own begin or, if the requests' `arrivals_s`
    are given, from the arrival that it answers, so that it includes the way to the engine.
    """
    fold = WorkFold()
    previous_end_s: float | None = None
    for output in outputs:
        work = fold.begin(output.batch)
        fold.advance(len(output.end_times_s), output.accepted)
        if not work.num_tokens:
            previous_end_s = None
            continue
        start_s = output.start_s if previous_end_s is None else previous_end_s
        if previous_end_s is None and arrivals_s is not None:
            came_s = (arrivals_s.get(each.request_id, start_s) for each in output.batch.admitted)
            start_s = min((start_s, *came_s))
        end_s = output.end_times_s[-1]
        if len(output.end_times_s) == 1:
            yield Observation(output.step, work, end_s - start_s)
        previous_end_s = end_s if output.num_running else None


def decisions(outputs: Sequence[StepOutput]) -> list[tuple[float, Batch]]:
    """Return every batch with its begin, without world-specific parts: tokens and sampling parameters."""
    found = []
    for output in outputs:
        admitted = tuple(replace(a, token_ids=None, sampling=DEFAULTS) for a in output.batch.admitted)
        found.append((output.start_s, replace(output.batch, admitted=admitted)))
    return found
