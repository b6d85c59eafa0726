"""Errors of a chat completion that stands for another shape name that shape's own fields."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from actors.api.errors import ApiError

FIELD = re.compile(r"^\w+")


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Raise an ApiError under the field's name here, in its message, too; `names` maps a chat's to these."""
    try:
        yield
    except ApiError as error:
        field = FIELD.match(error.param or "")
        if field is None or field[0] not in names:
            raise
        own = names[field[0]]
        message = re.sub(rf"\b{field[0]}\b", own, error.message)
        raise replace(error, message=message, param=FIELD.sub(own, error.param or "")) from None
