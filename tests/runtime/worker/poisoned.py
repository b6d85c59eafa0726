"""`python -m tests.runtime.worker.poisoned serve …`: a server whose engines are killed by one token.

An engine process is killed by the first batch that takes in a prompt with the token `SUNDOG_TEST_POISON`, as
by a kernel that reads behind a table, once the file `SUNDOG_TEST_GATE` is there; else it is `sundog serve`.
The server starts this module, too, in the place of the one that engines are forked from.
"""

import os
import signal
import sys
import time


def main(arguments: list[str]) -> None:
    """Serve, or be what engines are forked from."""
    if arguments[:1] == ["serve"]:
        import sundog.runtime.host.python as pythons
        from sundog.cli import cli
        from sundog.ends import run_to_its_end

        command = [sys.executable, "-m", "tests.runtime.worker.poisoned"]
        pythons.module_command = lambda module, *arguments: [*command, *arguments]  # type: ignore[assignment]
        run_to_its_end(cli)
    from typing import Any

    from sundog.actors.messages import Batch
    from sundog.builds.engine_process import main as fork_server
    from sundog.runtime.engine.backend import TorchBackend

    execute, poison = TorchBackend.execute, int(os.environ["SUNDOG_TEST_POISON"])
    gate = os.environ["SUNDOG_TEST_GATE"]

    def dies(self: TorchBackend, batch: Batch) -> Any:
        if any(poison in (each.token_ids or ()) for each in batch.admitted):
            while not os.path.exists(gate):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGSEGV)
        return execute(self, batch)

    TorchBackend.execute = dies  # type: ignore[method-assign]
    fork_server(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
