"""Conversion of models given as names on the Hugging Face hub, or as GGUF files, to folders."""

import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from sundog.actors.config import ConfigError
from sundog.builds.torch_limits import need_torch
from sundog.ends import writes_json
from sundog.options.engine import EngineOptions
from sundog.options.serving import RealServing, parse_lora_module


def on_disk(
    model: str | None, serving: RealServing, engine: EngineOptions, stack: ExitStack
) -> tuple[str | None, RealServing, EngineOptions]:
    """Return the folders of the models to serve, which exist until `stack` closes.

    Clients see the name on the hub, or that of the GGUF file. Raises ConfigError for models that cannot be
    downloaded or served.
    """
    is_named = False
    if model is not None:
        folder, name = _folder(model, serving, engine, stack, serving.revision, serving.runner)
        is_named = name is not None and not Path(model).exists()
        if name is not None:
            model = str(folder)
            serving = replace(serving, served_model_name=serving.served_model_name or (name,))
    if serving.revision is not None and not is_named:
        raise ConfigError(
            f"--revision is {serving.revision}, but the model is not from the hub: leave it out"
        )
    speculation = engine.speculation
    if speculation is not None and speculation.model is not None and engine.speculative_config is not None:
        draft, _name = _folder(speculation.model, serving, engine, stack, None, "generate")
        given = {**json.loads(engine.speculative_config), "model": str(draft)}
        engine = replace(engine, speculative_config=json.dumps(given))
    return model, replace(serving, lora_modules=tuple(map(_adapter, serving.lora_modules))), engine


def _adapter(given: str) -> str:
    """Return the value of `--lora-modules` with the folder of an adapter that is named on the hub."""
    from sundog.runtime.checkpoint.hub import fetch_adapter, hub_model

    module = parse_lora_module(given)
    if (asked := hub_model(module.adapter.path)) is None:
        return given
    need_torch()
    from sundog.runtime.lora.peft import check_adapter

    def check(folder: Path) -> None:
        check_adapter(folder)

    folder = fetch_adapter(asked, check, shows_bars=not writes_json())
    base = {} if module.base is None else {"base_model_name": module.base}
    return json.dumps({"name": module.adapter.name, "path": str(folder), **base})


def fetched(model: str) -> str:
    """Return the folder of a model of the hub that generates text; for other names, the name itself."""
    from sundog.runtime.checkpoint.hub import fetch_model, hub_model

    if (asked := hub_model(model)) is None:
        return model
    need_torch()
    return str(fetch_model(asked, partial(_check, "generate"), shows_bars=not writes_json()))


def _folder(
    model: str,
    serving: RealServing,
    engine: EngineOptions,
    stack: ExitStack,
    revision: str | None,
    runner: str,
) -> tuple[str, str | None]:
    """Return the folder of a model, and the model's name if the folder was created for it."""
    from sundog.runtime.checkpoint.hub import fetch_model, hub_model

    if model.endswith(".gguf"):
        need_torch()
        for flag, given in (
            ("--on", serving.on is not None),
            ("--tensor-parallel-size", engine.tensor_parallel_size > 1),
        ):
            if given:
                raise ConfigError(
                    f"{flag} is given, and {model} is read by one process of this machine: leave it out"
                )
        from sundog.runtime.checkpoint.gguf.folder import gguf_folder

        return str(stack.enter_context(gguf_folder(Path(model)))), Path(model).stem
    if (asked := hub_model(model, revision)) is None:
        return model, None
    need_torch()
    return str(fetch_model(asked, partial(_check, runner), shows_bars=not writes_json())), asked.id


def _check(runner: str, folder: Path) -> None:
    from sundog.runtime.checkpoint.facts import read_facts
    from sundog.runtime.embedding.settings import makes_vectors

    embeds = makes_vectors(folder) if runner == "auto" else runner == "pooling"
    read_facts(folder, embeds=embeds, has_weights=False)
