"""`sundog demo`: the main features on one page."""

import sys
from dataclasses import dataclass

from sundog.options.row import Whole, option
from sundog.options.takes import command, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of a demonstration."""

    seed: int = option(0, Whole(0, 2**32 - 1), "Seed of the sampler.")


@command
@takes(DemoOptions)
def demo(asked: DemoOptions) -> None:
    """Serve a small model, and compare with its simulation.

    The embedded model answers six questions over HTTP. A simulation predicts the same requests, and both are
    compared batch by batch.
    """
    from sundog.commands.demo.page import run_demo

    sys.exit(run_demo(asked.seed))
