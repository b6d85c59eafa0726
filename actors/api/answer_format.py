"""How the text of an answer is to be read, from what its client chose and how the model writes."""

from actors.api.bodies.tools import ToolChoice
from actors.api.context import AnswerFormats
from actors.api.errors import invalid
from actors.api.reasoning import starts_thinking
from actors.api.responses.tool_shape import TextFormat
from actors.api.tool_calls import FORMATS, LISTED


def text_format(
    choice: ToolChoice, parallel: bool, is_constrained: bool, may_think: bool, answers: AnswerFormats
) -> TextFormat:
    """Raises 400 for calls that nobody could tell from text.

    An answer that is held to a grammar from its first token on begins with no reasoning that is not marked.
    """
    thinks = None
    if answers.reasoning_parser is not None:
        at_once = is_constrained and answers.thought is None
        thinks = starts_thinking(answers.reasoning_parser, may_think) and not at_once
    match choice.kind:
        case "named":
            return TextFormat(named=choice.name, thinks=thinks)
        case "required":
            return TextFormat(LISTED, thinks=thinks, parallel=parallel)
        case "auto":
            if not answers.auto_tools or answers.tool_call_parser is None:
                raise invalid(
                    'tool_choice "auto" needs a server with --enable-auto-tool-choice and --tool-call-parser:'
                    ' send "required", "none" or a function.',
                    "tool_choice",
                )
            return TextFormat(FORMATS[answers.tool_call_parser], None, thinks, parallel)
        case "none":
            return TextFormat(thinks=thinks)
