"""The backend of vectors: each prompt whole in one step, nothing kept of it afterwards.

Blocks are counted by the scheduler and hold nothing: they bound how much is computed at once.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import trio
from torch import Tensor

from actors.core.params.pooling import Pooling
from actors.kernel.clock import run_blocking
from actors.messages import Admission, Batch, Capacity, StepResult
from runtime.embedding.encoder import Encoder
from runtime.embedding.settings import EmbeddingSettings
from runtime.host.threads import set_threads

NOT_A_NUMBER = "its vector has something other than numbers"


class EmbeddingBackend:
    """An encoder or a decoder of transformers that answers with a prompt's vector.

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
        """Read the weights; raises ConfigError where that fails."""
        self._encoder = await run_blocking(self._load)
        return Capacity(self._num_blocks, self._block_size)

    def _load(self) -> Encoder:
        if self._num_threads is not None:
            set_threads(self._num_threads)
        return Encoder(self._folder, self._settings, device=self._device, dtype=self._dtype)

    async def execute(self, batch: Batch) -> StepResult:
        """Vectors of the prompts that the batch computes; a row that is not finite fails alone."""
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
        """Cut, scaled, as bytes; None if it has something other than numbers."""
        settings = self._settings
        dimensions = pooling.dimensions or settings.dimensions
        x_W = vector_W[:dimensions]
        if settings.normalises if pooling.normalise is None else pooling.normalise:
            x_W = torch.nn.functional.normalize(x_W, dim=0)
        return x_W.numpy().astype("<f4").tobytes() if bool(x_W.isfinite().all()) else None

    async def close(self) -> None:
        """Release the weights."""
        self._encoder = None
        self._admitted.clear()
