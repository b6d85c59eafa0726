"""Requests for another vendor's features: refuse what would change the answer, leave out the rest.

Left out and named, in a header of the answer and once in the log: tools that a vendor runs or trained its
models on, their traces in a conversation, hints for its models.
"""

from collections.abc import Iterable
from itertools import islice

from quart import Response

from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import shown

HEADER = "X-Sundog-Left-Out"
MOST_NAMED = 16


def noted(response: Response, left_out: Iterable[str], context: ApiContext) -> Response:
    """Add a header with the names of left-out parts, such as `tools[1] (web_search)`; the first 16."""
    if named := list(islice(left_out, MOST_NAMED)):
        response.headers[HEADER] = ", ".join(map(_in_ascii, named))
        for each in named:
            context.remark_left_out(each)
    return response


def _in_ascii(name: str) -> str:
    return shown(name).strip('"').encode("ascii", "backslashreplace").decode()
