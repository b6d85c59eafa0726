"""Options of a server's connections: TLS, allowed browser origins, limits on clients."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sundog.options.row import AnyText, OneOf, Parsed, Real, Whole, option

if TYPE_CHECKING:
    from sundog.actors.api.server_options import ServerOptions
    from sundog.actors.config.http import Tls

TLS = "TLS"
LIMITS = "Limits on clients"
ORIGIN = 'give "*", an origin like https://example.com, or a JSON list of them'


def parse_origins(text: str) -> tuple[str, ...]:
    """Parse origins; ValueError describes valid ones."""
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
        None,
        AnyText("FILE", is_path=True),
        "Key of the certificate, if it is not in the same file.",
        section=TLS,
    )
    ssl_ca_certs: str | None = option(
        None, AnyText("FILE", is_path=True), "CA certificates to verify clients with.", section=TLS, rare=True
    )
    ssl_cert_reqs: str = option(
        "0",
        OneOf(("0", "1", "2")),
        "Client certificates: 0 not requested, 1 optional, 2 required.",
        section=TLS,
        rare=True,
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
        "Largest number of headers; requests with more are refused with 431.",
        flag="--h11-max-header-count",
        section=LIMITS,
        rare=True,
    )
    max_head_bytes: int = option(
        2**16,
        Whole(1024, 2**30),
        "Largest size of request line and headers in bytes; longer ones are refused with 431.",
        flag="--h11-max-incomplete-event-size",
        section=LIMITS,
        rare=True,
    )
    timeout_keep_alive: float = option(
        75.0,
        Real(0, 86_400, above=True),
        "Seconds after which an idle connection, or one with incomplete headers, is closed.",
        section=LIMITS,
        rare=True,
    )

    def of(self, options: "ServerOptions") -> "ServerOptions":
        """Return a server's options with these connections; raises ConfigError for incomplete TLS options."""
        from sundog.actors.config.http import HttpSettings

        http = HttpSettings(
            keep_alive_s=self.timeout_keep_alive,
            max_head_bytes=self.max_head_bytes,
            max_headers=self.max_headers,
            allowed_origins=tuple([each for text in self.allowed_origins for each in parse_origins(text)]),
            tls=self._tls(),
        )
        return replace(options, http=http)

    def _tls(self) -> "Tls | None":
        from sundog.actors.config import ConfigError
        from sundog.actors.config.http import Tls

        cert_reqs = int(self.ssl_cert_reqs)
        if self.ssl_certfile is None:
            for name, given in (("--ssl-keyfile", self.ssl_keyfile), ("--ssl-ca-certs", self.ssl_ca_certs)):
                if given is not None:
                    raise ConfigError(f"{name} is {given}, but there is no certificate: give --ssl-certfile")
            if cert_reqs:
                raise ConfigError(f"--ssl-cert-reqs is {cert_reqs} without TLS: give --ssl-certfile")
            return None
        if cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError(
                f"--ssl-cert-reqs is {cert_reqs}, but no CA is given to verify clients with: give "
                "--ssl-ca-certs"
            )
        self._check_files(self.ssl_certfile)
        return Tls(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, cert_reqs)

    def _check_files(self, certfile: str) -> None:
        import ssl

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        key = "" if self.ssl_keyfile is None else f" and --ssl-keyfile {self.ssl_keyfile}"
        wrong = "they must be a certificate in PEM and its key, without a password"
        with _named(f"--ssl-certfile {certfile}{key}", wrong):
            # Without a password one would be asked for on the terminal.
            context.load_cert_chain(certfile, self.ssl_keyfile, password="")
        if self.ssl_ca_certs is not None:
            with _named(f"--ssl-ca-certs {self.ssl_ca_certs}", "it contains no certificate in PEM"):
                context.load_verify_locations(self.ssl_ca_certs)


@contextmanager
def _named(options: str, wrong: str) -> Iterator[None]:
    import ssl

    from sundog.actors.config import ConfigError

    try:
        yield
    except (OSError, ValueError) as error:
        is_about_file = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
        why = error.strerror if isinstance(error, OSError) and is_about_file else wrong
        raise ConfigError(f"{options}: {why or wrong}") from None
