"""What a client asks for, as it crosses from a door to the server: a `Generate` of JSON and plain records."""

import json
from dataclasses import dataclass
from typing import Literal

from actors.core.params.adapter import Adapter
from actors.core.params.sampling import Sampling
from actors.core.request import TraceHeaders
from actors.messages import ChatMessage, Generate, Reading, Refused


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation; `more` is a JSON object."""

    role: str
    content: str
    more: str


@dataclass(frozen=True, slots=True)
class Read:
    """How a prompt becomes tokens (`Reading`); `template_arguments` is a JSON object."""

    add_special_tokens: bool | None
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"]
    add_generation_prompt: bool
    continue_final_message: bool
    template_arguments: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A door asks for a completion (`Generate`), of a text, tokens or a conversation, whichever is not None.

    The streams of its choices have numbers from `first_stream` on, which the door gives.
    """

    first_stream: int
    request_id: str
    text: str | None
    token_ids: tuple[int, ...] | None
    turns: tuple[Turn, ...] | None
    sampling: Sampling
    priority: int
    cache_salt: str | None
    tenant: str | None
    slo_ttft_s: float | None
    predicted_tokens: int | None
    n: int
    reading: Read
    slo_tpot_s: float | None
    slo_e2e_s: float | None
    adapter: Adapter | None
    session: str | None
    trace_headers: TraceHeaders

    def answered_by(self, answer: "Taken | Refused") -> "Asked":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Taken:
    """The graph has accepted what a door asked for (`Accepted`): its streams begin."""

    num_prompt_tokens: int
    may_be_refused: bool
    prompt_token_ids: tuple[int, ...] | None


def asked(generate: Generate, first_stream: int) -> Asked:
    """A Generate as it crosses."""
    prompt, reading = generate.prompt, generate.reading
    assert generate.request_id is not None, "the API gives every request its id"
    assert not isinstance(prompt, int), "the API counts no tokens"
    is_chat = isinstance(prompt, tuple) and bool(prompt) and isinstance(prompt[0], ChatMessage)
    return Asked(
        first_stream,
        generate.request_id,
        prompt if isinstance(prompt, str) else None,
        None if isinstance(prompt, str) or is_chat else prompt,  # type: ignore[arg-type]  # tokens are left
        tuple([Turn(each.role, each.content, json.dumps(each.more)) for each in prompt])  # type: ignore[union-attr]
        if is_chat
        else None,
        generate.sampling,
        generate.priority,
        generate.cache_salt,
        generate.tenant,
        generate.slo_ttft_s,
        generate.predicted_tokens,
        generate.n,
        Read(
            reading.add_special_tokens,
            reading.truncate_prompt_tokens,
            reading.truncation_side,
            reading.add_generation_prompt,
            reading.continue_final_message,
            json.dumps(reading.template_arguments),
        ),
        generate.slo_tpot_s,
        generate.slo_e2e_s,
        generate.adapter,
        generate.session,
        generate.trace_headers,
    )


def generate_of(asked: Asked) -> Generate:
    """The Generate that was asked for."""
    turns, read = asked.turns, asked.reading
    prompt: str | tuple[int, ...] | tuple[ChatMessage, ...]
    if turns is not None:
        prompt = tuple([ChatMessage(each.role, each.content, json.loads(each.more)) for each in turns])
    else:
        prompt = asked.text if asked.text is not None else asked.token_ids or ()
    return Generate(
        prompt,
        asked.sampling,
        request_id=asked.request_id,
        priority=asked.priority,
        cache_salt=asked.cache_salt,
        tenant=asked.tenant,
        slo_ttft_s=asked.slo_ttft_s,
        predicted_tokens=asked.predicted_tokens,
        n=asked.n,
        reading=Reading(
            read.add_special_tokens,
            read.truncate_prompt_tokens,
            read.truncation_side,
            read.add_generation_prompt,
            read.continue_final_message,
            json.loads(read.template_arguments),
        ),
        slo_tpot_s=asked.slo_tpot_s,
        slo_e2e_s=asked.slo_e2e_s,
        adapter=asked.adapter,
        session=asked.session,
        trace_headers=asked.trace_headers,
    )
