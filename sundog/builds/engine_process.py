"""`python -m sundog.builds.engine_process`: fork server of the engines of `sundog serve`.

It reads the same options as the server, from its stdin, and makes the same deployment of them.
"""

import gc
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.core.params.sampling import Adapter
from sundog.builds.served import adapters, as_served, template_of
from sundog.builds.torch_limits import check_quantization, planned_ahead, pools_of
from sundog.ends import log_to_stderr
from sundog.options.engine import DEFAULT_LIMITS, UNKNOWN_CONTEXT, EngineOptions
from sundog.options.serving import RealServing, parse_on

if TYPE_CHECKING:
    from sundog.actors.engine.backend import Backend
    from sundog.runtime.kv_transfer.mover import KvMover
    from sundog.runtime.ranks.rank import RankPlace
    from sundog.runtime.ray.place import RayPlace
    from sundog.runtime.serve import RealModel
    from sundog.runtime.worker.engine_process import EngineProcess
    from sundog.runtime.worker.fork_server import Run
    from sundog.runtime.worker.forks import Forks
    from sundog.runtime.worker.supervision import Launcher


def embedding_config(real: "RealModel", serving: RealServing, engine: EngineOptions) -> EngineConfig:
    """Return the deployment of an embedding model: each prompt is computed in one step, without a prefix
    cache.
    """
    for option, given in (
        ("--enable-lora", serving.enable_lora),
        ("--speculative-config", engine.speculative_config is not None),
        ("--quantization", engine.quantization is not None),
        ("--pool", bool(serving.pool)),
    ):
        if given:
            raise ConfigError(f"{option} applies only to models that generate text: leave it out")
    context = real.max_position_embeddings
    longest = engine.max_model_len or context or UNKNOWN_CONTEXT
    num_tokens, num_seqs = DEFAULT_LIMITS
    config = engine.config(context, (max(num_tokens, longest), num_seqs))
    whole = replace(
        config.scheduler,
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
        async_scheduling=False,
        num_gpu_blocks=None,
    )
    return replace(config, scheduler=whole)


def refuse_what_ranks_cannot(engine: EngineOptions, serving: RealServing, *, embeds: bool) -> None:
    """Raise ConfigError for options that ranks of a shared model do not support."""
    if engine.tensor_parallel_size == 1:
        return
    asked = f"--tensor-parallel-size is {engine.tensor_parallel_size}"
    if embeds:
        raise ConfigError(f"{asked}: embedding models run on one device; leave it at 1")
    for option, given in (
        ("--in-process", serving.in_process),
        ("--enable-lora", serving.enable_lora or bool(serving.lora_modules)),
        ("--speculative-config", engine.speculative_config is not None),
        ("--quantization", engine.quantization is not None),
    ):
        if given:
            raise ConfigError(f"{asked}, and ranks that share a model cannot do {option}: leave one out")


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Model folder with its serving configuration."""

    orders: "ServeOrders"
    real: "RealModel"
    config: EngineConfig
    adapters: tuple[Adapter, ...]

    def backends(self, rank: "RankPlace | None" = None) -> "Callable[[int], Backend]":
        """Return the function that makes a replica's backend, or that of one `rank` of it; imports torch."""
        from sundog.runtime.ranks.fit import check_ranks
        from sundog.runtime.serve import embedding_backends, torch_backends

        engine, serving = self.orders.engine, self.orders.serving
        if self.real.embedding is not None:
            own = {"device": serving.device, "dtype": engine.dtype}
            return embedding_backends(self.real, self.config, **own, num_threads=serving.num_threads)
        if rank is None or rank.leads:
            check_ranks(self.real.folder, engine.tensor_parallel_size)
        return torch_backends(
            self.real,
            self.config,
            device=serving.device,
            dtype=engine.dtype,
            seed=engine.seed,
            num_threads=serving.num_threads,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            adapters=self.adapters,
            loads_adapters=serving.loads_adapters,
            max_lora_rank=serving.max_lora_rank,
            quantization=engine.quantization,
            rank=rank,
        )

    def watched(self) -> "Callable[[int], Backend]":
        """Return the function that makes backends in the server's own process, each watched by a thread;
        imports torch.
        """
        from sundog.runtime.worker.watchdog import WatchedBackend

        serving, new_backend = self.orders.serving, self.backends()
        return lambda replica: WatchedBackend(
            new_backend(replica), serving.stall_timeout_s, serving.load_timeout_s
        )

    def new_backend(self, replica: int, rank: "RankPlace | None" = None) -> "Backend":
        """Return the backend of a replica; torch is imported only now, since CUDA must not be used before
        a fork.
        """
        return self.backends(rank)(replica)

    def life(self) -> "Run":
        """Return the main function of an engine process, and of the ranks that it forks if there are
        several.
        """
        from sundog.runtime.worker.host import run_fork, run_host
        from sundog.runtime.worker.rank_process import run_shared

        num_ranks, serving = self.orders.engine.tensor_parallel_size, self.orders.serving
        is_late, is_here = _may_be_on_a_gpu(serving.device), serving.on is None
        new_backend = self.new_backend if is_late else self.backends()
        live = run_fork if is_here else partial(run_host, tells_logs=True)
        if num_ranks == 1:
            run: Run = partial(live, self.config, new_backend)
        else:
            stall_s = serving.stall_timeout_s
            run = partial(run_shared, live, self.config, self._rank_backends, num_ranks, stall_s)
        is_alone = self.config.replicas == 1 or not is_here  # Ray says which cores and GPUs there are
        return run if is_alone else self._apart(run, num_ranks, is_late)

    def _apart(self, run: "Run", num_ranks: int, is_late: bool) -> "Run":
        from sundog.runtime.host.devices import VISIBLE, gpus_of, num_gpus, on_own_gpus

        if not is_late:
            return partial(self._on_own_cores, run)
        gpus = gpus_of(self.config.replicas, num_ranks, os.environ.get(VISIBLE), num_gpus())
        return partial(on_own_gpus, run, gpus)

    def _on_own_cores(self, run: "Run", replica: int, connected: socket.socket) -> None:
        from sundog.runtime.host.threads import share_cores

        share_cores(replica, self.config.replicas)
        run(replica, connected)

    def _rank_backends(self, rank: "RankPlace") -> "Callable[[int], Backend]":
        return partial(self.new_backend, rank=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOrders:
    """Orders from the command line to each process of a server."""

    model: str | None
    serving: RealServing
    engine: EngineOptions

    def packed(self) -> bytes:
        """Return the orders as bytes of MessagePack."""
        import msgspec

        return msgspec.msgpack.encode(self)

    @staticmethod
    def unpacked(packed: bytes) -> "ServeOrders":
        """Read the orders from bytes of MessagePack."""
        import msgspec

        return msgspec.msgpack.decode(packed, type=ServeOrders)

    def open(self) -> OpenedModel:
        """Read the model's folder; raises an error that names what is unsupported."""
        from sundog.actors.config.pooler import parse_pooler_config
        from sundog.runtime.checks import check_settings
        from sundog.runtime.serve import RealModel

        serving = self.serving
        pooler = None if serving.pooler_config is None else parse_pooler_config(serving.pooler_config)
        real = RealModel.open(
            self.model,
            next(iter(serving.served_model_name), None),
            serving.runner,
            pooler,
            template_of(serving),
        )
        check_quantization(self.engine)
        refuse_what_ranks_cannot(self.engine, serving, embeds=real.embedding is not None)
        if real.embedding is not None:
            return OpenedModel(self, real, embedding_config(real, serving, self.engine), ())
        config = planned_ahead(self.engine, serving.device).config(real.max_position_embeddings)
        config = pools_of(serving, config)
        found = adapters(serving, real.name, (str(self.model), real.folder.name))
        check_settings(
            real.folder,
            config.scheduler,
            dtype=self.engine.dtype,
            quantization=self.engine.quantization,
            adapters=found,
            max_lora_rank=serving.max_lora_rank,
        )
        return OpenedModel(self, real, as_served(config, serving), found)


def engine_processes(
    orders: ServeOrders, place: "Launcher", mover: "KvMover | None"
) -> "Callable[[int], EngineProcess]":
    """Return the function that starts a replica's process at a place; a `mover` transfers KV between
    pools.
    """
    from sundog.runtime.worker.engine_process import EngineProcess

    stall_s, load_s = orders.serving.stall_timeout_s, orders.serving.load_timeout_s
    return lambda replica: EngineProcess(replica, place, stall_s, load_s, mover=mover)


def forks_here(orders: ServeOrders, stack: ExitStack) -> "Forks":
    """Return this machine as a place, with a fork server that starts now and imports everything."""
    from sundog.runtime.host.python import module_command
    from sundog.runtime.worker.forks import Forks

    forks = Forks(module_command("sundog.builds.engine_process"), orders.packed())
    stack.callback(forks.close)
    forks.start()
    return forks


def ray_place(orders: ServeOrders, stack: ExitStack) -> "RayPlace":
    """Return a Ray cluster as a place, on whose nodes a replica's fork server reads the same folder and
    imports.
    """
    from sundog.runtime.ray.cluster import joined
    from sundog.runtime.serve import is_embedded

    serving, model = orders.serving, orders.model
    assert serving.on is not None
    num_cores = os.cpu_count() or 1
    num_each = serving.ray_cpus or max(num_cores // orders.engine.replicas, 1)
    num_cpus = max(num_cores, num_each * orders.engine.replicas)
    cluster = stack.enter_context(joined(parse_on(serving.on), num_cpus))
    from sundog.runtime.ray.place import Orders, RayPlace

    demand = {"CPU": float(num_each if cluster.is_ours else serving.ray_cpus or 1)}
    if serving.device == "cuda" or (serving.device == "auto" and cluster.num("GPU")):
        demand["GPU"] = float(orders.engine.tensor_parallel_size)
    if model is not None and not is_embedded(model):
        orders = replace(orders, model=str(Path(model).absolute()))
    order = Orders("sundog.builds.engine_process", orders.packed())
    place = RayPlace(cluster, order, demand=demand, wait_s=serving.ray_wait_s, host=serving.ray_host)
    stack.callback(place.close)
    return place


GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device files of GPU drivers: NVIDIA's, Windows' from Linux, AMD's."""


def _may_be_on_a_gpu(device: str) -> bool:
    """Return whether engines may use a GPU, without calling its driver."""
    return device == "cuda" or (device == "auto" and any(Path(each).exists() for each in GPU_FILES))


def main(descriptor: int, parent: int) -> None:
    """Become the fork server of the process `parent`, which is at the other end of a socket."""
    from sundog.runtime.host.progress import LoadProgress, show_progress
    from sundog.runtime.worker.fork_server import refuse, serve_forks
    from sundog.runtime.worker.life import begin_life

    begin_life("sundog engines", parent)
    with socket.socket(fileno=descriptor) as control:
        try:
            orders = ServeOrders.unpacked(sys.stdin.buffer.read())
            log_to_stderr(orders.serving.log_format)
            show_progress()
            gc.disable()  # until it forks
            with LoadProgress("engines", "importing torch and transformers").shown():
                life = orders.open().life()
        except (ConfigError, ModuleNotFoundError) as error:
            return refuse(control, str(error))
        serve_forks(control, life)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
