"""Fields of a body beyond its own: fields of the OpenAI and vLLM APIs that are not supported.

Law: a field that would change the answer is refused by name, unless its value is the default behaviour; a
field that changes nothing is ignored; a field that only another vendor's server can honour is left out and
named (`left_out`); an unknown field is logged once. Fields passed on to a chat completion are checked there,
and errors name them as there.
"""

from sundog.actors.api.bodies.parsing import BodyT, JsonObject, parse_request
from sundog.actors.api.bodies.structured import RENAMED
from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import invalid, shown
from sundog.actors.api.requests import ApiRequest

# A field's neutral values: what clients send when they want the ordinary behaviour.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "chat_template": (),
    "early_stopping": (False,),
    "ec_transfer_params": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_payload": ("tensors",),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "return_mm_kwargs": (True,),
    "routed_experts_prompt_start": (0,),
    "structural_tag": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}

HARMLESS = frozenset(
    {
        "best_of",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "return_prompt_text",
        "return_token_offsets",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "stream_interval",
        "user",
    }
)


async def read_body(body_type: type[BodyT], request: ApiRequest, context: ApiContext) -> BodyT:
    """Return the request's checked body; raises ApiError for it and for unsupported fields."""
    body = await parse_request(body_type, request, context)
    check_extras(body, context)
    return body


def check_extras(body: JsonObject, context: ApiContext) -> None:
    """Check the unsupported and unknown fields of a body; raises 400 for the first refused one."""
    for name, value in (body.model_extra or {}).items():
        if name in body.passed or name in body.harmless or name in body.elsewhere:
            continue
        neutral = body.unsupported.get(name, UNSUPPORTED.get(name))
        if neutral is None:
            if name not in HARMLESS:
                context.remark(name)
        elif not any(_same(value, each) for each in neutral):
            raise invalid(_hint(name) or not_supported(name, value, neutral), name, "unsupported_parameter")


def _hint(name: str) -> str | None:
    """Return the new name of a renamed field."""
    new_name = RENAMED.get(name)
    return new_name and f'{name} is not supported: send {{"structured_outputs": {{"{new_name}": …}}}}.'


def not_supported(name: str, value: object, neutral: tuple[object, ...] = ()) -> str:
    """Return the message that refuses a field by name."""
    allowed = " or ".join(shown(each) for each in neutral)
    hint = f"leave it out or send {allowed}" if allowed else "leave it out"
    return f"{name} = {shown(value)} is not supported: {hint}."


def _same(value: object, neutral: object) -> bool:
    """Return whether JSON values are equal: 0 equals 0.0 and not false."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
