"""The one way from bytes to a checked body.

Law: input is refused, never repaired. Types are strict, null means absent, and the first thing
wrong is named by its field with what would be allowed.
"""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from actors.api.errors import ApiError, invalid, shown


class JsonObject(BaseModel):
    """An object as clients send it: null fields are absent, unknown ones are kept aside."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if isinstance(value, dict):
            return {key: each for key, each in value.items() if each is not None}
        return value


BodyT = TypeVar("BodyT", bound=JsonObject)


def parse(body_type: type[BodyT], data: bytes) -> BodyT:
    """The body that `data` spells; raises 400 naming the first field that is wrong."""
    try:
        return body_type.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _as_api_error(first) from None


def _as_api_error(error: Mapping[str, object]) -> ApiError:
    location, message = error["loc"], str(error["msg"])
    assert isinstance(location, tuple)
    if error["type"] == "json_invalid":
        return invalid(f"The body is not valid JSON: {message.removeprefix('Invalid JSON: ')}.", None)
    if not location:
        return invalid("The body must be a JSON object.", None)
    param = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)[1:]
    if error["type"] == "missing":
        return invalid(f"{param} is required.", param)
    if error["type"] == "value_error":
        # The validators of this package give whole predicates: "must be …".
        return invalid(f"{param} {message.removeprefix('Value error, ')}.", param)
    allowed = message.replace("Input should", "it should")
    return invalid(f"{param} is {shown(error['input'])}: {allowed}.", param)
