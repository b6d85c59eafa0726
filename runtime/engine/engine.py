"""The torch engine below the actors: it applies batches, launches their steps, and returns results.

Law: steps complete in the order of launches. A step may be launched before the result of the previous one is
back; its tokens are then those that the device has kept. Everything else that depends on tokens waits for
them.
"""

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.params.logprobs import PromptLogprobs
from sundog.runtime.device.download import Download, LastTokens, make_current, new_stream
from sundog.runtime.device.inputs import columns
from sundog.runtime.engine.blocks_ahead import BlocksAhead
from sundog.runtime.engine.requests import NO_ADAPTER, Requests
from sundog.runtime.engine.speculator import Pairs, Speculator
from sundog.runtime.model.model import Model
from sundog.runtime.ranks.group import RankGroup
from sundog.runtime.sampling.constrained import choose
from sundog.runtime.sampling.sampler import Sampled, named, pick
from sundog.runtime.step.scoring import NOT_SCORED
from sundog.runtime.step.step import Step


@dataclass(slots=True)
class Flight:
    """A launched step: its tokens, or the download that brings them."""

    batch: Batch
    step: Step
    sampled: Sampled = field(default_factory=Sampled)
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    download: Download | None = None
    kept: list[int] | None = None
    """Sampling rows whose tokens count, once they are known."""


class Engine:
    """A model, its requests, and the steps in flight, the oldest first.

    With `ahead` tokens stay on the device for the next step; otherwise a launch computes the whole step. In a
    `group` of ranks the first one samples and the others receive its tokens; all apply the same batches.
    """

    def __init__(
        self,
        requests: Requests,
        model: Model,
        speculator: Speculator | None,
        blocks_ahead: BlocksAhead | None = None,
        *,
        ahead: bool = False,
        group: RankGroup | None = None,
    ) -> None:
        self._requests = requests
        self._model = model
        self._speculator = speculator
        self._blocks_ahead = blocks_ahead
        self._group = group
        self._flights: deque[Flight] = deque()
        self._last = LastTokens(model.device) if ahead else None
        self._stream = new_stream(model.device) if ahead else None

    @property
    def is_ahead(self) -> bool:
        return self._last is not None

    @property
    def speculates(self) -> bool:
        return self._speculator is not None

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Flight:
        """Launch the batch's step behind those in flight.

        Raises:
            ValueError: The batch breaks the rules of `core/batch.py`.
        """
        make_current(self._model.device)
        if self._last is None or self._requests.looks_back:
            self._take_in()
        flight = Flight(batch, self._requests.fold(batch))
        self._flights.append(flight)
        if self._blocks_ahead is not None and (batch.admitted or batch.new_blocks):
            self._blocks_ahead.follow(batch)
        if len(flight.step.token_T):
            if self._last is None:
                self._compute(flight)
            else:
                self._compute_ahead(flight, self._last)
        return flight

    def adapters_in_use(self) -> set[int]:
        """Return the numbers of adapters that requests run with."""
        return self._requests.adapters_in_use()

    def wait(self, flight: Flight) -> None:
        """Wait for the sampled tokens; touches nothing that a launch needs."""
        if flight.download is not None:
            flight.download.wait()

    def finish(self, flight: Flight, end_s: float) -> StepResult:
        """Return the result of the oldest step, which ended at `end_s`."""
        assert flight is self._flights[0], "steps end in the order in which they began"
        make_current(self._model.device)
        self._take_in(1)
        self._flights.popleft()
        if self._group is not None and not self._group.rank.leads:
            return StepResult(flight.batch.step, (end_s,))  # the tokens are those of the rank that samples
        step, sampled, kept = flight.step, flight.sampled, flight.kept
        assert kept is not None
        drafts: Pairs = ()
        if self._speculator is not None and len(step.token_T):
            drafts = self._speculator.propose(flight.batch, step, self._requests)
        names = step.request_ids
        failed = {names[row]: sampled.failed[row] for row in kept if row in sampled.failed}
        if len(flight.prompt_logprobs) < len(step.scored):
            failed |= {each.request_id: NOT_SCORED for each in step.scored}
        if self._requests.lacking:
            failed |= {name: NO_ADAPTER for name in names if name in self._requests.lacking}
        return StepResult(
            flight.batch.step,
            (end_s,),
            tokens=tuple((names[row], sampled.tokens[row]) for row in kept if names[row] not in failed),
            failed=tuple(failed.items()),
            logprobs=tuple((names[row], each) for row, each in sampled.logprobs.items()),
            prompt_logprobs=flight.prompt_logprobs,
            drafts=drafts,
        )

    def _take_in(self, most: int | None = None) -> None:
        """Record the tokens of the `most` oldest steps; None records those of all."""
        for flight in list(self._flights)[:most]:
            if flight.kept is None:
                if flight.download is not None:
                    flight.sampled = named(flight.download.wait())
                flight.kept = self._requests.advance(flight.step, flight.sampled)

    def _compute(self, flight: Flight) -> None:
        step = flight.step
        if step.scored:
            logits_RV, flight.prompt_logprobs = self._model.scored_logits(step)
        else:
            logits_RV = self._model.logits(step)
        if step.request_ids:
            flight.sampled = self._chosen(logits_RV, step)

    def _compute_ahead(self, flight: Flight, last: LastTokens) -> None:
        """Compute a step without waiting for the device, unless the step needs a result."""
        step = flight.step
        inputs = self._model.inputs(step)
        last.hold(len(self._requests.tables().table))
        inputs.token_T[: len(step.fed_F)] = last.read(inputs.fed_F)
        if step.scored:
            logits_RV, flight.prompt_logprobs = self._model.scored_logits(step, inputs)
        else:
            logits_RV = self._model.logits(step, inputs)
        if not step.request_ids:
            return
        if step.choices is None or step.choices.is_plain:
            token_R = pick(logits_RV, step.choices, columns(inputs) if step.choices else None)
            if self._group is not None:
                self._group.follow(token_R)
            flight.download = Download(token_R, self._stream)
        else:
            flight.sampled = self._chosen(logits_RV, step)
            token_R = torch.tensor(flight.sampled.tokens, device=logits_RV.device)
        last.write(inputs.row_R, token_R)

    def _chosen(self, logits_RV: Tensor, step: Step) -> Sampled:
        """Return a token for each sampling row, chosen here or received from the rank that samples."""
        if self._group is None:
            return choose(logits_RV, step.choices)
        here = choose(logits_RV, step.choices) if self._group.rank.leads else Sampled()
        return self._group.share(here, len(logits_RV))
