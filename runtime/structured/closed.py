"""Schemas as vLLM's default backend reads them: an object has the properties that are named, no others.

JSON Schema itself allows any others, and any other value where no `type` is said: a model that sees the
chance may take it. `additionalProperties: true` allows other properties here, too.
"""

from collections.abc import Mapping

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by name."""
SCHEMAS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords that hold one schema, or a list of them."""
PARTS = ("allOf", "anyOf", "oneOf")
BESIDE = (*PARTS, "if", "not", "$ref", "$dynamicRef")
"""What may say more of the same object."""
ARRAY_IS_OPEN = ("items", "additionalItems", "unevaluatedItems")
Schema = dict[str, object]


def closed(schema: Schema, closes_all: bool = False) -> Schema:
    """The schema with no further properties or items where it names some and says nothing of others.

    What several schemas say together is left as it is, unless it `closes_all`: each would forbid what the
    others ask for.
    """
    return _Closer(closes_all, closes_all or not _is_merged(schema)).walk(schema, is_alone=True)


class _Closer:
    """`closes_definitions` that may be used where several schemas hold at once."""

    def __init__(self, closes_all: bool, closes_definitions: bool) -> None:
        self._closes_all = closes_all
        self._closes_definitions = closes_definitions

    def walk(self, schema: Schema, is_alone: bool) -> Schema:
        """The schema; `is_alone` if no other one says something of the same value."""
        alone = is_alone and not any(name in schema for name in BESIDE)
        found: Schema = {}
        for name, value in schema.items():
            if name in MAPS and isinstance(value, dict):
                own = self._closes_definitions if name in ("$defs", "definitions") else True
                found[name] = {key: self._any(each, own) for key, each in value.items()}
            elif name in PARTS and isinstance(value, list):
                only = is_alone and (name != "allOf" or len(value) == 1) and "properties" not in schema
                found[name] = [self._any(each, only) for each in value]
            elif name == "prefixItems" or name in SCHEMAS:
                found[name] = self._any(value, name not in ("if", "then", "else", "not", "contains"))
            else:
                found[name] = value
        if alone or self._closes_all:
            self._close(found)
        return found

    def _any(self, value: object, is_alone: bool) -> object:
        if isinstance(value, list):
            return [self._any(each, is_alone) for each in value]
        return self.walk(value, is_alone) if isinstance(value, dict) else value

    def _close(self, schema: Schema) -> None:
        if "unevaluatedProperties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = schema.pop("unevaluatedProperties")
        names_some = "properties" in schema or "patternProperties" in schema
        if names_some and "additionalProperties" not in schema:
            properties, required = schema.get("properties") or {}, schema.get("required") or []
            if "patternProperties" in schema or (
                isinstance(properties, dict)
                and isinstance(required, list)
                and all(name in properties for name in required)
            ):
                schema["additionalProperties"] = False
        if "prefixItems" in schema and not any(name in schema for name in ARRAY_IS_OPEN):
            schema["items"] = False
        if not any(name in schema for name in ("type", "enum", "const")):
            if names_some:
                schema["type"] = "object"
            elif "items" in schema:
                schema["type"] = "array"


def _is_merged(value: object) -> bool:
    """Whether definitions may be used where several schemas hold at once."""
    if isinstance(value, list):
        return any(map(_is_merged, value))
    if not isinstance(value, Mapping):
        return False
    parts = value.get("allOf")
    several = isinstance(parts, list) and len(parts) > 1
    beside = "properties" in value and any(name in value for name in BESIDE)
    return several or beside or any(map(_is_merged, value.values()))
