"""The rule of the door: refuse what would change the answer, leave out what only another's server could do.

What is left out is named, in a header of the answer and once in the log: tools that a vendor runs or that its
models were trained on, their traces in a conversation, hints that its models know.
"""

from collections.abc import Iterable
from itertools import islice

from quart import Response

from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import shown

HEADER = "X-Sundog-Left-Out"
MOST_NAMED = 16


def noted(response: Response, left_out: Iterable[str], context: ApiContext) -> Response:
    """The answer with the names of what was left out, such as `tools[1] (web_search)`; the first 16."""
    if named := list(islice(left_out, MOST_NAMED)):
        response.headers[HEADER] = ", ".join(map(_in_ascii, named))
        for each in named:
            context.remark_left_out(each)
    return response


def _in_ascii(name: str) -> str:
    return shown(name).strip('"').encode("ascii", "backslashreplace").decode()
