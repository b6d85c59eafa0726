"""POST /v1/embeddings, /score and /rerank: vectors of texts and their cosine similarity."""

import base64
import math
import struct
import time
from collections.abc import Sequence

from quart import Blueprint, Response

from sundog.actors.api.bodies.extras import read_body
from sundog.actors.api.bodies.parsing import Json
from sundog.actors.api.bodies.texts import RAW, RERANKS, SCORES, EmbeddingBody, RerankBody, ScoreBody
from sundog.actors.api.context import ApiContext
from sundog.actors.api.requests import ApiRequest, current_request
from sundog.actors.api.responses import json_response
from sundog.actors.api.routes.generate import ask, whole_choice


def embeddings_routes(context: ApiContext) -> Blueprint:
    """Return the route, bound to its AsyncLLM."""
    routes = Blueprint("embeddings", __name__)

    @routes.post("/v1/embeddings")
    async def create_embeddings() -> Response:
        request = current_request()
        sizes = context.must_embed()
        body = await read_body(EmbeddingBody, request, context)
        adapter = context.check_model(body.model)
        sampling, reading = body.sampling(sizes), body.reading()
        answer_id, choices = await ask(
            context, request, body, body.input, sampling, reading, adapter, prefix="embd-", field="input"
        )
        vectors = [(await whole_choice(context, choice)).vector or b"" for choice in choices.all]
        shown = _as_text if body.encoding_format == "base64" else _as_numbers
        data = [
            {"index": index, "object": "embedding", "embedding": shown(vector)}
            for index, vector in enumerate(vectors)
        ]
        num_tokens = sum(choice.asked.num_prompt_tokens for choice in choices.all)
        return _listed(context, answer_id, data, num_tokens)

    return routes


def _as_text(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _as_numbers(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def _listed(context: ApiContext, answer_id: str, data: list[Json], num_tokens: int) -> Response:
    return json_response(
        {
            "id": answer_id,
            "object": "list",
            "created": int(time.time()),
            "model": context.model.name,
            "data": data,
            "usage": {
                "prompt_tokens": num_tokens,
                "total_tokens": num_tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
        }
    )


def scoring_routes(context: ApiContext) -> Blueprint:
    """Return the routes, bound to their AsyncLLM."""
    routes = Blueprint("scoring", __name__)

    async def create_score() -> Response:
        request = current_request()
        context.must_embed("Score")
        body = await read_body(ScoreBody, request, context)
        left, right, field = body.sides()
        answer_id, scores, num_tokens = await _scores(context, request, body, left, right, field)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return _listed(context, answer_id, data, num_tokens)

    async def rerank() -> Response:
        request = current_request()
        context.must_embed("Rerank")
        body = await read_body(RerankBody, request, context)
        documents = body.documents
        sides = (body.query,), documents
        answer_id, scores, num_tokens = await _scores(context, request, body, *sides, "documents")
        order = sorted(range(len(documents)), key=lambda index: -scores[index])
        return json_response(
            {
                "id": answer_id,
                "model": context.model.name,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
                "results": [
                    {
                        "index": index,
                        "document": {"text": documents[index], "multi_modal": None},
                        "relevance_score": scores[index],
                    }
                    for index in order[: body.top_n or None]
                ],
            }
        )

    for path in SCORES:
        routes.add_url_rule(path, view_func=create_score, methods=["POST"])
    for path in RERANKS:
        routes.add_url_rule(path, view_func=rerank, methods=["POST"])
    return routes


async def _scores(
    context: ApiContext,
    request: ApiRequest,
    body: ScoreBody | RerankBody,
    left: Sequence[str],
    right: Sequence[str],
    field: str,
) -> tuple[str, list[float], int]:
    adapter = context.check_model(body.model)
    answer_id, choices = await ask(
        context, request, body, (*left, *right), RAW, body.reading(), adapter, prefix="score-", field=field
    )
    vectors = [_numbers((await whole_choice(context, choice)).vector or b"") for choice in choices.all]
    first, second = vectors[: len(left)], vectors[len(left) :]
    if len(first) == 1:
        first *= len(second)
    num_tokens = sum(choice.asked.num_prompt_tokens for choice in choices.all)
    return answer_id, [_cosine(a, b) for a, b in zip(first, second, strict=True)], num_tokens


def _numbers(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one is zero."""
    length = math.hypot(*a) * math.hypot(*b)
    return sum(map(float.__mul__, a, b)) / length if length else 0.0
