"""One forward pass of a step on the device: tokens in, logits of the sampling rows out.

Shapes: T tokens of the step; N requests of a span, Q query tokens of each, B blocks of the
longest; R sampling requests; V tokens of the vocabulary.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from actors.core.config import ConfigError
from actors.core.logprobs import PromptLogprobs
from runtime.attention import StepAttention
from runtime.attention.groups import Group
from runtime.attention.step import LayerProbe, PagedStep
from runtime.attention.varlen import Sequences, is_available
from runtime.facts import first_line
from runtime.ladder import padded
from runtime.lora import Adapters
from runtime.native.attention import NativeAttention, StepArrays
from runtime.native.library import kernels
from runtime.native.recognised import recognised
from runtime.paged_cache import LayerShape, PagedKVCache
from runtime.scoring import can_score, kept_states, score
from runtime.step import Span, Step

PROBE_TOKENS = 3
MOST_APART = 0.05
"""Of the logits' size: bf16 rounds to 0.004 in every layer, and a wrong layer is off by its whole size."""


def probe_layers(model: PreTrainedModel, num_tokens: int = 1, num_rows: int = 1) -> list[LayerShape]:
    """What each attention layer keeps, learnt from a pass without requests, which also warms up.

    The pass has `num_tokens` tokens and makes logits for `num_rows` of them, so that on CUDA it
    takes as much memory besides the weights as the largest step.

    Raises ConfigError when the model keeps state that is not keys and values of every layer, or
    restricts attention in a way that the step is not told of.
    """
    probe = LayerProbe()
    zeros_1T = torch.zeros(1, num_tokens, dtype=torch.int64, device=model.device)
    rows_R = torch.arange(min(num_rows, num_tokens), device=model.device)
    try:
        with torch.inference_mode():
            model(
                input_ids=zeros_1T, position_ids=zeros_1T, use_cache=False, logits_to_keep=rows_R, paged=probe
            )
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"not enough memory for a step of {num_tokens} tokens: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{model.config.model_type} is not supported: {error}") from error
    except Exception as error:  # whatever it is, this model cannot compute a step
        raise ConfigError(
            f"{model.config.model_type} is not supported: it cannot compute a step: {first_line(error)}"
        ) from error
    if reason := _unfit(model.config, probe):
        raise ConfigError(f"{model.config.model_type} is not supported: {reason}")
    return [probe.shapes[layer] for layer in sorted(probe.shapes)]


def probe_logits(model: PreTrainedModel) -> Tensor:
    """The logits of a few tokens that attend to nothing: the work of all layers but attention."""
    ids_1T = torch.arange(PROBE_TOKENS, device=model.device)[None]
    with torch.inference_mode():
        output = model(input_ids=ids_1T, position_ids=ids_1T, use_cache=False, paged=LayerProbe())
    logits: Tensor = output.logits
    return logits


def answers_as(model: PreTrainedModel, expected: Tensor) -> bool:
    """Whether the probe's logits are these, up to rounding in another order of sums."""
    try:
        logits = probe_logits(model)
    except RuntimeError:  # such as a view of what is no longer contiguous
        return False
    apart, size = (logits.float() - expected.float()).norm(), expected.float().norm()
    return bool(apart <= MOST_APART * size)


def _unfit(config: PreTrainedConfig, probe: LayerProbe) -> str | None:
    """Why a paged cache cannot hold this model's state, if it cannot."""
    if probe.repeated:
        return f"layer {min(probe.repeated)} attends more than once, and a cache keeps its keys once"
    if sorted(probe.shapes) != list(range(config.num_hidden_layers)):
        return f"{len(probe.shapes)} of {config.num_hidden_layers} layers keep keys and values of their own"
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is None and window is not None and set(probe.windows.values()) == {None}:
        return f"its layers do not tell the window of {window} tokens that its configuration has"
    kinds = kinds or ["full_attention"] * len(probe.shapes)
    for layer, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            return f"layer {layer} is {kind}"
        if kind == "sliding_attention" and probe.windows[layer] is None:
            return f"layer {layer} does not tell its window"
    return None


class Model:
    """A loaded model with its paged cache."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: PagedKVCache,
        max_model_len: int,
        adapters: Adapters | None = None,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._cache = cache
        self._device = model.device
        self._can_score: bool | None = None
        """None until the first request for its prompt's log probabilities."""
        library = kernels() if NativeAttention.can(cache) else None
        self._native = None if library is None else NativeAttention(library, cache)
        self._decoder = None if library is None else recognised(library, model, cache, max_model_len)

    def logits(self, step: Step) -> Tensor:
        """The logits [R, V] of the step's sampling rows, in the model's own dtype.

        Call it in inference mode, like everything that touches its tensors.
        """
        self._cache.wipe(self._put(step.wiped_B))
        adapted = self._adapters is not None and self._adapters.begin(step.adapter_T, self._device)
        # Scores need the states that the library's layers leave, adapters the layers that they change.
        needs_layers = adapted or bool(step.scored)
        if self._decoder is not None and not needs_layers and self._decoder.takes(len(step.token_T)):
            arrays = StepArrays(step.spans, step.slot_T)
            return self._decoder.run(arrays, step.position_T, step.sample_rows_R, token_T=step.token_T)
        paged = self._attention(step)
        output = self._model(
            input_ids=self._put(self._pad(step.token_T))[None],
            position_ids=self._put(self._pad(step.position_T))[None],
            use_cache=False,
            logits_to_keep=self._put(self._pad(step.sample_rows_R)),
            paged=paged,
        )
        logits_RV: Tensor = output.logits[0, : len(step.sample_rows_R)]
        return logits_RV

    def _attention(self, step: Step) -> StepAttention:
        if self._native is not None:
            return self._native.step(step.spans, step.slot_T)
        return PagedStep(
            self._cache,
            self._put(step.slot_T),
            [self._group(span) for span in step.spans],
            self._sequences(step.spans),
        )

    def scored_logits(self, step: Step) -> tuple[Tensor, tuple[PromptLogprobs, ...]]:
        """The logits of `logits`, and the log probabilities of the step's `scored` prompt tokens.

        Of a model whose head cannot be asked alone there are none.
        """
        if self._can_score is None:
            self._can_score = can_score(self._model)
        if not self._can_score:
            return self.logits(step), ()
        with kept_states(self._model) as states:
            logits_RV = self.logits(step)
        return logits_RV, score(self._model, states, step.scored)

    def _pad(self, array: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pad with zeros to a size on the ladder, on a CPU, whose kernels are made for one size each."""
        size = padded(len(array)) if self._device.type == "cpu" else len(array)
        if size == len(array):
            return array
        out = np.zeros(size, array.dtype)
        out[: len(array)] = array
        return out

    def _put(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _group(self, span: Span) -> Group:
        first_N1 = self._put(span.first_position_N)[:, None]
        position_NQ = first_N1 + torch.arange(span.num_queries, device=self._device)
        fresh = len(span.first_position_N) == 1 and int(span.first_position_N[0]) == 0
        return Group(span.start, self._put(span.table_NB), position_NQ, self._cache.block_size, fresh)

    def _sequences(self, spans: tuple[Span, ...]) -> Sequences | None:
        """All requests of the step for one call, on a device that has such a call."""
        if self._device.type != "cuda" or not is_available():
            return None
        num_requests = [len(span.first_position_N) for span in spans]
        num_queries_R = np.repeat([span.num_queries for span in spans], num_requests)
        num_keys_R = np.concatenate([s.first_position_N + s.num_queries for s in spans])
        width = max(span.table_NB.shape[1] for span in spans)
        tables = [np.pad(s.table_NB, ((0, 0), (0, width - s.table_NB.shape[1]))) for s in spans]
        return Sequences(
            self._put(_starts(num_queries_R)).int(),
            self._put(_starts(num_keys_R)).int(),
            self._put(num_keys_R).int(),
            self._put(np.concatenate(tables)).int(),
            max_queries=int(num_queries_R.max()),
            max_keys=int(num_keys_R.max()),
            num_keys=int(num_keys_R.sum()),
        )


def _starts(count_R: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of R neighbours begins, and where the last ends: [R + 1]."""
    starts: NDArray[np.int64] = np.concatenate(([0], np.cumsum(count_R)))
    return starts
