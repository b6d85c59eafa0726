"""POST /v1/chat/completions: one choice for one conversation."""

from dataclasses import dataclass, replace

from quart import Blueprint, Response

from actors.api.answer_format import text_format
from actors.api.bodies.chat import UNSUPPORTED, ChatBody, conversation
from actors.api.bodies.parsing import parse_request
from actors.api.bodies.unsupported import check_extras
from actors.api.choices import Choices
from actors.api.context import ApiContext
from actors.api.edge.request import ApiRequest, current_request
from actors.api.edge.response import Feed, fed_response, json_response
from actors.api.responses.shapes import ChatShape, Json
from actors.api.responses.tool_shape import ToolShape
from actors.api.responses.view import Wanted
from actors.api.routes.completions import text_of
from actors.api.routes.generate import Answering
from actors.api.translated.parts import Shaped
from actors.core.params.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that is being answered; its answer is read whole or in chunks."""

    answering: Answering
    answer_id: str
    choices: Choices
    wanted: Wanted
    sampling: Sampling

    @classmethod
    async def begin(
        cls, context: ApiContext, request: ApiRequest, body: ChatBody, id_prefix: str = ChatShape.id_prefix
    ) -> "Chat":
        """Ask for the answer; raises ApiError if it is refused."""
        adapter = context.check_model(body.model)
        turns = conversation(body.messages)
        sampling = body.sampling(body.token_limit, context.model.defaults)
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
        shape = ChatShape(role) if form.is_plain else ToolShape(role, form)
        shape.id_prefix = id_prefix
        answering = Answering(context, request, shape, body, adapter)
        wanted = answering.wanted(sampling, (body.echoed,) if body.echoed else None)
        answer_id, choices = await answering.start([turns], sampling)
        if form.thinks is not None:
            choices.count_thoughts(context.answers.thought, form.thinks)
        if body.return_prompt_text:
            text = await text_of(context, choices.all[0].asked.prompt_token_ids)
            wanted = replace(wanted, prompt_texts=(text,))
        return cls(answering, answer_id, choices, wanted, sampling)

    @property
    def num_prompt_tokens(self) -> int:
        return self.choices.all[0].asked.num_prompt_tokens

    @property
    def request_id(self) -> str:
        """The engine's name for it."""
        return self.choices.all[0].asked.request_id

    async def whole(self) -> Json:
        """The whole answer, as a chat completion."""
        return await self.answering.whole(self.answer_id, self.choices, self.wanted)

    def chunks(self, shaped: Shaped | None = None) -> Feed:
        """The events of the answer: chunks of a chat completion, or `shaped` otherwise."""
        return self.answering.chunks(self.answer_id, self.choices, self.wanted, shaped)


def chat_routes(context: ApiContext) -> Blueprint:
    """The route, bound to its AsyncLLM."""
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    async def create_chat_completion() -> Response:
        request = current_request()
        context.must_generate("Chat Completions API")
        body = await parse_request(ChatBody, request, context)
        check_extras(body.model_extra or {}, context, UNSUPPORTED)
        chat = await Chat.begin(context, request, body)
        return fed_response(chat.chunks()) if body.stream else json_response(await chat.whole())

    return routes
