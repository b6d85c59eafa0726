"""Forward pass of a step on the device: tokens in, logits of the sampling rows out.

Shapes: T tokens of the step; N requests of a span, Q query tokens of each, B blocks of the longest; R
sampling requests; V tokens of the vocabulary.
"""

import logging

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from sundog.actors.core.computation import Computation
from sundog.actors.core.config import ConfigError
from sundog.actors.core.params.logprobs import PromptLogprobs
from sundog.runtime.attention import StepAttention
from sundog.runtime.attention.paged_cache import LayerShape, PagedKVCache
from sundog.runtime.attention.step import LayerProbe
from sundog.runtime.checkpoint.facts import first_line
from sundog.runtime.device.inputs import Inputs, gathered, padded_requests, padded_rows, put
from sundog.runtime.host.memory import ran_out_of_memory
from sundog.runtime.lora.adapters import Adapters
from sundog.runtime.model.attention_backend import AttentionBackend, choose
from sundog.runtime.model.graphs import DecodeGraphs, Recorder
from sundog.runtime.native.attention import NativeAttention, StepArrays
from sundog.runtime.native.decoder import NativeDecoder
from sundog.runtime.native.few_bits import FewBitsLinear
from sundog.runtime.native.instructions import faster, instructions
from sundog.runtime.native.library import kernels
from sundog.runtime.native.parts import Unrecognised
from sundog.runtime.native.recognised import recognised
from sundog.runtime.step.ladder import padded
from sundog.runtime.step.scoring import can_score, kept_states, score
from sundog.runtime.step.step import Span, Step

_LOG = logging.getLogger("sundog.model")
LONG_STEP_ROWS = 512
"""Rows from which a step of a model of a few million parameters takes ten milliseconds or more."""


def probe_layers(model: PreTrainedModel, num_tokens: int = 1, num_rows: int = 1) -> list[LayerShape]:
    """Return what each attention layer stores, found by a pass without requests, which also warms up.

    The pass has `num_tokens` tokens and makes logits for `num_rows` of them, so that on CUDA it takes as much
    memory besides the weights as the largest step.

    Raises ConfigError if the model keeps state other than keys and values of every layer, or restricts
    attention in a way that the step does not support.
    """
    probe = LayerProbe()
    zeros_1T = torch.zeros(1, num_tokens, dtype=torch.int64, device=model.device)
    rows_R = torch.arange(min(num_rows, num_tokens), device=model.device)
    try:
        with torch.inference_mode():
            model(
                input_ids=zeros_1T, position_ids=zeros_1T, use_cache=False, logits_to_keep=rows_R, paged=probe
            )
    except ConfigError as error:
        raise ConfigError(f"{model.config.model_type} is not supported: {error}") from error
    except Exception as error:  # whatever it is, this model cannot compute a step
        if ran_out_of_memory(error):
            raise ConfigError(
                f"not enough memory for a step of {num_tokens} tokens: {first_line(error)}"
            ) from error
        raise ConfigError(
            f"{model.config.model_type} is not supported: it cannot compute a step: {first_line(error)}"
        ) from error
    if reason := _unfit(model.config, probe):
        raise ConfigError(f"{model.config.model_type} is not supported: {reason}")
    return [probe.shapes[layer] for layer in sorted(probe.shapes)]


def _unfit(config: PreTrainedConfig, probe: LayerProbe) -> str | None:
    if probe.repeated:
        return f"layer {min(probe.repeated)} attends more than once, and a cache keeps its keys once"
    if sorted(probe.shapes) != list(range(config.num_hidden_layers)):
        return f"{len(probe.shapes)} of {config.num_hidden_layers} layers keep keys and values of their own"
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is None and window is not None and set(probe.windows.values()) == {None}:
        return f"its layers do not pass on the window of {window} tokens that its configuration has"
    kinds = kinds or ["full_attention"] * len(probe.shapes)
    for layer, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            return f"layer {layer} is {kind}"
        if kind == "sliding_attention" and probe.windows[layer] is None:
            return f"layer {layer} does not pass on its window"
    return None


class Model:
    """Loaded model with its paged cache."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: PagedKVCache,
        max_model_len: int,
        adapters: Adapters | None = None,
        attention: AttentionBackend | None = None,
        *,
        for_long_steps: int | None = None,
    ) -> None:
        """Create the record; `for_long_steps` is the number of threads for long steps, if torch uses fewer
        otherwise.
        """
        self._for_long_steps = for_long_steps
        self._model = model
        self._adapters = self.adapters = adapters
        self.cache = cache
        self._device = model.device
        self._max_model_len = max_model_len
        self._attention = choose(cache) if attention is None else attention
        self._graphs: DecodeGraphs | None = None
        self._can_score: bool | None = None
        """Whether prompts can be scored; None until the first request for prompt log probabilities."""
        self._library = library = kernels() if NativeAttention.can(cache) else None
        self._native = None if library is None else NativeAttention(library, cache)
        self._decoder: NativeDecoder | None = None
        self.why_by_layers: str | None = None
        """Reason why the kernels for whole decoders, if available, do not compute it."""
        if library is not None:
            try:
                self._decoder = recognised(library, model, cache, max_model_len)
            except Unrecognised as reason:
                self.why_by_layers = str(reason)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def is_whole(self) -> bool:
        """Whether kernels for whole decoders compute its steps, instead of the library's layers."""
        return self._decoder is not None

    @property
    def computation(self) -> Computation:
        """Description of how its steps are computed."""
        why = self.why_by_layers or ("there are no compiled kernels here" if self._native is None else None)
        dtype, is_cpu = self._model.dtype, self._device.type == "cpu"
        has_whole = any(isinstance(module, FewBitsLinear) for module in self._model.modules())
        return Computation(
            str(dtype).removeprefix("torch."),
            self._attention.words if self._native is None else "compiled kernels that read blocks in place",
            steps="one compiled call" if self.is_whole else "torch's layers one after the other",
            why_not_whole=why,
            instructions=instructions(self._library, dtype, has_whole=has_whole) if is_cpu else None,
            faster=faster(self._library, dtype, has_whole=has_whole) if is_cpu else None,
        )

    def logits(self, step: Step, inputs: Inputs[Tensor] | None = None) -> Tensor:
        """Return the logits [R, V] of the step's sampling rows, in the model's own dtype.

        `inputs` are the step's own on the device, where tokens may have been replaced. Call it in inference
        mode, like everything that touches its tensors.
        """
        adapted = self._adapters is not None and self._adapters.begin(step.adapter_T, self._device)
        # Scores need the states that the library's layers leave, adapters the layers that they change.
        needs_layers = adapted or bool(step.scored)
        if self._decoder is not None and inputs is None and not needs_layers:
            self.cache.wipe(torch.from_numpy(step.wiped_B))
            arrays = StepArrays(step.spans, step.slot_T)
            return self._decoder.run(
                arrays,
                step.position_T,
                step.sample_rows_R,
                token_T=step.token_T,
                num_threads=self._for_long_steps if len(step.token_T) >= LONG_STEP_ROWS else None,
            )
        inputs = self.inputs(step) if inputs is None else inputs
        self.cache.wipe(inputs.wiped_B)
        if not needs_layers and self._size(step) is not None:
            assert self._graphs is not None
            return self._graphs.logits(inputs)[: len(step.sample_rows_R)]
        if self._native is not None:
            return self._pass(inputs, self._native.step(step.spans, step.slot_T))[: len(step.sample_rows_R)]
        return self._forward(inputs, step.spans)[: len(step.sample_rows_R)]

    def inputs(self, step: Step) -> Inputs[Tensor]:
        """Return the arrays of a step on the device, padded as its computation needs."""
        found = gathered(step)
        if (size := self._size(step)) is not None:
            found = padded_requests(found, size)
        elif self._device.type == "cpu":  # whose kernels are made for one size each
            found = padded_rows(found, padded)
        return put(found, self._device)

    @torch.inference_mode()
    def record(self, recorder: Recorder, max_num_seqs: int) -> None:
        """Record decode steps from now on; steps with adapters are not recorded.

        If attention depends on lengths, or the model on values, nothing is recorded and a line logs the
        reason.
        """
        attention = self._attention
        if not attention.is_static:
            _LOG.info("decode steps are not recorded: attention gathers keys")
            return
        name = self._model.config.model_type
        try:
            self._graphs = DecodeGraphs(
                self._forward,
                recorder,
                self._device,
                max_num_seqs=max_num_seqs,
                max_model_len=self._max_model_len,
                block_size=self.cache.block_size,
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a recording of this model raises
            _LOG.warning("decode steps of %s are not recorded: %s", name, first_line(error))

    def _size(self, step: Step) -> int | None:
        return None if self._graphs is None or step.adapter_T is not None else self._graphs.size(step)

    def _forward(self, inputs: Inputs[Tensor], spans: tuple[Span, ...]) -> Tensor:
        return self._pass(inputs, self._attention.step(self.cache, inputs, spans))

    def _pass(self, inputs: Inputs[Tensor], paged: StepAttention) -> Tensor:
        output = self._model(
            input_ids=inputs.token_T[None],
            position_ids=inputs.position_T[None],
            use_cache=False,
            logits_to_keep=inputs.sample_rows_R,
            paged=paged,
        )
        logits_RV: Tensor = output.logits[0]
        return logits_RV

    def scored_logits(
        self, step: Step, inputs: Inputs[Tensor] | None = None
    ) -> tuple[Tensor, tuple[PromptLogprobs, ...]]:
        """Return the `logits`, and the log probabilities of the step's `scored` prompt tokens.

        The latter are missing if the model's head cannot be computed alone.
        """
        if self._can_score is None:
            if self._adapters is not None:  # the rows of the last step are not the probe's
                self._adapters.begin(None, self._device)
            self._can_score = can_score(self._model)
        if not self._can_score:
            return self.logits(step, inputs), ()
        with kept_states(self._model) as states:
            logits_RV = self.logits(step, inputs)
        return logits_RV, score(self._model, states, step.scored)
