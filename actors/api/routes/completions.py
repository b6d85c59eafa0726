"""POST /v1/completions and /v1/chat/completions."""

from dataclasses import dataclass, replace
from functools import partial

from quart import Blueprint, Response

from sundog.actors.api.answers.choices import AnswerChoices, Wanted
from sundog.actors.api.answers.parts import Shaped
from sundog.actors.api.answers.shapes import COMPLETION, ChatShape, Json, ToolShape, text_format
from sundog.actors.api.bodies.chat import ChatBody, read_conversation
from sundog.actors.api.bodies.extras import read_body
from sundog.actors.api.bodies.structured import or_calls
from sundog.actors.api.bodies.texts import CompletionBody
from sundog.actors.api.context import ApiContext
from sundog.actors.api.left_out import noted
from sundog.actors.api.requests import ApiRequest, current_request
from sundog.actors.api.responses import Feed, fed_response, json_response
from sundog.actors.api.routes.generate import PendingAnswer
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.kernel.clock import run_blocking


def completions_routes(context: ApiContext) -> Blueprint:
    """Return the route, bound to its AsyncLLM."""
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    async def create_completion() -> Response:
        request = current_request()
        context.must_generate("Completions API")
        body = await read_body(CompletionBody, request, context)
        adapter = context.check_model(body.model)
        sampling = body.sampling(body.token_limit, context.model.defaults)
        answering = PendingAnswer(context, request, shape=COMPLETION, body=body, adapter=adapter)
        wanted = answering.wanted(sampling, None, only_echo=body.max_tokens == 0)
        answer_id, choices = await answering.start(body.prompt, sampling)
        if body.echo:
            wanted = replace(wanted, echoes=await _echoes(context, body, choices))
        return await answering.respond(answer_id, choices, wanted)

    return routes


async def _echoes(context: ApiContext, body: CompletionBody, choices: AnswerChoices) -> tuple[str, ...]:
    """Return the text of each prompt; none if its tokens are returned anyway, as in vLLM."""
    if body.return_token_ids:
        return ("",) * len(body.prompt)
    tokens = {choice.asked.index: choice.asked.prompt_token_ids for choice in choices.all}
    texts = []
    for index, prompt in enumerate(body.prompt):
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            texts.append(prompt)
        else:
            texts.append(await text_of(context, tokens[index]))
    return tuple(texts)


async def text_of(context: ApiContext, prompt: tuple[int, ...]) -> str:
    """Return a prompt as the model reads it, with special tokens."""
    assert context.codec is not None, "token ids came from it"
    return await run_blocking(partial(context.codec.decode, prompt, skip_special_tokens=False))


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Conversation being answered, whole or in chunks."""

    answering: PendingAnswer
    answer_id: str
    choices: AnswerChoices
    wanted: Wanted
    sampling: Sampling

    @classmethod
    async def begin(
        cls, context: ApiContext, request: ApiRequest, body: ChatBody, id_prefix: str = ChatShape.id_prefix
    ) -> "ChatAnswer":
        """Submit the conversation; raises ApiError if it is refused."""
        adapter = context.check_model(body.model)
        turns = await read_conversation(body.messages, context)
        sampling = body.sampling(body.token_limit, context.model.defaults)
        if (own := sampling.constraint) is not None and body.chosen_tools.kind == "auto":
            sampling = replace(
                sampling, constraint=or_calls(own, context.answers.tool_call_parser, body.tools)
            )
        constrained = sampling.constraint is not None
        form = replace(
            text_format(
                *(body.chosen_tools, body.parallel_tool_calls, constrained, body.may_think, context.answers)
            ),
            shows_thoughts=body.include_reasoning,
            ends_at_calls=context.answers.reasoning_parser == "qwen3",
        )
        if form.calls is not None and form.calls.keeps_special:
            sampling = replace(sampling, skip_special_tokens=False)
        role = body.answering_role
        is_read_on = id_prefix != ChatShape.id_prefix
        shape = ChatShape(role) if form.is_plain else ToolShape(role, form, tells_order=is_read_on)
        shape.id_prefix = id_prefix
        answering = PendingAnswer(context, request, shape=shape, body=body, adapter=adapter)
        wanted = answering.wanted(sampling, (body.echoed,) if body.echoed else None)
        answer_id, choices = await answering.start([turns], sampling)
        if form.thinks is not None:
            choices.count_thoughts(context.answers.thought, form.thinks, form.ends_at_calls)
        if body.return_prompt_text:
            text = await text_of(context, choices.all[0].asked.prompt_token_ids)
            wanted = replace(wanted, prompt_texts=(text,))
        return cls(answering, answer_id, choices=choices, wanted=wanted, sampling=sampling)

    @property
    def num_prompt_tokens(self) -> int:
        return self.choices.all[0].asked.num_prompt_tokens

    @property
    def request_id(self) -> str:
        """Id of the engine's request."""
        return self.choices.all[0].asked.request_id

    async def whole(self) -> Json:
        """Return the whole answer as a chat completion."""
        return await self.answering.whole(self.answer_id, self.choices, self.wanted)

    def chunks(self, shaped: Shaped | None = None) -> Feed:
        """Return the events of the answer: chunks of a chat completion, or `shaped` ones."""
        return self.answering.chunks(self.answer_id, self.choices, self.wanted, shaped)


def chat_routes(context: ApiContext) -> Blueprint:
    """Return the route, bound to its AsyncLLM."""
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    async def create_chat_completion() -> Response:
        request = current_request()
        context.must_generate("Chat Completions API")
        body = await read_body(ChatBody, request, context)
        chat = await ChatAnswer.begin(context, request, body)
        response = fed_response(chat.chunks()) if body.stream else json_response(await chat.whole())
        return noted(response, body.left_out(), context)

    return routes
