"""Arguments as Qwen's coders write them: `<parameter=name>value</parameter>`, one after the other.

As xgrammar reads it: the schema's own order, text as it stands, everything else as JSON, white space around.
"""

from collections.abc import Callable, Mapping

from runtime.structured.pieces import NOTHING, Piece, Writer

END = "</parameter>"
BLANKS = Piece(r"/[\x20\x0A\x0D\x09]*/", is_terminal=True)
PLAIN = {"type", "title", "description", "default", "examples", "enum"}
"""Keywords of text that is written without quotes here."""


def qwen_xml(schema: object, writer: Writer, json_of: Callable[[object], str]) -> Piece:
    """The properties of an object; raises ValueError for other schemas."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(schema, Mapping) or not isinstance(properties, Mapping) or not properties:
        raise ValueError("arguments in XML need a schema with properties")
    required = schema.get("required") or []
    if not isinstance(required, list) or not all(name in properties for name in required):
        raise ValueError("required must be a list of properties of the schema")
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    pieces = [BLANKS]
    for name, own in properties.items():
        begin = writer.literal(f"<parameter={name}>")
        piece = writer.joined([begin, _value(own, writer, json_of, shared), BLANKS])
        pieces.append(piece if name in required else writer.either([piece, NOTHING]))
    return writer.joined(pieces)


def _value(
    schema: object, writer: Writer, json_of: Callable[[object], str], shared: Mapping[str, object]
) -> Piece:
    """A value and its end."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        if unknown := sorted(set(schema) - PLAIN):
            raise ValueError(f"{unknown[0]} of a text in XML is not supported: leave it out")
        words = schema.get("enum")
        if words is None:
            return writer.text((END,))
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise ValueError("an enum of texts must be a list of texts")
        value = writer.either([writer.literal(word) for word in words])
    else:
        own = {**schema, **shared} if isinstance(schema, Mapping) else schema
        value = Piece(json_of(own))
    return writer.joined([BLANKS, value, BLANKS, writer.literal(END)])
