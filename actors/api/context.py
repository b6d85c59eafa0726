"""State shared by routes: AsyncLLM's address, the model's card, and names logged so far."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import trio

from sundog.actors.api.emulation import Emulation
from sundog.actors.api.errors import ApiError, ErrorShape, as_vllm, invalid, shown
from sundog.actors.api.in_flight import LLM, AnswerControl, AnswersInFlight
from sundog.actors.api.limits import ConcurrencyLimits, LocalLimits
from sundog.actors.api.live import LiveEvents
from sundog.actors.config.sampling_defaults import NEUTRAL, SamplingDefaults
from sundog.actors.config.vector_sizes import VectorSizes
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.front.codec import BEGIN, END, TextCodec, ThoughtMarks

log = logging.getLogger("sundog.api")

MAX_REMARKS = 1000


@cache
def fingerprint(model: str, max_model_len: int) -> str:
    """Return `sundog-VERSION-DIGEST`, the same for the same model and version."""
    digest = hashlib.blake2b(f"{model} {max_model_len}".encode(), digest_size=4).hexdigest()
    return f"sundog-{server_version()}-{digest}"


def server_version() -> str:
    """Return the installed version of Sundog."""
    try:
        return version("sundog")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Served model as clients see it.

    `created` is in Unix seconds. `defaults` are the sampling defaults.
    """

    name: str
    max_model_len: int
    created: int
    owned_by: str = "sundog"
    aliases: tuple[str, ...] = ()
    """Further names of the model for clients."""
    adapters: tuple[Adapter, ...] = ()
    defaults: SamplingDefaults = NEUTRAL
    vectors: VectorSizes | None = None
    """Sizes that its vectors may have; None for a model that generates text."""
    max_loras: int | None = None
    """Number of adapters reported as the limit; None without adapters."""
    loads_adapters: bool = False
    """Whether adapters may be loaded and unloaded at run time."""

    def card(self, adapter: Adapter | None, alias: str | None = None) -> dict[str, object]:
        """Return the entry in /v1/models of the model, of an alias, or of an adapter, whose parent is the
        model.
        """
        name = alias or self.name if adapter is None else adapter.name
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": self.owned_by,
            "root": self.name if adapter is None else adapter.path,
            "parent": None if adapter is None else self.name,
            "max_model_len": self.max_model_len if adapter is None else None,
            "permission": [self._permission(name)],
        }

    def _permission(self, name: str) -> dict[str, object]:
        """Return the permission object of OpenAI's old API, which clients of vLLM may read."""
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return {
            "id": f"modelperm-{digest}",
            "object": "model_permission",
            "created": self.created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """Formats of calls and reasoning: names of parsers, None if unknown.

    Without `auto_tools` only required calls are parsed. With `thought` a grammar starts after the reasoning,
    whose tokens are counted. A streamed choice is sent every `stream_interval` tokens, but its first token
    and the last ones at once.
    """

    tool_call_parser: str | None = None
    auto_tools: bool = False
    reasoning_parser: str | None = None
    thought: ThoughtMarks | None = None
    stream_interval: int = 1


PLAIN_ANSWERS = AnswerFormats()


@dataclass(frozen=True, slots=True)
class ApiContext:
    """State shared by all routes of one app.

    `codec` turns tokens into text, None if they are only counted. `new_id` makes the unique part of an
    answer's id; `remarked` holds the unknown fields already logged. `large_bodies` limits large bodies to one
    at a time.
    """

    llm: LLM
    model: ServedModel
    new_id: Callable[[], str]
    control: AnswerControl
    in_flight: AnswersInFlight
    codec: TextCodec | None = None
    spell: ErrorShape = as_vllm
    answers: AnswerFormats = PLAIN_ANSWERS
    has_key: bool = False
    """Whether clients need a key."""
    admin_key: str | None = None
    live: LiveEvents | None = None
    """Events of the live page; None without metrics."""
    emulation: Emulation | None = None
    """Emulation that is served; None for a real model."""
    adapters: dict[str, Adapter] = field(default_factory=dict)
    """Loaded adapters by name."""
    keeps_responses: bool = True
    """Whether responses are stored; not if the next request may reach another process."""
    remarked: set[str] = field(default_factory=set)
    limits: ConcurrencyLimits = field(default_factory=LocalLimits)
    large_bodies: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    @property
    def fingerprint(self) -> str:
        """Fingerprint of this server in its answers: its version, and a digest of what it serves."""
        return fingerprint(self.model.name, self.model.max_model_len)

    @property
    def cards(self) -> list[dict[str, object]]:
        """Entries of /v1/models with vLLM's further fields: the model and its adapters."""
        aliases = [self.model.card(None, alias) for alias in self.model.aliases]
        return [self.model.card(None), *aliases, *map(self.model.card, self.adapters.values())]

    def check_model(self, name: str | None) -> Adapter | None:
        """Return the adapter of this name, or None for the served model; raises 404 for unknown names."""
        if not name or name == self.model.name or name in self.model.aliases:
            return None
        if (adapter := self.adapters.get(name)) is not None:
            return adapter
        known = ", ".join(shown(each["id"]) for each in self.cards)
        missing = f"The model {shown(name)} does not exist; this server has {known}."
        raise ApiError(404, missing, "model", "model_not_found")

    def must_generate(self, what: str) -> None:
        """Raise 404 unless the model generates text; `what` is the requested API."""
        if self.model.vectors is not None:
            raise ApiError(
                404, f"The model does not support {what}: it is an embedding model: use /v1/embeddings."
            )

    def must_reason(self, field: str) -> None:
        """Raise 400 unless the end of reasoning can be detected; `field` limits reasoning.

        Emulated answers have no reasoning of their own, so every limit is accepted there.
        """
        if self.answers.reasoning_parser is None:
            raise invalid(f"{field} needs a server with --reasoning-parser: leave it out.", field)
        if self.answers.thought is None and self.emulation is None:
            marks = f"{BEGIN} and {END} as one token each"
            raise invalid(f"{field} needs a model whose tokenizer has {marks}: leave it out.", field)

    def must_embed(self, what: str = "Embeddings") -> VectorSizes:
        """Return the allowed vector sizes; raises 404 for the API `what` unless the model embeds."""
        if self.model.vectors is None:
            raise ApiError(404, f"The model does not support {what} API: it generates text.")
        return self.model.vectors

    def remark(self, name: str) -> None:
        """Log that an unknown field was ignored, once per name."""
        self._remark_once("ignoring the unknown field %s of a request body", shown(name))

    def remark_left_out(self, name: str) -> None:
        """Log that a part of a request for another vendor's server was ignored, once per kind."""
        kind = name.partition("(")[2].rstrip(")") or name
        self._remark_once("ignoring %s of a request: this server has none", shown(kind))

    def _remark_once(self, sentence: str, name: str) -> None:
        if name not in self.remarked and len(self.remarked) < MAX_REMARKS:
            self.remarked.add(name)
            log.info(sentence, name)
