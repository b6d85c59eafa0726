"""Path from a checked body to an answer, whole or streamed, shared by the generating routes."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from quart import Response

from sundog.actors.api.answers.choices import AnswerChoice, AnswerChoices, ChoiceView, Wanted, start_choices
from sundog.actors.api.answers.parts import Shaped, TranslatingWriter
from sundog.actors.api.answers.shapes import Json, ResponseShape
from sundog.actors.api.answers.sse import ChunkWriter, Events
from sundog.actors.api.bodies.extras import not_supported
from sundog.actors.api.bodies.headers import RequestTerms, request_id_of
from sundog.actors.api.bodies.sampling import SamplingBody, TermsBody
from sundog.actors.api.context import ApiContext
from sundog.actors.api.emulation import FIELD, no_fault
from sundog.actors.api.errors import BROKEN, ApiError, invalid, retry_after, unavailable
from sundog.actors.api.limits import KeyHolder, LimitReached, Release
from sundog.actors.api.requests import ApiRequest
from sundog.actors.api.responses import Feed, fed_response, json_response
from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.kernel.clock import now_s, sleep_until
from sundog.actors.kernel.stream import Delta, joined
from sundog.actors.messages import CheckHealth, Generate, Reading
from sundog.actors.messages.client import Prompt

STORED = "resp_"
"""Beginning of the ids of responses that clients may refer to later."""


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """Request that is to be answered."""

    context: ApiContext
    request: ApiRequest
    shape: ResponseShape
    body: SamplingBody
    adapter: Adapter | None

    async def start(self, prompts: Sequence[Prompt], sampling: Sampling) -> tuple[str, AnswerChoices]:
        """Submit `n` choices of each prompt; return the answer's id and the choices. Raises ApiError if
        any is refused.
        """
        body, shape = self.body, self.shape
        body.check_choices(len(prompts))
        if sampling.thinking_token_budget is not None:
            self.context.must_reason("thinking_token_budget")
        return await ask(
            self.context,
            self.request,
            body,
            prompts,
            sampling,
            body.reading(),
            self.adapter,
            n=body.n,
            prefix=shape.id_prefix,
            field=shape.prompt_field,
        )

    def wanted(self, sampling: Sampling, echoes: tuple[str, ...] | None, only_echo: bool = False) -> Wanted:
        """Return the parts that the client wants besides the new text."""
        body = self.body
        return Wanted(
            usage=body.usage_wanted(),
            logprobs=-1 if sampling.logprob_token_ids else sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
            tokens_as_ids=body.return_tokens_as_token_ids,
            token_ids=body.return_token_ids,
            echoes=echoes,
            only_echo=only_echo,
        )

    async def respond(self, answer_id: str, choices: AnswerChoices, wanted: Wanted) -> Response:
        """Return the answer, whole or streamed."""
        if self.body.stream:
            return fed_response(self.chunks(answer_id, choices, wanted))
        return json_response(await self.whole(answer_id, choices, wanted))

    def _head(self, answer_id: str) -> Json:
        return {
            "id": answer_id,
            "object": self.shape.chunk_object if self.body.stream else self.shape.object,
            "created": int(time.time()),
            "model": self.context.model.name if self.adapter is None else self.adapter.name,
        }

    def _views(self, choices: AnswerChoices, wanted: Wanted) -> list[ChoiceView]:
        return [ChoiceView(choice, wanted, self.context.codec) for choice in choices.all]

    def chunks(
        self, answer_id: str, choices: AnswerChoices, wanted: Wanted, shaped: Shaped | None = None
    ) -> Feed:
        """Return the events of a streamed answer, `shaped` if given."""
        views = self._views(choices, wanted)
        context = self.context
        writer = ChunkWriter(
            self.shape,
            self._head(answer_id),
            choices=choices,
            views=views,
            spell=context.spell,
            fingerprint=context.fingerprint,
        )
        shaping = writer if shaped is None else TranslatingWriter(writer, shaped)
        return Events(choices, shaping, context.answers.stream_interval)

    async def whole(self, answer_id: str, choices: AnswerChoices, wanted: Wanted) -> Json:
        """Return the whole answer; choices are read one after the other, and unread output merges."""
        whole = []
        for view in self._views(choices, wanted):
            whole.append((view, await whole_choice(self.context, view.choice)))
        return (
            self._head(answer_id)
            | self.shape.whole(whole)
            | {"system_fingerprint": self.context.fingerprint, "usage": choices.usage()}
            | self._handed(choices)
        )

    def _handed(self, choices: AnswerChoices) -> Json:
        params, emulation = self.body.kv_transfer_params, self.context.emulation
        if not params or emulation is None or emulation.transfers is None:
            return {}
        (choice,) = choices.all
        num_tokens = choice.asked.num_prompt_tokens + choice.num_tokens - 1
        return {FIELD: emulation.transfers.ended(params, choice.asked.request_id, num_tokens)}


async def ask(
    context: ApiContext,
    request: ApiRequest,
    body: TermsBody,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    reading: Reading,
    adapter: Adapter | None,
    *,
    prefix: str,
    field: str,
    n: int = 1,
) -> tuple[str, AnswerChoices]:
    """Submit `n` choices of each prompt; return the answer's id, which begins with `prefix`, and the choices.

    Raises ApiError if any is refused; `field` is the route's name of the prompt.
    """
    await context.in_flight.pass_gate()
    client = await count_answer(context, request)
    if (emulation := context.emulation) is None:
        fault = no_fault(request.headers)
    else:
        fault = await emulation.befall(request.headers)
    chosen = request_id_of(request.headers, body)
    answer_id = prefix + (chosen or context.new_id())
    # Two requests may have the id that their clients chose, even at a time.
    engine_id = answer_id if chosen is None else f"{answer_id}-{context.new_id()}"
    if prefix == STORED:  # an agent gives all its calls one id, and each response is kept under its own
        answer_id = engine_id
    has_remote_kv = await fetched(context, request, body, engine_id, n * len(prompts))
    terms = asdict(RequestTerms.of(request.headers, body).of_client(client))
    generates = [
        Generate(
            prompt=prompt,
            sampling=sampling,
            request_id=engine_id if len(prompts) == 1 else f"{engine_id}-{index}",
            cache_salt=body.cache_salt,
            n=n,
            adapter=adapter,
            reading=reading,
            trace_headers=request.trace_headers,
            has_remote_kv=has_remote_kv,
            client=request.owner,
            **terms,
        )
        for index, prompt in enumerate(prompts)
    ]
    names = tuple([generate.request_id or "" for generate in generates])
    context.in_flight.begin(answer_id, names, request.owner)
    request.at_end.callback(context.in_flight.end, answer_id, names)
    choices = await start_choices(context.llm, generates, field, request.at_end)
    if context.emulation is not None:
        context.emulation.taken(request.began_s)
    if fault is not None and fault.kind == "cut":
        choices.cut_after(int(fault.amount), request.abort)
    return answer_id, choices


async def count_answer(context: ApiContext, request: ApiRequest) -> KeyHolder | None:
    """Count an answer for its key's holder until the request ends; raises 429 above the holder's limit."""
    client: KeyHolder | None = request.client
    if client is not None and client.limited_as is not None:
        request.at_end.callback(await _acquire(context, client, client.limited_as))
    return client


async def _acquire(context: ApiContext, client: KeyHolder, limited_as: str) -> Release:
    """Count the answer for its client and return the function that ends the count; raises 429 at the
    limit.
    """
    try:
        return await context.limits.acquire(limited_as, client.max_requests)
    except LimitReached as full:
        raise ApiError(
            429,
            f"This key has {client.max_requests} unfinished requests, its limit: wait for one of them to "
            "end.",
            param=None,
            code="rate_limit_exceeded",
            headers=retry_after(full.room_in_s),
        ) from None


async def fetched(
    context: ApiContext, request: ApiRequest, body: TermsBody, request_id: str, num_choices: int
) -> bool:
    """Return whether another server computed the prompt, after its keys and values have arrived.

    Raises 400 if nothing can be fetched.
    """
    params = body.kv_transfer_params
    if not params:
        return False
    transfers = None if context.emulation is None else context.emulation.transfers
    if transfers is None:
        raise invalid(not_supported(FIELD, params), FIELD, "unsupported_parameter")
    if num_choices > 1:
        raise invalid(f"{FIELD} allows one choice of one prompt, not {num_choices}.", FIELD)
    request.at_end.callback(transfers.tables.take, request_id)
    wait_s = transfers.begins(params, request_id)
    if wait_s is not None:
        await sleep_until(now_s() + wait_s)
    return wait_s is not None


async def whole_choice(context: ApiContext, choice: AnswerChoice) -> Delta:
    """Return the whole choice as one delta; raises ApiError if it failed."""
    deltas = [await choice.read()]
    while deltas[-1].finish_reason is None:
        deltas.append(await choice.read())
    delta = joined(deltas)
    if delta.finish_reason == "error":
        raise await _failure(context, delta.error or BROKEN)
    return delta


async def _failure(context: ApiContext, message: str) -> ApiError:
    """Return the error of a missing answer: 500 if only this request failed, 503 if no engine is up."""
    health = await context.llm.ask(CheckHealth())
    return ApiError(500, message) if health.serves else unavailable(message, health.retry_after_s)
