"""`--data-parallel-multi-port-external-lb`: a server for each data-parallel rank, at ports in a row.

As in vLLM: rank r listens at --port + r, and one more port says at /health, /ready and /readyz whether all of
them take requests. When one ends, all do.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from actors.config import ConfigError
from sundog.builds.served import check_ports
from sundog.ends import remark
from sundog.options.row import spelled
from sundog.options.serving import EmulatedServing

if TYPE_CHECKING:
    import trio

LOOK_S = 0.5
"""How often it is seen whether all are there."""
STOP_S = 60.0
OF_ALL = ("model", "port", "data_parallel_size", "data_parallel_multi_port_external_lb", "data_parallel_rank")
"""Options that say what the ranks' servers are together, and that each has of its own."""


def serve_ranks(
    serving: EmulatedServing, num_ranks: int, model: str | None, records: Sequence[object]
) -> None:
    """Serve until told to stop. Raises ConfigError if a rank ends by itself.

    `records` are the options of a rank, but for its number and its port.
    """
    import trio

    supervisor, last = serving.data_parallel_supervisor_port, serving.port + num_ranks - 1
    if serving.port == 0 or last > 65_535 or serving.port <= supervisor <= last:
        raise ConfigError(
            f"--port is {serving.port}: {num_ranks} ranks need that many ports in a row from there on, and"
            f" --data-parallel-supervisor-port ({supervisor}) beside them"
        )
    check_ports(serving, num_ranks)
    common = [*([model] if model else []), *(word for each in records for word in spelled(each, OF_ALL))]
    commands = [
        [*common, "--port", str(serving.port + rank), "--data-parallel-rank", str(rank)]
        for rank in range(num_ranks)
    ]
    with _started(commands) as processes:
        trio.run(_watch, serving, processes)


@contextmanager
def _started(commands: Sequence[Sequence[str]]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The ranks' processes; in the end they are told to stop, and waited for."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "sundog.child", str(os.getpid()), "emulate", *command],
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def _watch(serving: EmulatedServing, processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Say at the supervisor's port whether all are ready, until a signal or until one has ended."""
    import trio

    from actors.api.serve_graph import serve_readiness

    stop = trio.Event()
    urls = [f"http://{_reached(serving.host)}:{serving.port + rank}/ready" for rank in range(len(processes))]
    supervisor = serving.data_parallel_supervisor_port
    ended: list[int] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            are_ready = partial(_are_ready, urls)
            await nursery.start(serve_readiness, serving.host, supervisor, are_ready, stop)
            last = serving.port + len(processes) - 1
            remark(f"ranks are at ports {serving.port} to {last}; {supervisor}/ready says if all are ready")
            nursery.start_soon(_until_one_ends, processes, ended, stop)
            nursery.start_soon(_until_told, signals, stop)
            await stop.wait()
            nursery.cancel_scope.cancel()
    if ended:
        raise ConfigError(f"rank {ended[0]} has ended, and the others with it: its own lines say why")


async def _until_told(signals: "AsyncIterator[int]", stop: "trio.Event") -> None:
    async for _ in signals:
        stop.set()


async def _until_one_ends(
    processes: "Sequence[subprocess.Popen[bytes]]", ended: list[int], stop: "trio.Event"
) -> None:
    import trio

    while not ended:
        ended += [rank for rank, process in enumerate(processes) if process.poll() is not None]
        await trio.sleep(LOOK_S)
    stop.set()


async def _are_ready(urls: Sequence[str]) -> list[bool]:
    """Of each rank whether it takes requests."""
    import httpx

    ready = []
    async with httpx.AsyncClient(timeout=5.0) as client:
        for url in urls:
            try:
                ready.append((await client.get(url)).status_code == 200)
            except httpx.HTTPError:
                ready.append(False)
    return ready


def _reached(host: str) -> str:
    """Where a server that listens there is reached from here."""
    found = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{found}]" if ":" in found else found
