"""Embedding backend: each prompt is computed whole in one step, and nothing of it is kept.

A step is one pass over whole prompts by the library's own layers, and the pooling of their states. The
scheduler counts blocks, which hold nothing: they limit how much is computed at once.

Shapes: N prompts, L tokens of the longest, H width of a state, W width of a vector.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import trio
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from sundog.actors.config.pooler import PoolingType
from sundog.actors.core.params.sampling import Pooling
from sundog.actors.kernel.clock import run_blocking
from sundog.actors.messages import Admission, Batch, Capacity, StepResult
from sundog.runtime.checkpoint.facts import LoadError, first_line, read_json
from sundog.runtime.embedding.settings import EmbeddingSettings
from sundog.runtime.host.threads import set_threads
from sundog.runtime.model.loader import load_bare

MOST_PADDING = 1.25
"""Largest ratio of tokens with padding to those without, in a pass of several prompts."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"Tanh": torch.tanh, "Identity": lambda x_NW: x_NW}


@dataclass(frozen=True, slots=True)
class Projection:
    """Dense layer after the pooling, in sentence-transformers' format."""

    weight_OI: Tensor
    bias_O: Tensor | None
    activation: Callable[[Tensor], Tensor]

    def __call__(self, x_NI: Tensor) -> Tensor:
        return self.activation(nn.functional.linear(x_NI, self.weight_OI, self.bias_O))


class Encoder:
    """Loaded embedding model, in float32 from the states on."""

    def __init__(
        self, folder: Path, settings: EmbeddingSettings, *, device: str = "cpu", dtype: str = "auto"
    ) -> None:
        self._model = load_bare(folder, device=device, dtype=dtype)
        self._pooling = settings.pooling or _default(self._model)
        self._projections = [_projection(part, self._model.device) for part in settings.projections]
        pad = getattr(self._model.config, "pad_token_id", None)
        self._pad_token = pad if isinstance(pad, int) and pad >= 0 else 0
        self._check(folder)

    def _check(self, folder: Path) -> None:
        try:
            self.vectors([(self._pad_token, self._pad_token)])
        except Exception as error:  # whatever it is, this model cannot be served
            raise LoadError(f"{folder} makes no vectors: {first_line(error)}") from error

    def vectors(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return a vector [W] for each prompt, neither cut nor scaled. Prompts of similar lengths share a
        pass.
        """
        order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
        found: dict[int, Tensor] = {}
        for group in _groups([len(prompts[at]) for at in order]):
            at_N = [order[at] for at in group]
            with torch.inference_mode():
                vectors_NW = self._pass([prompts[at] for at in at_N])
            found.update(zip(at_N, vectors_NW, strict=True))
        return [found[at] for at in range(len(prompts))]

    def _pass(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        lengths = [len(prompt) for prompt in prompts]
        ids_NL = torch.full((len(prompts), max(lengths)), self._pad_token, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids_NL[row, : len(prompt)] = torch.tensor(prompt)
        length_N = torch.tensor(lengths)
        mask_NL = (torch.arange(max(lengths)) < length_N[:, None]).to(torch.int64)
        device = self._model.device
        kwargs = {"use_cache": False} if _takes(self._model.forward, "use_cache") else {}
        output = self._model(input_ids=ids_NL.to(device), attention_mask=mask_NL.to(device), **kwargs)
        states_NLH = output.last_hidden_state.float()
        x_NW = pooled(states_NLH, mask_NL.to(device), self._pooling)
        for projection in self._projections:
            x_NW = projection(x_NW)
        return x_NW.cpu()


def pooled(states_NLH: Tensor, mask_NL: Tensor, pooling: PoolingType) -> Tensor:
    """Return a state for each prompt [N, H]; `mask_NL` is 1 for tokens, prompts begin at 0."""
    if pooling is PoolingType.CLS:
        return states_NLH[:, 0]
    if pooling is PoolingType.LAST:
        last_N = mask_NL.sum(1) - 1
        return states_NLH[torch.arange(len(last_N), device=last_N.device), last_N]
    mask_NL1 = mask_NL[..., None].float()
    return (states_NLH * mask_NL1).sum(1) / mask_NL1.sum(1)


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Group neighbours of an ascending list of lengths so that padding adds few tokens."""
    groups: list[list[int]] = []
    total = 0
    for at, length in enumerate(lengths):
        if groups and length * (len(groups[-1]) + 1) <= MOST_PADDING * (total + length):
            groups[-1].append(at)
            total += length
        else:
            groups.append([at])
            total = length
    return groups


def _takes(function: Callable[..., object], name: str) -> bool:
    return name in inspect.signature(function).parameters


def _default(model: PreTrainedModel) -> PoolingType:
    """Return vLLM's default: the first token of an encoder, the last of a decoder."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
    )

    kind = type(model.config)
    is_encoder = kind in MODEL_FOR_MASKED_LM_MAPPING or kind not in MODEL_FOR_CAUSAL_LM_MAPPING
    return PoolingType.CLS if is_encoder else PoolingType.LAST


def _projection(folder: Path, device: torch.device) -> Projection:
    name = str(read_json(folder / "config.json").get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise LoadError(f"{folder}: the activation {name} is not served: {', '.join(ACTIVATIONS)} are")
    try:
        with safe_open(folder / "model.safetensors", "pt") as file:
            weights = {key: file.get_tensor(key).float().to(device) for key in file.keys()}  # noqa: SIM118
        return Projection(weights["linear.weight"], weights.get("linear.bias"), ACTIVATIONS[name])
    except Exception as error:  # the library raises several kinds, each for a folder at fault
        raise LoadError(f"{folder} has no dense layer that can be read: {first_line(error)}") from error


NOT_A_NUMBER = "its vector has something other than numbers"


class EmbeddingBackend:
    """Backend that answers with a prompt's vector, by an encoder or decoder of transformers.

    The scheduler must give prompts whole (no chunks, no cached prefixes), and a prompt's step ends it.
    """

    def __init__(
        self,
        folder: Path,
        settings: EmbeddingSettings,
        *,
        device: str = "cpu",
        dtype: str = "auto",
        block_size: int = 16,
        max_num_batched_tokens: int = 2048,
        max_num_seqs: int = 256,
        num_threads: int | None = None,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._device = device
        self._dtype = dtype
        self._block_size = block_size
        self._num_blocks = 1 + -(-max_num_batched_tokens // block_size) + max_num_seqs
        self._num_threads = num_threads
        self._encoder: Encoder | None = None
        self._admitted: dict[str, Admission] = {}

    async def load(self) -> Capacity:
        """Read the weights; raises ConfigError if that fails."""
        self._encoder = await run_blocking(self._load)
        return Capacity(self._num_blocks, self._block_size)

    def _load(self) -> Encoder:
        if self._num_threads is not None:
            set_threads(self._num_threads)
        return Encoder(self._folder, self._settings, device=self._device, dtype=self._dtype)

    async def execute(self, batch: Batch) -> StepResult:
        """Return the vectors of the batch's prompts; a row that is not finite fails alone."""
        if self._encoder is None:
            raise RuntimeError("execute before load")
        for name in (*batch.finished, *batch.preempted):
            self._admitted.pop(name, None)
        self._admitted.update({admission.request_id: admission for admission in batch.admitted})
        now = [self._admitted[chunk.request_id] for chunk in batch.chunks]
        for admission, chunk in zip(now, batch.chunks, strict=True):
            if chunk.num_tokens != admission.num_tokens or batch.num_decodes:
                raise ValueError(f"step {batch.step}: {chunk} is not a whole prompt of its own")
        vectors = await run_blocking(self._vectors, self._encoder, now) if now else []
        good = [(each.request_id, data) for each, data in zip(now, vectors, strict=True) if data is not None]
        bad = [each.request_id for each, data in zip(now, vectors, strict=True) if data is None]
        return StepResult(
            batch.step,
            (trio.current_time(),),
            tokens=tuple((name, 0) for name, _ in good),
            failed=tuple((name, NOT_A_NUMBER) for name in bad),
            vectors=tuple(good),
        )

    def _vectors(self, encoder: Encoder, admitted: Sequence[Admission]) -> list[bytes | None]:
        prompts = [admission.token_ids or () for admission in admitted]
        found = encoder.vectors(prompts)
        asked = [admission.sampling.pooling or Pooling() for admission in admitted]
        return [self._finished(vector, pooling) for vector, pooling in zip(found, asked, strict=True)]

    def _finished(self, vector_W: Tensor, pooling: Pooling) -> bytes | None:
        """Truncate and normalise a vector, as bytes; None if a number is not finite."""
        settings = self._settings
        dimensions = pooling.dimensions or settings.dimensions
        x_W = vector_W[:dimensions]
        if settings.normalises if pooling.normalise is None else pooling.normalise:
            x_W = torch.nn.functional.normalize(x_W, dim=0)
        return x_W.numpy().astype("<f4").tobytes() if bool(x_W.isfinite().all()) else None

    async def close(self) -> None:
        self._encoder = None
        self._admitted.clear()
