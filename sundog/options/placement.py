"""`--on`: where the processes of a command run."""

from sundog.options.kinds import Parsed
from sundog.options.row import option

RAY = "Ray"


def parse_on(text: str) -> str | None:
    """The address of a Ray cluster, `auto` for one that runs on this machine, None for one of our own."""
    name, _, address = text.partition(":")
    if name != "ray":
        raise ValueError("give ray, ray:auto or ray:HOST:PORT")
    if not address:
        return None
    if address.startswith("ray://"):
        raise ValueError("a client of Ray cannot be placed on its nodes: give HOST:PORT without ray://")
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError("give ray, ray:auto or ray:HOST:PORT")
    return address


def on_ray(explained: str, *, kept: bool = True) -> str | None:
    """The option, with what it means for a command."""
    on: str | None = option(None, Parsed(parse_on, "ray[:ADDRESS]"), explained, section=RAY, kept=kept)
    return on
