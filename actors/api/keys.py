"""API keys: one for all (`--api-key`) or a file with one per client (`--api-keys`).

    [[key]]
    key = "sk-alice"      # or: sha256 = "…", so that the file holds no key
    tenant = "alice"      # for policies; a client cannot set another
    max_requests = 8      # answers at a time; more are refused with 429
    priority = -1         # overrides the client's

Keys are compared by their digests, and are never logged.
"""

import hashlib
import hmac
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sundog.actors.api.errors import ApiError
from sundog.actors.api.limits import KeyHolder
from sundog.actors.api.requests import ApiRequest
from sundog.actors.config import ConfigError


class ApiKeys:
    """Clients by the digests of their keys."""

    def __init__(self, clients: Mapping[str, KeyHolder]) -> None:
        self._clients = dict(clients)

    @classmethod
    def one(cls, key: str) -> "ApiKeys":
        """Return a single key that all clients share."""
        return cls({_digest(key): KeyHolder()})

    @classmethod
    def read(cls, path: Path) -> "ApiKeys":
        """Read the keys of a file; raises ConfigError for invalid entries."""
        try:
            parsed = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"cannot read the keys of {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigError(f"{path}: {place}: {first['msg']}") from None
        clients: dict[str, KeyHolder] = {}
        for number, row in enumerate(parsed.key):
            if (row.key is None) == (row.sha256 is None):
                raise ConfigError(f"{path}: key.{number}: give either key or sha256")
            digest = row.sha256.lower() if row.key is None and row.sha256 else _digest(row.key or "")
            if digest in clients:
                raise ConfigError(f"{path}: key.{number}: an earlier entry has the same key")
            clients[digest] = KeyHolder(digest, row.tenant, row.max_requests, row.priority)
        return cls(clients)

    def find(self, key: str) -> KeyHolder | None:
        """Return the holder of a key; a right and a wrong key take the same time."""
        given, found = _digest(key), None
        for digest, client in self._clients.items():
            if hmac.compare_digest(digest, given):
                found = client
        return found

    def replace(self, newer: "ApiKeys") -> None:
        """Replace the keys. A holder whose key is kept, by its digest, keeps its count of answers."""
        self._clients = newer._clients

    def to_json(self) -> bytes:
        """Return JSON with digests, not keys, for another process that allows the same clients."""
        return json.dumps({digest: asdict(client) for digest, client in self._clients.items()}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "ApiKeys":
        """Read the keys that `to_json` wrote."""
        return cls({digest: KeyHolder(**fields) for digest, fields in json.loads(data).items()})


Name = Annotated[str, Field(min_length=1, max_length=1024)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    key: Name | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    tenant: Name | None = None
    max_requests: Annotated[int, Field(ge=1)] | None = None
    priority: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    key: Annotated[list[_Row], Field(min_length=1, max_length=100_000)]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


LIVE = "/dashboard/events"
OPEN = frozenset(("/health", "/ready", "/readyz", "/ping", "/version", "/metrics"))
"""Paths that probes and scrapers read without a key."""
PAGES = frozenset(("/", "/dashboard", "/docs", "/openapi.json"))
"""Paths that need no key, since they show no clients' data; the live page asks its reader for one."""
OPERATORS = "admin"
"""Blueprint whose routes need the admin key instead."""


def needs_key(path: str) -> bool:
    """Return whether the path needs a key: all do unless listed as open."""
    return (path.rstrip("/") or "/") not in OPEN | PAGES


def check_key(request: ApiRequest, keys: ApiKeys, admin_key: str | None = None) -> None:
    """Store the request's client; raises 401 unless a request that needs a key has one.

    The admin key also opens the live page, and shows all of it.
    """
    if not needs_key(request.path) or request.blueprint == OPERATORS:
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if request.path.startswith("/v1/messages") and (own := request.headers.get("X-Api-Key")) is not None:
        scheme, given = "bearer", own  # as Anthropic's clients send it
    if (
        request.path == LIVE
        and admin_key is not None
        and hmac.compare_digest(_digest(given), _digest(admin_key))
    ):
        return
    request.client = keys.find(given) if scheme.lower() == "bearer" else None
    if request.client is not None:
        return
    raise ApiError(
        401,
        "Wrong API key: send the server's key as 'Authorization: Bearer KEY'."
        if given
        else "No API key: send the server's key as 'Authorization: Bearer KEY'.",
        param=None,
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
