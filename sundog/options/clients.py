"""Options of clients of a running server: how they send requests, and at which loads."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sundog.options.row import AnyText, OneOf, Parsed, Real, option
from sundog.options.simulation import parse_rate

if TYPE_CHECKING:
    from sundog.runtime.load.server import Endpoint

ENDPOINTS: "dict[str, Endpoint | None]" = {"auto": None, "completions": "completions", "chat": "chat"}


# Without slots, because two such classes cannot both be a third one's parents.
@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options of sending requests to a server."""

    model: str | None = option(
        None, AnyText("NAME"), "The model's name on the server; its first model if not given."
    )
    endpoint: str = option(
        "auto", OneOf(tuple(ENDPOINTS)), "Route of the server to use; auto takes completions if it can."
    )
    api_key: str | None = option(
        None,
        AnyText("KEY"),
        "API key to send to the server.",
        envvar=("SUNDOG_API_KEY", "OPENAI_API_KEY"),
        kept=False,
    )


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse several rates, as in `2,6,10`."""
    rates = tuple(parse_rate(part) for part in text.split(","))
    if len(set(rates)) < max(2, len(rates)) or max(rates) == float("inf"):
        raise ValueError("give at least two rates that differ, better three, as in 2,6,10")
    return rates


MOST_AT_ONCE = 1024
"""Most requests of a burst."""


def parse_bursts(text: str) -> tuple[int, ...]:
    """Parse several sizes of bursts, as in `8,16,24`; `none` are none."""
    if text == "none":
        return ()
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if len(set(sizes)) < max(2, len(sizes)) or not 2 <= min(sizes) <= max(sizes) <= MOST_AT_ONCE:
        raise ValueError(
            f"give at least two numbers of requests from 2 to {MOST_AT_ONCE:,} that differ, as in 8,16,24,"
            " or none"
        )
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoads(ClientOptions):
    """Options of the loads on a server at a URL."""

    request_rate: str | None = option(
        None, Parsed(parse_rates, "RATE,RATE,…"), "Loads on a server at a URL, in requests a second."
    )
    load_seconds: float = option(
        600.0, Real(1, 86_400), "Seconds of load on a server at a URL, for all rates together."
    )
    bursts: str = option(
        "8,16,24",
        Parsed(parse_bursts, "SIZE,SIZE,…"),
        "Bursts of short prompts to a server at a URL, by size: five of each between the loads, which tell"
        " how its API process takes requests that come together; none sends none.",
    )
