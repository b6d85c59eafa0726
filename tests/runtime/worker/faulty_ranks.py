"""`python -m tests.runtime.worker.faulty_ranks serve …`: a server whose ranks raise on request.

A request with the seed `RAISES + N` makes rank N raise after some steps; else it is `sundog serve`.
The server starts this module, too, in the place of the one that engines are forked from.
"""

import sys

RAISES = 6_660_000
NUM_STEPS = 8


def main(arguments: list[str]) -> None:
    """Serve, or be what engines are forked from."""
    if arguments[:1] == ["serve"]:
        import sundog.runtime.host.python as pythons
        from sundog.cli import cli

        command = [sys.executable, "-m", "tests.runtime.worker.faulty_ranks"]
        pythons.module_command = lambda module, *arguments: [*command, *arguments]  # type: ignore[assignment]
        cli(arguments, prog_name="sundog")
        return
    from sundog.actors.core.batch import Batch
    from sundog.builds.engine_process import main as fork_server
    from sundog.runtime.engine.engine import Engine, Flight

    launch, left = Engine.launch, [-1]

    def raising(self: Engine, batch: Batch) -> Flight:
        assert self._group is not None
        for each in batch.admitted:
            if each.sampling.seed == RAISES + self._group.rank.number:
                left[0] = NUM_STEPS
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("injected")
        return launch(self, batch)

    Engine.launch = raising  # type: ignore[method-assign]
    fork_server(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
