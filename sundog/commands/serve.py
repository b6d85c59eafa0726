"""`sundog serve`: a real model behind HTTP, computed by torch."""

from contextlib import ExitStack

import click

from sundog.builds.real import begun_model, real_model
from sundog.builds.server import begin_log, one_model, serve_until_stopped, server_options
from sundog.builds.torch_limits import as_replicas, check_placement, in_pools
from sundog.options.door import ConnectionOptions
from sundog.options.engine import SIMULATED_ONLY, EngineOptions
from sundog.options.launch import LaunchOptions, launched
from sundog.options.serving import RealServing
from sundog.options.simulation import LoggingOptions
from sundog.options.takes import command, takes


@command
@takes(RealServing, ConnectionOptions, LoggingOptions, EngineOptions, LaunchOptions, without=SIMULATED_ONLY)
@click.argument("model_argument", metavar="[MODEL]", required=False)
def serve(
    serving: RealServing,
    door: ConnectionOptions,
    logged: LoggingOptions,
    engine: EngineOptions,
    launch: LaunchOptions,
    model_argument: str | None,
) -> None:
    """Serve a model over HTTP, OpenAI-compatible.

    MODEL is a model's folder; without it, the small embedded model is served. `sundog emulate` serves the
    same API at the pace of a GPU that is not there.
    """
    begin_log(serving)
    serving = launched(serving, launch)
    serving, engine = in_pools(serving, as_replicas(engine))
    check_placement(serving, engine)
    model = one_model(model_argument, serving.model)
    with ExitStack() as stack:
        # What imports torch takes longest: it begins before HTTP is imported here, and ends with the stack.
        begun = begun_model(model, serving, engine, stack)
        options = server_options(serving, door)
        serve_until_stopped(real_model(begun, stack), serving, logged, options)
