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
    for option, given in (
        ("--quantization", engine.quantization is not None),
        ("--kv-cache-dtype", engine.kv_cache_dtype != "auto"),
        ("--enable-expert-parallel", engine.enable_expert_parallel),
    ):
        if given:
            raise ConfigError(f"{option} is only for --simulate: the torch backend cannot; leave it out")
