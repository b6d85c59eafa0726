"""`sundog emulate`: the server of `sundog serve` at the pace of an absent GPU."""

import click

from sundog.builds.emulated import emulated
from sundog.builds.server import begin_log, one_model, serve_until_stopped, server_options
from sundog.options.door import ConnectionOptions
from sundog.options.engine import EngineOptions
from sundog.options.launch import LaunchOptions, launched
from sundog.options.names import complete_model
from sundog.options.server_config import server_command
from sundog.options.serving import EmulatedServing
from sundog.options.simulation import CostOptions, LoggingOptions, ScalingOptions
from sundog.options.takes import takes


@server_command
@takes(
    EmulatedServing,
    ConnectionOptions,
    CostOptions,
    ScalingOptions,
    LoggingOptions,
    EngineOptions,
    LaunchOptions,
)
@click.argument("model_argument", metavar="[MODEL]", required=False, shell_complete=complete_model)
def emulate(
    serving: EmulatedServing,
    door: ConnectionOptions,
    costs: CostOptions,
    scaling: ScalingOptions,
    logged: LoggingOptions,
    engine: EngineOptions,
    launch: LaunchOptions,
    model_argument: str | None,
) -> None:
    """Serve canned answers over HTTP, at the pace of a GPU.

    MODEL is a known model, a folder, or OWNER/NAME on the Hugging Face hub; the duration of steps follows
    from its shape and --gpu. If --gpu is a file of `sundog calibrate`, it follows from the measurement.
    """
    begin_log(serving)
    serving = launched(serving, launch)
    model = one_model(model_argument, serving.model)
    options = server_options(serving, door)
    serve_until_stopped(emulated(model, serving, engine, costs, scaling), serving, logged, options)
