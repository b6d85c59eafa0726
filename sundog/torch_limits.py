"""What the torch backend cannot do, and a simulated engine can."""

from actors.config import ConfigError
from sundog.options.engine import Engine


def refuse_what_torch_cannot(engine: Engine) -> None:
    """Refuse what only a simulated engine has."""
    for name in ("tensor", "pipeline", "data"):
        if (size := getattr(engine, f"{name}_parallel_size")) != 1:
            raise ConfigError(
                f"--{name}-parallel-size is {size}: the torch backend runs on one device; leave it at 1,"
                " or use --replicas"
            )
    if engine.quantization not in (None, "int8", "int4"):
        raise ConfigError(
            f"--quantization is {engine.quantization}: the torch backend makes int8 and int4 of a model's"
            " weights, and reads checkpoints that are quantised without being told; leave it out"
        )
    for option, given in (
        ("--kv-cache-dtype", engine.kv_cache_dtype != "auto"),
        ("--enable-expert-parallel", engine.enable_expert_parallel),
    ):
        if given:
            raise ConfigError(f"{option} is only for --simulate: the torch backend cannot; leave it out")
