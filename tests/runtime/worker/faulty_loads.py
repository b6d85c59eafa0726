"""`python -m tests.runtime.worker.faulty_loads serve …`: a server with ranks that may never finish loading.

Rank N of an engine does not load while the file that `SUNDOG_TEST_HANGS` names holds N, and makes a file
`hanging` next to it; else it is `sundog serve`. The server starts this module,
too, in the place of the one that engines are forked from.
"""

import os
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Serve, or be what engines are forked from."""
    if arguments[:1] == ["serve"]:
        import sundog.runtime.host.python as pythons
        from sundog.cli import cli
        from sundog.ends import run_to_its_end

        command = [sys.executable, "-m", "tests.runtime.worker.faulty_loads"]
        pythons.module_command = lambda module, *arguments: [*command, *arguments]  # type: ignore[assignment]
        run_to_its_end(cli)
    import trio

    from sundog.actors.messages import Capacity
    from sundog.builds.engine_process import main as fork_server
    from sundog.runtime.engine.backend import TorchBackend

    load, hangs = TorchBackend.load, Path(os.environ["SUNDOG_TEST_HANGS"])

    def is_told(self: TorchBackend) -> bool:
        number = 0 if self._rank is None else self._rank.number
        return hangs.exists() and hangs.read_text() == str(number)

    async def hanging(self: TorchBackend) -> Capacity:
        if is_told(self):
            hangs.with_name("hanging").touch()
            await trio.sleep_forever()
        return await load(self)

    TorchBackend.load = hanging  # type: ignore[method-assign]
    fork_server(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
