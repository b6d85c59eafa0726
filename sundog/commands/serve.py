"""`sundog serve`: the graph behind HTTP, with a model or at the pace of a GPU that is not there."""

import gc
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from actors.config import ConfigError, EngineConfig
from sundog.builds.emulated import emulated
from sundog.builds.kv_events import kv_event_listeners
from sundog.builds.placement import check_placement
from sundog.builds.ports import holder_of
from sundog.builds.rank_servers import serve_ranks
from sundog.builds.real import begun_model, real_model
from sundog.builds.served import Served
from sundog.builds.torch_limits import as_replicas
from sundog.ends import remark
from sundog.log_format import let_it_remark, log_to_stderr
from sundog.options.door import Door
from sundog.options.emulation import Emulation
from sundog.options.engine import Engine
from sundog.options.row import rows
from sundog.options.serving import Serving
from sundog.options.simulation import Costs, Logging
from sundog.options.takes import command, takes
from sundog.outputs import acceptance_log, needs_folder, server_record, step_logs

if TYPE_CHECKING:
    from actors.api.context import AnswerFormats, ServedModel
    from actors.api.server_options import ServerOptions


@command
@takes(Serving, Door, Costs, Emulation, Logging, Engine)
@click.argument("model_argument", metavar="[MODEL]", required=False)
def serve(
    serving: Serving,
    door: Door,
    costs: Costs,
    emulation: Emulation,
    logged: Logging,
    engine: Engine,
    model_argument: str | None,
) -> None:
    """Serve a model over HTTP, OpenAI-compatible.

    MODEL is a model's folder; without it, the small embedded model is served. With --simulate GPU it is
    the name of a known model, and the server answers at the pace that GPU would have; with the file of
    `sundog calibrate MODEL` there, at the pace of the engine that was measured.
    """
    log_to_stderr(serving.log_format)
    let_it_remark()
    needs_folder(serving.record, serving.messages, "--record")
    if serving.simulate is None and not serving.data_parallel_multi_port_external_lb:
        engine = as_replicas(engine)
    check_placement(serving, engine)
    model = _one_model(model_argument, serving.model)
    if serving.data_parallel_multi_port_external_lb:
        records = (serving, door, costs, emulation, logged, engine)
        return serve_ranks(serving, engine.data_parallel_size, model, records)
    with ExitStack() as stack:
        # What imports torch takes longest: it begins before HTTP is imported here, and ends with the stack.
        begun = None
        if serving.simulate is None:
            _refuse_what_is_emulated(costs, emulation)
            begun = begun_model(model, serving, engine, stack)
        options = door.of(_options(serving))
        _check_address(options)
        options.check_traces()
        if begun is not None:
            served = real_model(begun, stack)
        else:
            assert serving.simulate is not None
            served = emulated(model, serving.simulate, serving, engine, costs, emulation)
        _run(served, serving, logged, options)


OFTEN = (10_000, 5, 50)
"""When a server looks for reference cycles. Among 100,000 new objects, as commands do it, a look holds up all
streams for 45 ms, where many begin at once; among these, for 5. What was made by the start is left out."""


def _run(served: Served, serving: Serving, logged: Logging, options: "ServerOptions") -> None:
    """Serve until told to stop."""
    import trio

    from actors.api.serve_graph import serve_graph
    from actors.config.sampling_defaults import differing
    from sim.ahead import Ahead
    from sundog.builds.door_process import front_of
    from sundog.builds.start_report import StartReport

    options = replace(options, answers=replace(options.answers, thought=served.vocabulary.thought))

    def ready(url: str) -> None:
        for text in (*served.remarks, *differing(served.defaults), report.line(served.name, served.device)):
            remark(text)
        remark(f"Sundog serves {served.name} at {url}/v1 (live page: {url}/dashboard; stop with Ctrl-C)")
        gc.freeze()
        gc.set_threshold(*OFTEN)

    config = replace(served.config, max_logprobs=serving.max_logprobs)
    report = StartReport(config.scheduler, config.replicas, served.folder)
    ahead = Ahead(config, served.cost)
    listeners = [*acceptance_log(config), *step_logs(logged.step_log), ahead, report, *served.listeners]
    shown = _shown(served, config)
    with (
        server_record(serving.record, serving.messages, config) as kept,
        kv_event_listeners(serving, config) as publishers,
        front_of(serving, options, shown, served) as front,
    ):
        trio.run(
            partial(
                serve_graph,
                config,
                served.new_engine,
                shown,
                served.tokenizer,
                served.vocabulary,
                options,
                on_ready=ready,
                listeners=[*listeners, *publishers, *kept.listeners],
                tap=kept.tap,
                forecast=ahead,
                emulation=served.emulation,
                front=front,
            ),
            clock=served.clock,
        )


def _check_address(options: "ServerOptions") -> None:
    """Refuse a port in use before a model is loaded, and say who has it."""
    from actors.api import PortInUse

    try:
        options.check_address()
    except PortInUse as refusal:
        raise ConfigError(f"{refusal}{holder_of(options.port)}") from None


def _options(serving: Serving) -> "ServerOptions":
    """Where it listens, and whom it lets in."""
    from actors.api.server_options import ServerOptions

    return ServerOptions(
        serving.host,
        serving.port,
        num_processes=serving.api_processes,
        first_engine=serving.data_parallel_rank,
        api_key=serving.api_key,
        api_keys=serving.api_keys,
        admin_key=serving.admin_key,
        grace_s=serving.grace_s,
        max_body_bytes=serving.max_body_mib * 2**20,
        compat=serving.compat,
        log_requests=serving.log_requests,
        log_stats=not serving.disable_log_stats,
        answers=_answers(serving),
        otlp_traces_endpoint=serving.otlp_traces_endpoint,
    )


def _answers(serving: Serving) -> "AnswerFormats":
    """How the model's answers are read."""
    from actors.api.context import AnswerFormats

    if serving.enable_auto_tool_choice and serving.tool_call_parser is None:
        raise ConfigError("--enable-auto-tool-choice needs --tool-call-parser: how the model writes calls")
    return AnswerFormats(serving.tool_call_parser, serving.enable_auto_tool_choice, serving.reasoning_parser)


def _shown(served: Served, config: EngineConfig) -> "ServedModel":
    """What clients may know."""
    from actors.api.context import ServedModel

    limit, now_s = config.scheduler.max_model_len, int(time.time())
    return ServedModel(
        served.name,
        limit,
        now_s,
        defaults=served.defaults,
        adapters=served.adapters,
        vectors=served.vectors,
        max_loras=served.max_loras,
        loads_adapters=served.loads_adapters,
    )


def _one_model(argument: str | None, option: str | None) -> str | None:
    if argument is not None and option is not None:
        raise ConfigError(f"the model is given twice, {argument} and --model {option}: leave one out")
    return argument if argument is not None else option


def _refuse_what_is_emulated(costs: Costs, emulation: Emulation) -> None:
    """A real model takes its own time, and says what it says."""
    for asked, reason in ((costs, "takes the time that it takes"), (emulation, "has these of its own")):
        for row in rows(type(asked)):
            if getattr(asked, row.name) != row.default:
                raise ConfigError(f"{row.flag} is only for --simulate: a real model {reason}")
