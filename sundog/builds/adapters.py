"""The adapters that `sundog serve` is given."""

from actors.config import ConfigError
from actors.core.params.adapter import Adapter
from sundog.options.lora import parse_lora_module
from sundog.options.serving import Serving


def adapters(serving: Serving, model: str, names: tuple[str, ...] = ()) -> tuple[Adapter, ...]:
    """The adapters of `--lora-modules`; ConfigError for two of a name, or one of another base model.

    The model is called `model` by clients; `names` are what else it is known by.
    """
    if serving.lora_modules and not serving.enable_lora:
        raise ConfigError("--lora-modules is given without --enable-lora: add it")
    found: list[Adapter] = []
    for given in serving.lora_modules:
        module = parse_lora_module(given)
        adapter = module.adapter
        if adapter.name in [model, *(each.name for each in found)]:
            raise ConfigError(f"--lora-modules is {given}: another model is called {adapter.name}")
        if module.base not in (None, model, *names):
            raise ConfigError(
                f"--lora-modules is {given}: its base model is {module.base}, and {model} is served"
            )
        found.append(adapter)
    return tuple(found)


def max_loras(serving: Serving) -> int | None:
    """How many adapters gateways are told that a server takes at once; None where it takes none."""
    if not serving.enable_lora:
        return None
    return serving.max_loras or max(len(serving.lora_modules), 1)
