"""`python -m sundog.builds.door_process`: fork server of the doors of `sundog serve --api-processes N`.

It reads its orders from stdin, and imports what HTTP needs, and nothing that computes.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.actors.api.context import ServedModel
from sundog.actors.api.front import Door
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.config import ConfigError
from sundog.ends import let_it_remark, log_to_stderr
from sundog.options.serving import Serving

if TYPE_CHECKING:
    from sundog.actors.api.front import Front
    from sundog.builds.served import Served


@dataclass(frozen=True, slots=True)
class DoorOrders:
    """Orders of the doors: `folder` contains the tokenizer, and `chat_template` replaces the template in
    it.
    """

    served: ServedModel
    options: ServerOptions
    folder: str
    lowercases: bool
    chat_template: str | None
    log_format: str


@contextmanager
def front_of(
    serving: Serving, options: ServerOptions, shown: ServedModel, served: "Served"
) -> "Iterator[Front | None]":
    """Yield a front of HTTP processes, forked from one that starts now; None if the server's own process
    serves HTTP.
    """
    if options.num_processes == 1:
        yield None
        return
    import msgspec

    from sundog.runtime.doors.doors import Doors
    from sundog.runtime.doors.messages import DOOR_MESSAGES
    from sundog.runtime.doors.port import reserved
    from sundog.runtime.host.python import module_command
    from sundog.runtime.worker.forks import Forks

    if served.clock is not None:
        raise ConfigError("--time-scale needs --api-processes 1: several HTTP processes use the real clock")
    if shown.loads_adapters:
        raise ConfigError(
            "--allow-runtime-lora-updating needs --api-processes 1: other processes would not learn of "
            "new adapters"
        )
    tokenizer = served.tokenizer
    with ExitStack() as stack:
        port = stack.enter_context(reserved(options.host, options.port))
        at_port = replace(options, port=port)
        folder, lowercases = str(tokenizer.folder), tokenizer.lowercases
        template = None if tokenizer.chat_template is None else str(tokenizer.chat_template)
        orders = DoorOrders(
            shown,
            at_port,
            folder=folder,
            lowercases=lowercases,
            chat_template=template,
            log_format=serving.log_format,
        )
        command = module_command("sundog.builds.door_process")
        forks = Forks(command, msgspec.msgpack.encode(orders), DOOR_MESSAGES, "door process")
        stack.callback(forks.close)
        forks.start()
        yield Doors(
            options.num_processes, forks, port=port, grace_s=options.grace_s, stall_s=serving.stall_timeout_s
        )


def main(descriptor: int, parent: int) -> None:
    """Become the fork server of the process `parent`, which is at the other end of a socket."""
    import msgspec

    from sundog.runtime.doors.host import run_door
    from sundog.runtime.text.tokenizer import Tokenizer
    from sundog.runtime.worker.fork_server import refuse, serve_forks
    from sundog.runtime.worker.life import begin_life

    begin_life("sundog doors", parent)
    with socket.socket(fileno=descriptor) as control:
        try:
            orders = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=DoorOrders)
            log_to_stderr(orders.log_format)
            let_it_remark()
            template = None if orders.chat_template is None else Path(orders.chat_template)
            codec = Tokenizer(Path(orders.folder), lowercases=orders.lowercases, chat_template=template)
        except (ConfigError, ModuleNotFoundError) as error:
            return refuse(control, str(error))
        door = Door(orders.served, codec, orders.options)
        serve_forks(control, partial(run_door, door.serve), "sundog door")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
