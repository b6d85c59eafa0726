"""POST /v1/embeddings: a vector for each input."""

import base64
import struct
import time

from quart import Blueprint, Response

from actors.api.bodies.embedding import UNSUPPORTED, EmbeddingBody
from actors.api.bodies.parsing import parse_request
from actors.api.bodies.unsupported import check_extras
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.edge.response import json_response
from actors.api.routes.generate import ask, whole_choice


def embeddings_routes(context: ApiContext) -> Blueprint:
    """The route, bound to its AsyncLLM."""
    routes = Blueprint("embeddings", __name__)

    @routes.post("/v1/embeddings")
    async def create_embeddings() -> Response:
        request = current_request()
        sizes = context.must_embed()
        body = await parse_request(EmbeddingBody, request, context)
        check_extras(body.model_extra or {}, context, UNSUPPORTED)
        adapter = context.check_model(body.model)
        sampling, reading = body.sampling(sizes), body.reading()
        answer_id, choices = await ask(
            context, request, body, body.input, sampling, reading, adapter, prefix="embd-", field="input"
        )
        vectors = [(await whole_choice(context, choice)).vector or b"" for choice in choices.all]
        shown = _as_text if body.encoding_format == "base64" else _as_numbers
        return json_response(
            {
                "id": answer_id,
                "object": "list",
                "created": int(time.time()),
                "model": context.model.name,
                "data": [
                    {"index": index, "object": "embedding", "embedding": shown(vector)}
                    for index, vector in enumerate(vectors)
                ],
                "usage": prompts_usage(sum(choice.asked.num_prompt_tokens for choice in choices.all)),
            }
        )

    return routes


def _as_text(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _as_numbers(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def prompts_usage(num_tokens: int) -> dict[str, object]:
    """Prompts alone count."""
    return {
        "prompt_tokens": num_tokens,
        "total_tokens": num_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
