"""Server of `sundog serve` and `sundog emulate`: its HTTP options, listeners and record."""

import gc
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.builds.served import Served, kv_event_listeners
from sundog.ends import let_it_remark, log_to_stderr, remark
from sundog.options.door import ConnectionOptions
from sundog.options.serving import Serving
from sundog.options.simulation import LoggingOptions
from sundog.outputs import acceptance_log, needs_folder, server_record, step_logs

if TYPE_CHECKING:
    from sundog.actors.api.context import AnswerFormats, ServedModel
    from sundog.actors.api.server_options import ServerOptions


OFTEN = (10_000, 5, 50)
"""Thresholds of the cyclic garbage collector. With those of other commands (100,000 new objects) a
collection stops all streams for 45 ms while many begin at once; with these it takes 5 ms.
"""


def serve_until_stopped(
    served: Served, serving: Serving, logged: LoggingOptions, options: "ServerOptions"
) -> None:
    """Serve until told to stop."""
    import trio

    from sundog.actors.api.serve_graph import serve_graph
    from sundog.actors.config.sampling_defaults import differing
    from sundog.builds.door_process import front_of
    from sundog.builds.start_report import StartReport
    from sundog.runtime.host.descriptors import raise_descriptor_limit
    from sundog.runtime.worker.watchdog import LoopWatchdog, end_process
    from sundog.sim.ahead import Ahead

    raise_descriptor_limit()
    options = replace(options, answers=_known_answers(options.answers, served, serving))

    def ready(url: str) -> None:
        if served.emulation is not None:  # its engines run in this process, and so does a policy of theirs
            LoopWatchdog(serving.stall_timeout_s, end_process).start()
        for text in (*served.remarks, *differing(served.defaults), report.line(served.name, served.device)):
            remark(text)
        remark(f"Sundog serves {served.name} at {url}/v1 (live page: {url}/dashboard; stop with Ctrl-C)")
        gc.freeze()
        gc.set_threshold(*OFTEN)

    config = replace(served.config, max_logprobs=serving.max_logprobs)
    report = StartReport(config.scheduler, config.replicas, served.folder)
    ahead = Ahead(config, served.cost)
    listeners = [*acceptance_log(config), *step_logs(logged.step_log), ahead, report, *served.listeners]
    shown = shown_model(served, config, aliases=serving.served_model_name[1:])
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
                links=served.links,
                driver=served.driver,
                transfers=None if served.links is None else served.links.totals,
            ),
            clock=served.clock,
        )


def _check_address(options: "ServerOptions") -> None:
    from sundog.actors.api import PortInUse

    try:
        options.check_address()
    except PortInUse as refusal:
        raise ConfigError(f"{refusal}{holder_of(options.port)}") from None


def server_options(serving: Serving, door: ConnectionOptions) -> "ServerOptions":
    """Return the server's options; raises ConfigError, such as for a port in use, before any model is
    loaded.
    """
    from sundog.actors.api.server_options import ServerOptions

    options = ServerOptions(
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
    options = door.of(options)
    _check_address(options)
    options.check_traces()
    return options


def _answers(serving: Serving) -> "AnswerFormats":
    from sundog.actors.api.context import AnswerFormats

    return AnswerFormats(
        serving.tool_call_parser,
        serving.enable_auto_tool_choice,
        serving.reasoning_parser,
        stream_interval=serving.stream_interval,
    )


def _known_answers(answers: "AnswerFormats", served: Served, serving: Serving) -> "AnswerFormats":
    """Return the parsers, completed from the model's own files; raises ConfigError.

    A canned answer calls no tool unless its file contains calls, so any parser is allowed.
    """
    parser = answers.tool_call_parser
    if parser is None:
        parser = served.tokenizer.tool_call_parser or (None if served.emulation is None else CANNED_CALLS)
    if parser is None and serving.enable_auto_tool_choice:
        raise ConfigError("--enable-auto-tool-choice needs --tool-call-parser: how the model writes calls")
    return replace(
        answers, tool_call_parser=parser, auto_tools=parser is not None, thought=served.vocabulary.thought
    )


CANNED_CALLS = "hermes"


def shown_model(served: Served, config: EngineConfig, aliases: tuple[str, ...] = ()) -> "ServedModel":
    """Return the model as clients see it, also under its `aliases`."""
    from sundog.actors.api.context import ServedModel

    limit, now_s = config.scheduler.max_model_len, int(time.time())
    return ServedModel(
        served.name,
        limit,
        now_s,
        defaults=served.defaults,
        aliases=aliases,
        adapters=served.adapters,
        vectors=served.vectors,
        max_loras=served.max_loras,
        loads_adapters=served.loads_adapters,
    )


def begin_log(serving: Serving) -> None:
    """Write the log to stderr as configured; raises ConfigError if a record could not be written."""
    log_to_stderr(serving.log_format)
    let_it_remark()
    needs_folder(serving.record, serving.messages, "--record")


def one_model(argument: str | None, option: str | None) -> str | None:
    """Return the model given as an argument or as `--model`; raises ConfigError if both are given."""
    if argument is not None and option is not None:
        raise ConfigError(f"the model is given twice, {argument} and --model {option}: leave one out")
    return argument if argument is not None else option


def holder_of(port: int) -> str:
    """Return the process that holds a port, with number, name and command; empty if it is not visible."""
    try:
        import psutil  # type: ignore[import-untyped]  # ships no types
    except ModuleNotFoundError:
        return ""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                process = psutil.Process(connection.pid)
                return f"; process {process.pid} has it: {_short(process.cmdline() or [process.name()])}"
    except (psutil.Error, OSError):
        pass
    return ""


def _short(command: list[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 80 else f"{text[:79]}…"
