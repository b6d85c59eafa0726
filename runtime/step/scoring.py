"""Log probabilities of prompts: logits of many positions, computed in parts.

A prompt of 2,000 tokens and a vocabulary of 152,000 would make 1.2 GB of logits. So the model's head is
called repeatedly for a few positions of its layers' states; what the library does after the head, such as
scaling and soft caps, is applied as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from sundog.actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sundog.runtime.attention.step import LayerProbe
from sundog.runtime.sampling.logprobs import token_logprobs
from sundog.runtime.step.ladder import padded

NOT_SCORED = "prompt_logprobs are not given for this kind of model: leave it out"
MOST_LOGITS = 2**24
"""Most logits at a time: 64 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Prompt tokens to score in a step: the logits of row `row` and the next ones predict `token_ids`.

    The first of these is the token at `position` of its request.
    """

    request_id: str
    row: int
    position: int
    token_ids: tuple[int, ...]
    num_top: int


@dataclass(slots=True)
class States:
    """States that a model's layers leave for its head; None before the pass."""

    output: Any = None

    @property
    def num_rows(self) -> int:
        """Number of tokens of the pass, padding included."""
        return int(self.output[0].shape[1])


@contextmanager
def kept_states(model: PreTrainedModel) -> Iterator[States]:
    """Keep the states that the model's layers leave, while the `with` block runs."""
    states = States()

    def keep(module: torch.nn.Module, args: object, output: object) -> None:
        states.output = output

    handle = _layers(model).register_forward_hook(keep)
    try:
        yield states
    finally:
        handle.remove()


def score(model: PreTrainedModel, states: States, scored: tuple[Scored, ...]) -> tuple[PromptLogprobs, ...]:
    """Return the log probabilities of the step's prompts. Memory is bounded, time is O(tokens × V)."""
    with _leaving(_layers(model), states.output):
        return tuple(
            PromptLogprobs(each.request_id, each.position, _tokens(model, states, each)) for each in scored
        )


def can_score(model: PreTrainedModel) -> bool:
    """Return whether the head gives the same logits without running the layers again, tested by a pass."""
    ids_1T = torch.arange(3, device=model.device)[None]
    try:
        with kept_states(model) as states:
            probe = {"input_ids": ids_1T, "position_ids": ids_1T, "use_cache": False, "paged": LayerProbe()}
            logits_TV = model(**probe, logits_to_keep=ids_1T[0]).logits[0]
        with _leaving(_layers(model), states.output):
            again_V = _head(model, states, ids_1T[0, 1:2])[0]
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False
    return torch.allclose(again_V.float(), logits_TV[1].float(), rtol=1e-2, atol=1e-3)


def _head(model: PreTrainedModel, states: States, row_N: torch.Tensor) -> torch.Tensor:
    """Return the logits [N, V] of these rows of the layers' states."""
    none_1T = torch.zeros(1, states.num_rows, dtype=torch.int64, device=model.device)
    logits_NV: torch.Tensor = model(input_ids=none_1T, use_cache=False, logits_to_keep=row_N).logits[0]
    return logits_NV


def _tokens(model: PreTrainedModel, states: States, scored: Scored) -> tuple[TokenLogprobs, ...]:
    size = max(1, MOST_LOGITS // model.config.get_text_config().vocab_size)
    found: list[TokenLogprobs] = []
    for start in range(0, len(scored.token_ids), size):
        token_ids = scored.token_ids[start : start + size]
        # The kernels of a CPU are made for one number of rows each.
        rows = torch.zeros(padded(len(token_ids)), dtype=torch.int64)
        rows[: len(token_ids)] = torch.arange(len(token_ids)) + scored.row + start
        logits_NV = _head(model, states, rows.to(model.device))[: len(token_ids)]
        found += token_logprobs(logits_NV, token_ids, [scored.num_top] * len(token_ids))
    return tuple(found)


def _layers(model: PreTrainedModel) -> torch.nn.Module:
    layers: torch.nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]  # the library's
    return layers


@contextmanager
def _leaving(layers: torch.nn.Module, output: object) -> Iterator[None]:
    """Make these layers return `output` without computing, while the `with` block runs."""
    layers.forward = lambda *args, **kwargs: output
    try:
        yield
    finally:
        del layers.forward  # that of the class again
