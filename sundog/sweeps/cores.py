"""Who had the machine's cores: processor seconds of this process, of servers under it, and of all others."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
ENGINE = "sundog engine "
"""How processes of engines are called (`runtime.worker`)."""
LOADED = 0.1
"""A machine is loaded if others have more of its cores than that."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of all cores, from 0 to 1: this process, servers under it, their engines, and all others."""

    client: float
    server: float
    engine: float
    others: float

    @property
    def remark(self) -> str | None:
        """What people should know where others disturbed the measurement."""
        if self.others <= LOADED:
            return None
        return (
            f"other processes had {self.others:.0%} of the cores meanwhile, which makes what is measured long"
            " and uneven: measure again when the machine is quiet"
        )


class Cores:
    """Watches the cores from when it is made."""

    def __init__(self) -> None:
        self._begin = _seconds()
        self._begin_s = time.monotonic()

    def shares(self) -> Shares | None:
        """Since it was made; None where the system does not tell (it is no Linux), or no time has passed."""
        end, elapsed_s = _seconds(), time.monotonic() - self._begin_s
        if end is None or self._begin is None or elapsed_s <= 0:
            return None
        total_s = elapsed_s * (os.cpu_count() or 1)
        own = [max(0.0, after - before) for after, before in zip(end[1:], self._begin[1:], strict=True)]
        others_s = end[0] - self._begin[0] - sum(own)
        client, server, engine = (seconds / total_s for seconds in own)
        return Shares(client, server, engine, min(max(others_s / total_s, 0.0), 1.0))


def _seconds() -> tuple[float, float, float, float] | None:
    """Processor seconds so far: of everything, this process, processes under it that are no engines, engines.

    A process that ended counts where it was waited for.
    """
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    try:
        user, nice, system, _idle, _wait, *rest = map(int, (PROC / "stat").read_text().split()[1:9])
        found = dict(_processes())
    except (OSError, ValueError):  # no such files, or not Linux's
        return None
    own = found[os.getpid()][2]
    under = [(name, ticks) for pid, (name, _, ticks) in found.items() if _is_under(pid, found)]
    engines = sum(ticks for name, ticks in under if name.startswith(ENGINE))
    servers = sum(ticks for _, ticks in under) - engines
    everything = user + nice + system + sum(rest)
    return everything * tick_s, own * tick_s, servers * tick_s, engines * tick_s


Process = tuple[str, int, int]
"""Its name, its parent, and its ticks with those of children that it waited for."""


def _processes() -> list[tuple[int, Process]]:
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:  # it has just ended
                continue
            fields = rest.split()
            found.append((int(folder.name), (name, int(fields[1]), sum(map(int, fields[11:15])))))
    return found


def _is_under(pid: int, found: dict[int, Process]) -> bool:
    """Whether this process is among its ancestors."""
    while pid in found:
        pid = found[pid][1]
        if pid == os.getpid():
            return True
    return False
