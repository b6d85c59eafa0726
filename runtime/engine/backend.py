"""Torch backend: launches an engine's steps and returns their results to the actors."""

import gc
import logging
from collections.abc import Coroutine, Sequence
from typing import NamedTuple

import trio

from sundog.actors.core.logged import logged
from sundog.actors.core.params.sampling import Constraint
from sundog.actors.kernel.actor import Reply
from sundog.actors.kernel.clock import run_blocking, uses_threads
from sundog.actors.messages import Batch, Capacity, ChangeAdapters, Done, Refused, StepResult
from sundog.runtime.model.loader import import_torch

# Before anything that imports torch, since it sets how torch's threads wait.
import_torch()

# ruff: noqa: E402
import torch

from sundog.runtime.attention.paged_cache import PagedKVCache
from sundog.runtime.checkpoint.facts import first_line
from sundog.runtime.engine.device_thread import DeviceThread
from sundog.runtime.engine.engine import Engine
from sundog.runtime.engine.model_loader import ModelLoader
from sundog.runtime.lora.adapters import Adapters
from sundog.runtime.model.model import Model

_LOG = logging.getLogger("sundog")


class Loaded(NamedTuple):
    """State of the backend from `load` to `close`."""

    engine: Engine
    model: Model
    adapters: Adapters | None
    device_thread: DeviceThread | None
    """Thread that launches steps ahead; None if steps are not launched ahead."""


class TorchBackend(ModelLoader):
    """Backend for a decoder-only Hugging Face model from a local folder, on a paged cache."""

    _loaded: Loaded | None = None

    async def load(self) -> Capacity:
        """Read the weights and allocate the cache.

        Raises:
            ConfigError: The model cannot be read, or its cache does not fit.
        """
        engine, model, num_blocks = await run_blocking(self.open)
        self._loaded = Loaded(
            engine,
            model,
            model.adapters,
            DeviceThread(engine) if engine.is_ahead and uses_threads() else None,
        )
        return Capacity(num_blocks, self._block_size, model.computation)

    def execute(self, batch: Batch) -> Coroutine[object, object, StepResult] | Reply[StepResult]:
        """Execute one step of the batch, whatever its `max_steps`.

        The result has a token for each sampling request, or the reason why it has none.
        """
        if self._loaded is None:
            raise RuntimeError("execute before load")
        engine, *_, device_thread = self._loaded
        return self._execute(engine, batch) if device_thread is None else device_thread.execute(batch)

    async def _execute(self, engine: Engine, batch: Batch) -> StepResult:
        flight = await run_blocking(engine.launch, batch) if batch.num_tokens else engine.launch(batch)
        if engine.speculates:
            return await run_blocking(engine.finish, flight, trio.current_time())
        return engine.finish(flight, trio.current_time())

    def hold_grammar(self, constraint: Constraint) -> int | None:
        """Keep a compiled grammar; return its bytes, or None if it has yet to be compiled."""
        return 0 if self._grammars is None else self._grammars.hold(constraint)

    def let_go_grammar(self, constraint: Constraint) -> None:
        """Release a grammar that one request held."""
        if self._grammars is not None:
            self._grammars.let_go(constraint)

    def compile_grammar(self, constraint: Constraint) -> None:
        """Compile and keep a grammar, or keep the reason why it cannot be compiled."""
        assert self._grammars is not None
        self._grammars.compile_ahead(constraint)

    async def change_adapters(self, change: ChangeAdapters) -> Done | Refused:
        """Load or unload adapters; they are read off the event loop, and used from the next step on."""
        if self._loaded is None or (adapters := self._loaded.adapters) is None:
            return Refused("this server was started without adapters that come and go")
        engine = self._loaded.engine
        adapters.drop_unloaded(engine.adapters_in_use())  # not those that go now: requests may wait for them
        for adapter in change.unloaded:
            adapters.unload(adapter)
        refused: Refused | None = None
        for adapter in change.loaded:
            try:
                await run_blocking(adapters.load, adapter)
            except Exception as error:  # noqa: BLE001  # whatever a folder makes a library raise
                refused = Refused(first_line(error))
                _LOG.warning("adapter %s is not loaded: %s", logged(adapter.name), logged(refused.reason))
        return refused or Done()

    def kv_block_bytes(self) -> int:
        """Return the bytes of a block, over all layers."""
        return self._cache.block_bytes

    def read_kv(self, block_ids: Sequence[int]) -> bytes:
        """Return the contents of blocks of the cache, layer by layer."""
        return self._cache.read(block_ids)

    def write_kv(self, block_ids: Sequence[int], data: bytes) -> None:
        """Write blocks of the cache, from what `read_kv` of an equal backend returned."""
        self._cache.fill(block_ids, data)

    @property
    def _cache(self) -> PagedKVCache:
        assert self._loaded is not None, "a model that is loaded has a cache"
        return self._loaded.model.cache

    async def close(self) -> None:
        """Release the weights and the cache, and return a GPU's memory to its driver."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        if loaded.device_thread is not None:
            await run_blocking(loaded.device_thread.close)
        is_cuda = loaded.model.device.type == "cuda"
        del loaded
        if is_cuda:
            await run_blocking(_return_memory)


def _return_memory() -> None:
    """Return torch's free GPU memory to the driver. Recordings of steps are reference cycles."""
    gc.collect()
    torch.cuda.empty_cache()
