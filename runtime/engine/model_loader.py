"""Loading of a model folder: its weights, a cache as large as memory allows, and the engine of both.

Nothing here waits, except for the device.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.config import ConfigError
from sundog.runtime.checkpoint.facts import check_context, first_line
from sundog.runtime.checkpoint.gguf.folder import LINK, is_gguf
from sundog.runtime.checkpoint.hub import name_of
from sundog.runtime.model.loader import chosen_device, import_torch, load_model

# Before anything that imports torch, since it sets how torch's threads wait.
import_torch()

# ruff: noqa: E402
import torch
from transformers import PreTrainedModel

from sundog.runtime.attention.paged_cache import (
    LayerShape,
    PagedKVCache,
    block_bytes,
    choose_num_blocks,
    free_bytes,
)
from sundog.runtime.device.download import make_current
from sundog.runtime.engine.blocks_ahead import BlocksAhead
from sundog.runtime.engine.engine import Engine
from sundog.runtime.engine.requests import Requests
from sundog.runtime.engine.speculator import DraftModel, PromptLookup, Speculator
from sundog.runtime.host.memory import give_back_free, ran_out_of_memory
from sundog.runtime.host.progress import LoadProgress
from sundog.runtime.host.threads import leave_a_core, set_threads
from sundog.runtime.lora.adapters import Adapters
from sundog.runtime.model.graphs import on_cuda
from sundog.runtime.model.model import Model, probe_layers
from sundog.runtime.model.norms import fuse_norms
from sundog.runtime.model.profile_run import measured
from sundog.runtime.native.experts import split_experts
from sundog.runtime.native.few_bits import quantise
from sundog.runtime.native.gguf_layers import pack_weights
from sundog.runtime.native.huge_pages import move_to_huge_pages, weight_ranges
from sundog.runtime.native.library import kernels
from sundog.runtime.native.linear import let_go_of_files, pack_linears
from sundog.runtime.ranks.group import RankGroup, device_of
from sundog.runtime.ranks.rank import RankPlace
from sundog.runtime.ranks.sharded import load_share
from sundog.runtime.step.drafts import Drafts
from sundog.runtime.structured.grammars import Grammars

_LOG = logging.getLogger(__name__)


class ModelLoader:
    """Decoder-only Hugging Face model from a local folder, on a paged cache.

    `gpu_memory_utilization` is the share of memory for weights and cache on CUDA (0.9 if None), of the
    available memory for the cache on the CPU (0.4 if None), which `num_sharing` engines divide. `num_threads`
    None chooses by the size of the model; `grammars` None refuses constraints; `adapters` are folders of LoRA
    adapters by name. `ahead` launches a step before the previous one has ended (None: on CUDA), if it is
    requested by then. `rank` is this process's rank if ranks share the model. With `remarks` slow
    configurations are logged; only one of equal engines does so. Every error in the settings or a folder is a
    ConfigError from `open`.
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
        loads_adapters: bool = False,
        max_lora_rank: int = 16,
        quantization: str | None = None,
        ahead: bool | None = None,
        rank: RankPlace | None = None,
        remarks: bool = True,
    ) -> None:
        self._ahead = ahead
        self._rank = rank
        self._remarks = remarks
        self._group: RankGroup | None = None
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
        self._loads_adapters = loads_adapters
        self._max_lora_rank = max_lora_rank
        self._quantization = quantization
        self._seed = seed
        self._grammars = grammars
        self._eos_token_ids = tuple(eos_token_ids)
        self._speculation = speculation
        self._progress = LoadProgress(name_of(self._model_dir))

    def open(self) -> tuple[Engine, Model, int]:
        """Return the engine, its model, and the number of blocks."""
        try:
            with self._progress.shown() if self._remarks else nullcontext():
                return self._opened()
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            raise ConfigError(
                f"not enough memory on the device for {self._model_dir}: {first_line(error)}; lower"
                " --gpu-memory-utilization, --num-gpu-blocks, --max-num-seqs or --max-num-batched-tokens, or"
                " free some"
            ) from error

    def _opened(self) -> tuple[Engine, Model, int]:
        if self._num_threads is not None:
            set_threads(self._num_threads)
        if self._rank is not None:
            self._meet(self._rank)
        check_context(self._model_dir, self._max_model_len)
        if self._grammars is not None:
            self._grammars.prepare()
        adapters = None
        if self._adapter_folders or self._loads_adapters:
            more = self._loads_adapters
            adapters = Adapters(self._adapter_folders, self._max_lora_rank, takes_more=more)
        model, layers, step_bytes = self._open(self._model_dir, adapters)
        num_threads = None
        if self._num_threads is None and model.device.type == "cpu" and self._group is None:
            num_threads = leave_a_core(self._model_dir)
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
        if self._group is not None:
            num_blocks = self._group.least(num_blocks)

        def with_cache(
            model: PreTrainedModel, layers: list[LayerShape], adapters: Adapters | None = None
        ) -> Model:
            cache = PagedKVCache(layers, num_blocks, self._block_size, model.device)
            return Model(model, cache, self._max_model_len, adapters, for_long_steps=num_threads)

        drafts = None if self._speculation is None else Drafts()
        block_size, ends = self._block_size, self._eos_token_ids
        numbers = None if adapters is None else adapters.numbers
        requests = Requests(
            block_size,
            self._max_model_len,
            seed=self._seed,
            eos_token_ids=ends,
            drafts=drafts,
            grammars=self._grammars,
            adapters=numbers,
        )
        speculator = None
        if drafts is not None:
            speculator = self._speculator(drafts, None if draft is None else with_cache(draft, draft_layers))
        self._progress.stage("comparing its layers with compiled ones")
        served = with_cache(model, layers, adapters)
        if self._remarks and served.why_by_layers is not None:
            self._say_by_layers(model.config.model_type, served.why_by_layers)
        is_cuda = model.device.type == "cuda"
        if is_cuda:
            self._progress.stage("recording decode steps")
            served.record(on_cuda(model.device), self._max_num_seqs)
        give_back_free()
        blocks_ahead = None
        if model.device.type == "cpu":
            blocks_ahead = BlocksAhead(served.cache.layers, 2 * self._max_num_batched_tokens // block_size)
            move_to_huge_pages(weight_ranges(model), after=blocks_ahead.begin())
        is_ahead = is_cuda if self._ahead is None else self._ahead
        engine = Engine(requests, served, speculator, blocks_ahead, ahead=is_ahead, group=self._group)
        return engine, served, num_blocks

    def _meet(self, rank: RankPlace) -> None:
        if self._num_threads is None:
            torch.set_num_threads(max(1, torch.get_num_threads() // rank.count))
        self._group = RankGroup(rank, device_of(rank, chosen_device(self._device)))

    def _say_by_layers(self, name: str, why: str) -> None:
        """Log why steps run layer by layer: the kernels for whole decoders do not apply."""
        if self._rank is not None:
            why = f"{self._rank.count} ranks share it, and kernels for whole decoders know no sums over ranks"
        _LOG.warning("%s is computed layer by layer: %s", name, why)

    def _open_draft(self) -> tuple[PreTrainedModel | None, list[LayerShape], int]:
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
        return PromptLookup(
            drafts,
            asked.num_tokens,
            max_model_len=self._max_model_len,
            least=asked.lookup_min,
            most=asked.lookup_max,
        )

    def _open(
        self, folder: Path, adapters: Adapters | None = None
    ) -> tuple[PreTrainedModel, list[LayerShape], int]:
        self._progress.stage("reading weights")
        model = self._read(folder, adapters)
        self._progress.stage("computing a first step")
        make_current(model.device)
        layers, step_bytes = self._probe(model)
        if self._quantization is not None:
            quantise(model, self._quantization, self._progress)
            let_go_of_files(model)
        elif pack_linears(model, self._progress) and not is_gguf(folder):
            let_go_of_files(model)
        if adapters is not None:
            adapters.check_called()
        return model, layers, step_bytes

    def _read(self, folder: Path, adapters: Adapters | None) -> PreTrainedModel:
        if self._group is not None:
            return load_share(folder, self._group, dtype=self._dtype, max_model_len=self._max_model_len)
        packs = is_gguf(folder) and self._quantization is None and chosen_device(self._device) == "cpu"
        library = kernels() if packs else None
        model = load_model(
            folder,
            device=self._device,
            dtype=self._dtype,
            max_model_len=self._max_model_len,
            leaves_out=library is not None,
        )
        if adapters is not None:
            adapters.attach(model)
        if library is not None:
            pack_weights(model, (folder / LINK).resolve(), library, self._progress)
        if model.device.type == "cpu":
            split_experts(model)
        return model

    def _probe(self, model: PreTrainedModel) -> tuple[list[LayerShape], int]:
        if model.device.type != "cuda":
            return probe_layers(model), 0
        fuse_norms(model)
        return measured(model, self._max_num_batched_tokens, self._max_num_seqs, self._max_model_len)
