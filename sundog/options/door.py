"""Options of a server's connections: TLS, the origins that browsers may call from, limits on clients."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sundog.options.row import AnyText, OneOf, Parsed, Real, Whole, option

if TYPE_CHECKING:
    from actors.api.server_options import ServerOptions

TLS = "TLS"
LIMITS = "Limits on clients"
ORIGIN = 'give "*", an origin like https://example.com, or a JSON list of them'


def parse_origins(text: str) -> tuple[str, ...]:
    """The origins that a text names; ValueError says what would be right."""
    given: object = [text]
    if text.lstrip().startswith("["):
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(ORIGIN) from None
    if not isinstance(given, list) or not all(map(_is_origin, given)):
        raise ValueError(ORIGIN)
    return tuple(given)


def _is_origin(given: object) -> bool:
    """True if a browser would send the origin: a scheme and a host, no path."""
    if not isinstance(given, str) or not given.isascii() or not given.isprintable():
        return False
    scheme, _, host = given.partition("://")
    return given == "*" or bool(scheme and host and not set(host) & set("/?# "))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of connections to a server."""

    ssl_certfile: str | None = option(
        None, AnyText("FILE", is_path=True), "Serve HTTPS with this certificate.", section=TLS
    )
    ssl_keyfile: str | None = option(
        None, AnyText("FILE", is_path=True), "Its key, if it is not in the same file.", section=TLS
    )
    ssl_ca_certs: str | None = option(
        None, AnyText("FILE", is_path=True), "Whose certificates clients may show.", section=TLS
    )
    ssl_cert_reqs: str = option(
        "0",
        OneOf(("0", "1", "2")),
        "Clients' certificates: 0 are not asked for, 1 checked if shown, 2 required.",
        section=TLS,
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        Parsed(parse_origins, "ORIGIN"),
        "Let browsers call from pages of this origin; * from all. By default from none.",
        section=LIMITS,
        many=True,
    )
    max_headers: int = option(
        256,
        Whole(1, 100_000),
        "Refuse requests of more headers with 431.",
        flag="--h11-max-header-count",
        section=LIMITS,
    )
    max_head_bytes: int = option(
        2**16,
        Whole(1024, 2**30),
        "Refuse requests whose line and headers are longer, with 431.",
        flag="--h11-max-incomplete-event-size",
        section=LIMITS,
    )
    head_s: float = option(
        10.0,
        Real(0, 86_400, above=True),
        "Drop clients whose headers, or TLS greeting, take longer, in seconds.",
        flag="--limit-head-time",
        section=LIMITS,
    )

    def of(self, options: "ServerOptions") -> "ServerOptions":
        """A server's options with this door; raises ConfigError for half of what TLS needs."""
        from actors.api import HttpSettings, Tls

        http = HttpSettings(
            head_s=self.head_s,
            max_head_bytes=self.max_head_bytes,
            max_headers=self.max_headers,
            allowed_origins=tuple([each for text in self.allowed_origins for each in parse_origins(text)]),
            tls=Tls.of(self.ssl_keyfile, self.ssl_certfile, self.ssl_ca_certs, int(self.ssl_cert_reqs)),
        )
        return replace(options, http=http)
