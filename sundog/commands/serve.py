"""`sundog serve`: a real model behind HTTP, computed by torch."""

from contextlib import ExitStack

import click

from sundog.builds.model_files import on_disk
from sundog.builds.real import begun_model, real_model
from sundog.builds.server import begin_log, one_model, serve_until_stopped, server_options
from sundog.builds.torch_limits import as_replicas, check_placement, in_pools
from sundog.options.door import ConnectionOptions
from sundog.options.engine import SIMULATED_ONLY, EngineOptions
from sundog.options.launch import LaunchOptions, launched
from sundog.options.names import complete_model
from sundog.options.server_config import server_command
from sundog.options.serving import RealServing
from sundog.options.simulation import LoggingOptions
from sundog.options.takes import takes


@server_command
@takes(RealServing, ConnectionOptions, LoggingOptions, EngineOptions, LaunchOptions, without=SIMULATED_ONLY)
@click.argument("model_argument", metavar="[MODEL]", required=False, shell_complete=complete_model)
def serve(
    serving: RealServing,
    door: ConnectionOptions,
    logged: LoggingOptions,
    engine: EngineOptions,
    launch: LaunchOptions,
    model_argument: str | None,
) -> None:
    """Serve a model over HTTP, OpenAI-compatible.

    MODEL is a folder, a GGUF file, or OWNER/NAME on the Hugging Face hub; by default the embedded model.
    `sundog emulate` serves the same API without a GPU, at its pace.
    """
    begin_log(serving)
    serving = launched(serving, launch, *(["--enforce-eager"] if engine.enforce_eager else []))
    serving, engine = in_pools(serving, as_replicas(engine))
    check_placement(serving, engine)
    with ExitStack() as stack:
        model, serving, engine = on_disk(one_model(model_argument, serving.model), serving, engine, stack)
        # What imports torch takes longest: it begins before HTTP is imported here, and ends with the stack.
        begun = begun_model(model, serving, engine, stack)
        options = server_options(serving, door)
        serve_until_stopped(real_model(begun, stack), serving, logged, options)
