"""Options of a server: its address, and limits on clients and requests."""

from dataclasses import dataclass
from pathlib import Path

from sundog.actors.api.address import listen
from sundog.actors.api.app import MAX_BODY_BYTES
from sundog.actors.api.context import PLAIN_ANSWERS, AnswerFormats
from sundog.actors.api.keys import ApiKeys
from sundog.actors.config import ConfigError
from sundog.actors.config.http import USUAL_HTTP, HttpSettings


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Address of a server, its number of processes, and its limits on requests; port 0 is a free one.

    After a signal to stop, running streams have `grace_s` to finish. A larger body than `max_body_bytes` is
    refused. Errors have the format `compat`, vllm or openai. With `log_requests` each request is a line of
    the log at its end, with `log_stats` each engine's throughput every ten seconds. Spans of requests go to
    `otlp_traces_endpoint`, if there is one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    num_processes: int = 1
    first_engine: int = 0
    api_key: str | None = None
    api_keys: str | None = None
    admin_key: str | None = None
    grace_s: float = 30.0
    max_body_bytes: int = MAX_BODY_BYTES
    compat: str = "vllm"
    log_requests: bool = True
    log_stats: bool = True
    answers: AnswerFormats = PLAIN_ANSWERS
    otlp_traces_endpoint: str | None = None
    http: HttpSettings = USUAL_HTTP

    def keys(self) -> ApiKeys | None:
        """Return the allowed keys, None for all clients; ConfigError for an unreadable file."""
        if self.api_keys is not None and self.api_key is not None:
            raise ConfigError("--api-key cannot be combined with --api-keys: put the key into the file")
        if self.api_keys is not None:
            return ApiKeys.read(Path(self.api_keys))
        return None if self.api_key is None else ApiKeys.one(self.api_key)

    def url(self, port: int) -> str:
        """Return the URL at which clients reach a server that listens on this port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.http.tls is None else 'https'}://{host}:{port}"

    def check_address(self) -> None:
        """Raise ConfigError if a server could not listen there now, before a model is loaded."""
        listen(self.host, self.port).close()

    def check_traces(self) -> None:
        """Raise ConfigError if spans are requested and cannot be sent."""
        if self.otlp_traces_endpoint is not None:
            from sundog.actors.api.exposition.spans import exporter_to

            exporter_to(self.otlp_traces_endpoint).shutdown()
