"""`python -m tests.runtime.worker.slow_steps serve --in-process …`: a server with a slow step.

A step takes SLOW_S longer if it admits a request with the seed SLOW.
"""

import sys
import time

SLOW, SLOW_S = 6_660_001, 5.0


def main(arguments: list[str]) -> None:
    """Serve."""
    from sundog.actors.core.batch import Batch
    from sundog.runtime.engine.backend import import_torch

    import_torch()
    from sundog.cli import cli
    from sundog.runtime.engine.engine import Engine, Flight

    launch = Engine.launch

    def slow_launch(self: Engine, batch: Batch) -> Flight:
        if any(each.sampling.seed == SLOW for each in batch.admitted):
            time.sleep(SLOW_S)
        return launch(self, batch)

    Engine.launch = slow_launch  # type: ignore[method-assign]
    cli(arguments, prog_name="sundog")


if __name__ == "__main__":
    main(sys.argv[1:])
