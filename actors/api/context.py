"""The things that routes share: the address of AsyncLLM, the model's card, and what was logged so far."""

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
    """`sundog-VERSION-DIGEST`; the same for the same model and version."""
    digest = hashlib.blake2b(f"{model} {max_model_len}".encode(), digest_size=4).hexdigest()
    return f"sundog-{server_version()}-{digest}"


def server_version() -> str:
    """Sundog's, as it is installed."""
    try:
        return version("sundog")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, as clients may know it.

    `created` is in Unix seconds. `defaults` are for requests that do not say how they are sampled.
    """

    name: str
    max_model_len: int
    created: int
    owned_by: str = "sundog"
    aliases: tuple[str, ...] = ()
    """Further names by which clients may ask for it."""
    adapters: tuple[Adapter, ...] = ()
    defaults: SamplingDefaults = NEUTRAL
    vectors: VectorSizes | None = None
    """The sizes that its vectors may have; None for a model that generates text."""
    max_loras: int | None = None
    """The number of adapters that it is said to take at once; None where it takes none."""
    loads_adapters: bool = False
    """True if adapters may come and go while it is served."""

    def card(self, adapter: Adapter | None, alias: str | None = None) -> dict[str, object]:
        """The entry of an adapter, whose parent is the model, or of the model itself, perhaps by an alias."""
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
        """Return what OpenAI's API once said of each model; clients of vLLM may read it."""
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
    """The way in which the model writes calls and reasoning: names of parsers, None where it does not.

    Without `auto_tools` only calls that a client requires are looked for. With `thought` a grammar holds from
    the end of the reasoning on, and its tokens are counted. A streamed choice is sent by `stream_interval`
    tokens, but for its first token and its last tokens.
    """

    tool_call_parser: str | None = None
    auto_tools: bool = False
    reasoning_parser: str | None = None
    thought: ThoughtMarks | None = None
    stream_interval: int = 1


PLAIN_ANSWERS = AnswerFormats()


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Shared by all routes of one app.

    `codec` gives tokens their text, None where they are only counted. `new_id` makes the unique part of an
    answer's id; `remarked` holds the unknown fields already logged. `large_bodies` are parsed one at a time.
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
    """True if clients need a key."""
    admin_key: str | None = None
    live: LiveEvents | None = None
    """The events of the live page; None where nothing is measured."""
    emulation: Emulation | None = None
    """The emulation that is served; None where a model computes."""
    adapters: dict[str, Adapter] = field(default_factory=dict)
    """The adapters that there are now, by name."""
    keeps_responses: bool = True
    """True if clients may come back to responses: not where the next request may go to another process."""
    remarked: set[str] = field(default_factory=set)
    limits: ConcurrencyLimits = field(default_factory=LocalLimits)
    large_bodies: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    @property
    def fingerprint(self) -> str:
        """The mark of this server in its answers: its version, and a digest of what it serves."""
        return fingerprint(self.model.name, self.model.max_model_len)

    @property
    def cards(self) -> list[dict[str, object]]:
        """The entries of /v1/models, with vLLM's additions to OpenAI's fields: the model, its adapters."""
        aliases = [self.model.card(None, alias) for alias in self.model.aliases]
        return [self.model.card(None), *aliases, *map(self.model.card, self.adapters.values())]

    def check_model(self, name: str | None) -> Adapter | None:
        """The adapter of this name; None for the served model's name, or none. Raises a 404 for any other."""
        if not name or name == self.model.name or name in self.model.aliases:
            return None
        if (adapter := self.adapters.get(name)) is not None:
            return adapter
        known = ", ".join(shown(each["id"]) for each in self.cards)
        missing = f"The model {shown(name)} does not exist; this server has {known}."
        raise ApiError(404, missing, "model", "model_not_found")

    def must_generate(self, what: str) -> None:
        """Raises a 404 unless the model generates text; `what` is the API that was asked for."""
        if self.model.vectors is not None:
            raise ApiError(404, f"The model does not support {what}: it makes vectors, at /v1/embeddings.")

    def must_reason(self, field: str) -> None:
        """Raises a 400 unless it can be told where an answer's reasoning ends; `field` bounds it.

        An emulated answer has no tokens of its own that begin reasoning: there every bound is kept.
        """
        if self.answers.reasoning_parser is None:
            raise invalid(f"{field} needs a server with --reasoning-parser: leave it out.", field)
        if self.answers.thought is None and self.emulation is None:
            marks = f"{BEGIN} and {END} as one token each"
            raise invalid(f"{field} needs a model whose tokenizer has {marks}: leave it out.", field)

    def must_embed(self, what: str = "Embeddings") -> VectorSizes:
        """Return how long vectors may be; raises a 404 for the API `what` unless the model makes some."""
        if self.model.vectors is None:
            raise ApiError(404, f"The model does not support {what} API: it generates text.")
        return self.model.vectors

    def remark(self, name: str) -> None:
        """Log that an unknown field was ignored, once per name."""
        self._remark_once("ignoring the unknown field %s of a request body", shown(name))

    def remark_left_out(self, name: str) -> None:
        """Log that a part of a request was left out, which another server would act on, once per kind."""
        kind = name.partition("(")[2].rstrip(")") or name
        self._remark_once("leaving out %s of a request: this server has none", shown(kind))

    def _remark_once(self, sentence: str, name: str) -> None:
        if name not in self.remarked and len(self.remarked) < MAX_REMARKS:
            self.remarked.add(name)
            log.info(sentence, name)
