"""`sundog emulate`: a model by its shape, at the pace of an absent GPU."""

import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError
from sundog.builds.served import Served, adapters, as_served, max_loras, template_of
from sundog.fetched import tokenizer_folder
from sundog.options.engine import EngineOptions
from sundog.options.measured import NOT_SCALED
from sundog.options.serving import EmulatedServing
from sundog.options.simulation import LINK_GB_PER_S, CostOptions, ScalingOptions

if TYPE_CHECKING:
    from sundog.runtime.text.tokenizer import Tokenizer
    from sundog.sim.deployment.record import Simulated
    from sundog.sim.emulation.answers import Answers
    from sundog.sim.fleet.scaling import Autoscaler


log = logging.getLogger("sundog")

SIDE_CHANNEL_PORT = 5600
"""vLLM's default for the side-channel port of NIXL; nothing listens here."""


def emulated(
    model: str | None,
    serving: EmulatedServing,
    engine: EngineOptions,
    costs: CostOptions,
    scaling: ScalingOptions = NOT_SCALED,
) -> Served:
    """Return the model shape on the requested GPU; raises ConfigError if it cannot be emulated."""
    _check_processes(serving)
    from sundog.actors.api.emulation import Emulation as Emulated
    from sundog.actors.api.emulation import Transfers
    from sundog.actors.config.injected import parse_injection
    from sundog.actors.config.sampling_defaults import NEUTRAL
    from sundog.actors.front.codec import Vocabulary
    from sundog.actors.front.front_end import FrontEnd
    from sundog.actors.metrics.totals import Lag
    from sundog.builds.simulated import deploy
    from sundog.options.measured import simulated_target
    from sundog.sim.emulation.backends import EmulatedBlockTables, Injections, emulated_backends
    from sundog.sim.emulation.clock import ScaledClock

    target = simulated_target(_revised(model, serving), serving.gpu, costs, scaling)
    simulated = deploy(engine, target, serving.api_processes)
    eos = _end_token(tokenizer := _tokenizer(serving.tokenizer, template_of(serving)), serving.tokenizer)
    faults = Injections(list(map(parse_injection, serving.inject)), engine.seed)
    lag = Lag(simulated.config.replicas, serving.time_scale)
    new_backend = emulated_backends(
        simulated.cost,
        simulated.capacity,
        _answers(serving.answers, tokenizer, engine.seed),
        eos,
        tokenizer.vocab_size,
        lag,
        engine.seed,
        simulated.config.speculation,
        faults.check,
    )
    front_end = FrontEnd(simulated.front_end_s, simulated.config.front.request)
    name = (serving.served_model_name or (simulated.model.partition("@")[0],))[0]
    tables, transfers, scaler = EmulatedBlockTables(), None, _scaler(simulated)
    if simulated.kv_token_bytes:  # else nobody knows what a transfer takes
        token_s = simulated.kv_token_bytes / ((costs.kv_transfer_gb_per_s or LINK_GB_PER_S) * 1e9)
        place = (uuid.uuid4().hex, serving.host, SIDE_CHANNEL_PORT, engine.tensor_parallel_size)
        transfers = Transfers(tables, *place, token_s, simulated.capacity.block_size)
    return Served(
        name,
        as_served(simulated.config, serving),
        new_engine=new_backend,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(eos_token_id=eos, size=tokenizer.vocab_size),
        defaults=NEUTRAL,
        device=f"{serving.gpu}, simulated",
        adapters=adapters(serving, name, (str(model),)),
        max_loras=max_loras(serving),
        loads_adapters=serving.loads_adapters,
        cost=simulated.cost,
        remarks=simulated.remarks,
        emulation=Emulated(lag, front_end, faults, transfers),
        listeners=(tables,) if scaler is None else (tables, scaler.watch),
        clock=None if serving.time_scale == 1 else ScaledClock(serving.time_scale),
        driver=None if scaler is None else scaler.drive,
    )


def _revised(model: str | None, serving: EmulatedServing) -> str | None:
    """Return the model with the requested revision; raises ConfigError if it is not on the hub."""
    from sundog.runtime.checkpoint.hub import hub_model
    from sundog.sim.hardware.model import is_known

    if serving.revision is None:
        return model
    if model is None or is_known(model) or hub_model(model, serving.revision) is None:
        raise ConfigError(
            f"--revision is {serving.revision}, but the model is not from the hub: leave it out"
        )
    return f"{model}@{serving.revision}"


def _scaler(simulated: "Simulated") -> "Autoscaler | None":
    plan = simulated.plan
    return None if plan is None or not plan.scaling else plan.autoscaler(_say_replicas)


def _say_replicas(time_s: float, wanted: int, paid_s: float) -> None:
    what = "1 replica is" if wanted == 1 else f"{wanted} replicas are"
    log.info("%s wanted at %.1f s; replicas were paid for %.1f s so far", what, time_s, paid_s)


def _check_processes(serving: EmulatedServing) -> None:
    for flag, given in (
        ("--inject", bool(serving.inject)),
        ("--allow-runtime-lora-updating", serving.allow_runtime_lora_updating),
    ):
        if given and serving.api_processes > 1:
            raise ConfigError(f"{flag} is for one process that serves HTTP: leave --api-processes at 1")


def _tokenizer(path: str | None, chat_template: Path | None) -> "Tokenizer":
    from sundog.runtime.serve import EMBEDDED_MODEL
    from sundog.runtime.text.tokenizer import Tokenizer

    if path is None:
        return Tokenizer(EMBEDDED_MODEL, chat_template=chat_template)
    folder = Path(tokenizer_folder(path))
    if not folder.exists():
        raise ConfigError(f"--tokenizer is {path}: there is no such folder; give one with a tokenizer.json")
    return Tokenizer(folder.parent if folder.is_file() else folder, chat_template=chat_template)


def _end_token(tokenizer: "Tokenizer", path: str | None) -> int:
    if not tokenizer.eos_token_ids:
        raise ConfigError(
            f"--tokenizer is {path}: no file there names the eos_token; add it to tokenizer_config.json"
        )
    return tokenizer.eos_token_ids[0]


def _answers(asked: str, tokenizer: "Tokenizer", seed: int) -> "Answers":
    from sundog.sim.emulation.answers import canned, echoed, from_file

    if asked == "texts":
        return canned(tokenizer, seed)
    if asked == "echo":
        return echoed(tokenizer)
    if not asked.endswith(".jsonl"):
        raise ConfigError(f"--answers is {asked}: give texts, echo, or a file that ends in .jsonl")
    return from_file(asked, tokenizer, seed)
