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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoads(ClientOptions):
    """Options of the loads on a server at a URL."""

    request_rate: str | None = option(
        None, Parsed(parse_rates, "RATE,RATE,…"), "Loads on a server at a URL, in requests a second."
    )
    load_seconds: float = option(
        600.0, Real(1, 86_400), "Seconds of load on a server at a URL, for all rates together."
    )
