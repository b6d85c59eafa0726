"""Limits and defaults of the torch backend that differ from those of simulated engines."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.config.pools import EnginePool
from sundog.options.engine import EngineOptions
from sundog.options.row import refuse, rows
from sundog.options.serving import RAY, RealServing
from sundog.options.simulation import parse_pool

DRIVER = Path("/dev/nvidiactl")


def need_torch() -> None:
    """Raise ModuleNotFoundError if torch is missing, before a child process fails less visibly."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


def as_replicas(engine: EngineOptions) -> EngineOptions:
    """Return the options with data-parallel ranks as replicas: each is independent and has all experts."""
    replicas = engine.replicas * engine.data_parallel_size
    return replace(engine, replicas=replicas, data_parallel_size=1, router=engine.chosen_router)


def in_pools(serving: RealServing, engine: EngineOptions) -> tuple[RealServing, EngineOptions]:
    """Return the server with as many replicas as its pools have; raises ConfigError for unsupported pools."""
    if not serving.pool:
        return serving, engine
    for flag, given in (
        ("--replicas", engine.replicas > 1),
        ("--tensor-parallel-size", engine.tensor_parallel_size > 1),
        ("--in-process", serving.in_process),
        ("--device cuda", serving.device == "cuda"),
        ("a draft model", engine.speculation is not None and engine.speculation.model is not None),
    ):
        if given:
            raise ConfigError(f"{flag} cannot be combined with --pool: leave one out")
    for spec in map(parse_pool, serving.pool):
        if spec.gpu != "cpu" or spec.tensor_parallel_size * spec.data_parallel_size > 1:
            raise ConfigError(f"--pool {spec.name}: real pools run on the CPU: give ROLE=cpu:xM")
        if spec.own:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in spec.own)
            raise ConfigError(f"--pool {spec.name}: engines of real pools share their options: give {flags}")
    num_engines = sum(parse_pool(each).replicas for each in serving.pool)
    return replace(serving, device="cpu"), replace(engine, replicas=num_engines)


def pools_of(serving: RealServing, config: EngineConfig) -> EngineConfig:
    """Return the deployment with its pools, whose engines are equal except for their roles."""
    specs = map(parse_pool, serving.pool)
    pools = tuple(EnginePool(spec.role, spec.replicas, config.scheduler) for spec in specs)
    return replace(config, pools=pools)


def check_quantization(engine: EngineOptions) -> None:
    """Raise ConfigError for a format that only simulated engines support."""
    if engine.quantization not in (None, "int8", "int4"):
        raise ConfigError(
            f"--quantization is {engine.quantization}: the torch backend makes int8 and int4 of a model's"
            " weights, and reads checkpoints that are quantised without being told; leave it out"
        )


def planned_ahead(engine: EngineOptions, device: str) -> EngineOptions:
    """Return the engine with asynchronous scheduling on a GPU, unless an option or drafts decide it.

    A GPU is detected by its driver's files, since torch must not be used before a fork. If torch then uses
    the CPU, planning ahead brings nothing, and answers are the same.
    """
    is_gpu = device == "cuda" or (device == "auto" and DRIVER.exists())
    if not is_gpu or engine.async_scheduling is not None or engine.speculative_config is not None:
        return engine
    return replace(engine, async_scheduling=True)


def check_threads(serving: RealServing, engine: EngineOptions) -> None:
    """Raise ConfigError for more threads than cores, and for threads of engines on a cluster."""
    if serving.num_threads is None:
        return
    asked = f"--num-threads is {serving.num_threads}"
    if serving.on is not None:
        raise ConfigError(f"{asked}: on a cluster use --ray-cpus instead")
    from sundog.runtime.host.own_cores import own_cores

    num_processes = engine.replicas * engine.tensor_parallel_size
    num_cores = len(own_cores())
    if serving.num_threads * num_processes > num_cores:
        each = "" if num_processes == 1 else f" for each of {num_processes} engine processes"
        raise ConfigError(
            f"{asked}{each}, and there are {num_cores} cores: give at most {num_cores // num_processes or 1}"
        )


def check_placement(serving: RealServing, engine: EngineOptions) -> None:
    """Raise ConfigError for options that contradict the place of engines."""
    check_threads(serving, engine)
    if serving.on is None:
        of_ray = [row.name for row in rows(type(serving)) if row.section == RAY]
        refuse((serving,), "applies only to engines on a cluster: add --on ray, or leave it out", only=of_ray)
    elif serving.in_process:
        raise ConfigError("--on ray cannot be combined with --in-process: leave one out")
