"""The torch backend: folds batches into requests, computes a step, samples its tokens."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from actors.clock import run_blocking
from actors.messages import Batch, Capacity, PromptLogprobs, StepResult
from actors.speculative_config import SpeculativeConfig
from runtime.facts import check_context
from runtime.loader import import_torch, load_model

# Before anything that imports torch, since it sets how torch's threads wait.
import_torch()

# ruff: noqa: E402
import torch
from transformers import PreTrainedModel

from runtime.drafts import Drafts
from runtime.linear import let_go_of_files, noted_inputs, pack_linears
from runtime.lora import Adapters
from runtime.memory import give_back_free
from runtime.model import Model, answers_as, probe_layers, probe_logits
from runtime.paged_cache import LayerShape, PagedKVCache, block_bytes, choose_num_blocks, free_bytes
from runtime.requests import Requests
from runtime.sampling.constrained import choose
from runtime.sampling.sampler import Sampled
from runtime.scoring import NOT_SCORED
from runtime.speculator import DraftModel, Pairs, PromptLookup, Speculator
from runtime.step import Step
from runtime.structured.grammars import Grammars
from runtime.threads import set_threads

_LOG = logging.getLogger(__name__)


Computed = tuple[Sampled, tuple[PromptLogprobs, ...]]
"""What a step brings: tokens, and log probabilities of prompt tokens."""


class Loaded(NamedTuple):
    """What the backend holds from `load` to `close`."""

    requests: Requests
    model: Model
    speculator: Speculator | None


class TorchBackend:
    """A decoder-only Hugging Face model from a local folder, on a paged cache.

    `gpu_memory_utilization` is the share of memory for weights and cache on CUDA (0.9 if None), of
    the available memory for the cache on the CPU (0.4 if None), which `num_sharing` engines divide.
    `num_threads` None leaves torch's choice; `grammars` None refuses constraints; `adapters` are
    folders of LoRA adapters by name. Every error in the settings or a folder is a ConfigError from `load`.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        device: str = "cpu",
        dtype: str = "auto",
        block_size: int = 16,
        num_gpu_blocks: int | None = None,
        max_model_len: int,
        max_num_batched_tokens: int = 2048,
        max_num_seqs: int = 256,
        gpu_memory_utilization: float | None = None,
        seed: int = 0,
        eos_token_ids: Sequence[int] = (),
        num_threads: int | None = None,
        num_sharing: int = 1,
        speculation: SpeculativeConfig | None = None,
        grammars: Grammars | None = None,
        adapters: Mapping[str, Path] | None = None,
        max_lora_rank: int = 16,
    ) -> None:
        self._model_dir = Path(model_dir)
        self._device = device
        self._dtype = dtype
        self._block_size = block_size
        self._num_gpu_blocks = num_gpu_blocks
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._utilization = gpu_memory_utilization
        self._num_threads = num_threads
        self._num_sharing = num_sharing
        self._adapter_folders = adapters or {}
        self._max_lora_rank = max_lora_rank
        self._seed = seed
        self._grammars = grammars
        self._eos_token_ids = tuple(eos_token_ids)
        self._speculation = speculation
        self._loaded: Loaded | None = None

    async def load(self) -> Capacity:
        """Read the weights and make the cache; raises ConfigError where either fails."""
        self._loaded, num_blocks = await run_blocking(self._load)
        return Capacity(num_blocks, self._block_size)

    async def execute(self, batch: Batch) -> StepResult:
        """One step of the batch, whatever its `max_steps`.

        Gives each sampling request a token, or the reason why it alone has none.
        """
        if self._loaded is None:
            raise RuntimeError("execute before load")
        requests, model, speculator = self._loaded
        step = requests.fold(batch)
        nothing: Computed = Sampled(), ()
        sampled, scored = await run_blocking(_compute, model, step) if len(step.token_T) else nothing
        kept = requests.advance(step, sampled)
        drafts: Pairs = ()
        if speculator is not None and len(step.token_T):
            drafts = await run_blocking(speculator.propose, batch, step, requests)
        names = step.request_ids
        failed = {names[row]: sampled.failed[row] for row in kept if row in sampled.failed}
        if len(scored) < len(step.scored):
            failed |= {each.request_id: NOT_SCORED for each in step.scored}
        return StepResult(
            batch.step,
            (trio.current_time(),),
            tokens=tuple((names[row], sampled.tokens[row]) for row in kept if names[row] not in failed),
            failed=tuple(failed.items()),
            logprobs=tuple((names[row], each) for row, each in sampled.logprobs.items()),
            prompt_logprobs=scored,
            drafts=drafts,
        )

    async def close(self) -> None:
        """Release weights and cache."""
        self._loaded = None

    def _load(self) -> tuple[Loaded, int]:
        if self._num_threads is not None:
            set_threads(self._num_threads)
        check_context(self._model_dir, self._max_model_len)
        names = tuple(self._adapter_folders)
        adapters = Adapters(self._adapter_folders, self._max_lora_rank) if names else None
        model, layers, step_bytes = self._open(self._model_dir, adapters)
        draft, draft_layers, _ = self._open_draft()
        has_bytes = free_bytes(model.device, self._utilization, self._num_sharing) - step_bytes
        num_blocks = choose_num_blocks(
            block_bytes([*layers, *draft_layers], self._block_size),
            has_bytes,
            block_size=self._block_size,
            max_model_len=self._max_model_len,
            max_num_seqs=self._max_num_seqs,
            wanted=self._num_gpu_blocks,
        )

        def with_cache(
            model: PreTrainedModel, layers: list[LayerShape], adapters: Adapters | None = None
        ) -> Model:
            cache = PagedKVCache(layers, num_blocks, self._block_size, model.device)
            return Model(model, cache, self._max_model_len, adapters)

        drafts = None if self._speculation is None else Drafts()
        block_size, ends = self._block_size, self._eos_token_ids
        requests = Requests(block_size, self._max_model_len, self._seed, ends, drafts, self._grammars, names)
        speculator = None
        if drafts is not None:
            speculator = self._speculator(drafts, None if draft is None else with_cache(draft, draft_layers))
        loaded = Loaded(requests, with_cache(model, layers, adapters), speculator)
        give_back_free()
        return loaded, num_blocks

    def _open_draft(self) -> tuple[PreTrainedModel | None, list[LayerShape], int]:
        """The draft model, if drafts come from one."""
        if self._speculation is None or self._speculation.model is None:
            return None, [], 0
        folder = Path(self._speculation.model)
        check_context(folder, self._max_model_len)
        return self._open(folder)

    def _speculator(self, drafts: Drafts, draft: Model | None) -> Speculator:
        asked = self._speculation
        assert asked is not None
        if draft is not None:
            return DraftModel(draft, drafts, asked.num_tokens, self._max_model_len)
        return PromptLookup(drafts, asked.num_tokens, self._max_model_len, asked.lookup_min, asked.lookup_max)

    def _open(
        self, folder: Path, adapters: Adapters | None = None
    ) -> tuple[PreTrainedModel, list[LayerShape], int]:
        """The model, packed where that gives the library's own answer, and what a probe says of it."""
        model = self._read(folder, adapters)
        with noted_inputs(model) as together:
            layers, step_bytes = self._probe(model)
        if together:
            expected = probe_logits(model)
            pack_linears(model, together)
            if not answers_as(model, expected):
                _LOG.warning("%s: linear layers are not merged, its answers would differ", folder)
                model = self._read(folder, adapters)
                pack_linears(model)
            let_go_of_files(model)
        if adapters is not None:
            adapters.check_called()
        return model, layers, step_bytes

    def _read(self, folder: Path, adapters: Adapters | None) -> PreTrainedModel:
        """The model's weights, with the layers that adapters change."""
        model = load_model(folder, device=self._device, dtype=self._dtype)
        if adapters is not None:
            adapters.attach(model)
        return model

    def _probe(self, model: PreTrainedModel) -> tuple[list[LayerShape], int]:
        """The layers, and on CUDA the bytes that the largest step takes while it runs."""
        if model.device.type != "cuda":
            return probe_layers(model), 0
        torch.cuda.reset_peak_memory_stats(model.device)
        before = torch.cuda.memory_allocated(model.device)
        layers = probe_layers(model, self._max_num_batched_tokens, self._max_num_seqs)
        step_bytes = torch.cuda.max_memory_allocated(model.device) - before
        torch.cuda.empty_cache()
        return layers, step_bytes


@torch.inference_mode()
def _compute(model: Model, step: Step) -> Computed:
    """The step from its tokens to the sampled ones, all of it in inference mode."""
    logits_RV, scored = model.scored_logits(step) if step.scored else (model.logits(step), ())
    return choose(logits_RV, step.choices) if step.request_ids else Sampled(), scored
