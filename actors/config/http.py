"""Limits, timeouts and certificates of HTTP connections."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate files in PEM. `cert_reqs`: clients' certificates are 0 not requested, 1 checked, 2
    required.
    """

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = 0


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits and timeouts of connections.

    `backlog` connections may wait to be accepted. A connection without a complete request head is kept for
    `keep_alive_s` (5 s would reset pooled clients), or for at most a second if half of the descriptors are in
    use. A client is dropped if it reads nothing for `stalled_client_s`, or for the grace period if that is
    shorter, or if its TLS handshake takes longer than `greeting_s`. More than `max_head_bytes` or
    `max_headers` are a 431. Pages of `allowed_origins` may call; `*` is all.
    """

    backlog: int = 2048
    keep_alive_s: float = 75.0
    stalled_client_s: float = 60.0
    greeting_s: float = 10.0
    max_head_bytes: int = 2**16
    max_headers: int = 256
    allowed_origins: tuple[str, ...] = ()
    tls: Tls | None = None


USUAL_HTTP = HttpSettings()
