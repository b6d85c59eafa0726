"""What a response repeats of its request, under vLLM's keys: with the values that it left out."""

from actors.api.bodies.responses import Format, Function, ResponseBody
from actors.api.json_object import Json
from actors.core.params.sampling import Sampling

ABSENT: Json = dict.fromkeys(
    ("prompt", "kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")
)
"""Keys of vLLM's for what this server has not."""


def repeated(body: ResponseBody, sampling: Sampling, room_tokens: int, keeps: bool) -> Json:
    """The head of a response; `room_tokens` is what the prompt leaves of the context.

    It `keeps` responses if clients may come back to them.
    """
    extras, most = body.model_extra or {}, body.max_output_tokens
    return ABSENT | {
        "instructions": body.instructions,
        "metadata": body.metadata,
        "parallel_tool_calls": body.parallel_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "tool_choice": body.tool_choice if body.tools else "none",
        "tools": [_tool(tool) for tool in body.tools],
        "background": False,
        "max_output_tokens": room_tokens if most is None else min(most, room_tokens),
        "max_tool_calls": extras.get("max_tool_calls"),
        "previous_response_id": body.previous_response_id,
        "reasoning": _reasoning(body),
        "service_tier": extras.get("service_tier") or "auto",
        "text": None if body.text is None else {"format": _format(body.text.format), "verbosity": None},
        "top_logprobs": body.top_logprobs,
        "truncation": body.truncation,
        "user": extras.get("user"),
        "store": body.store and keeps,
    }


def _tool(tool: Function) -> Json:
    shown = {"name": tool.name, "parameters": tool.parameters, "strict": tool.strict, "type": tool.type}
    absent = dict.fromkeys(("allowed_callers", "async", "defer_loading", "output_schema"))
    return absent | shown | {"description": tool.description}


def _reasoning(body: ResponseBody) -> Json | None:
    if (asked := body.reasoning) is None:
        return None
    absent = dict.fromkeys(("context", "generate_summary", "mode"))
    return absent | {"effort": asked.effort, "summary": asked.summary}


def _format(form: Format) -> Json:
    if form.type != "json_schema":
        return {"type": form.type}
    shown = {"name": form.name, "schema": form.schema_, "type": form.type}
    return shown | {"description": form.description, "strict": form.strict}
