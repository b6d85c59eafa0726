"""Structural tags are formats, one in another, of an answer: fixed text, free text, schemas, tags.

Both forms that vLLM reads are read: `structures` with `triggers`, and a `format`, whose kinds are xgrammar's.
Kinds that this grammar cannot say are refused by name, in a ValueError.

Arguments as Qwen's coders write them, `<parameter=name>value</parameter>` one after the other, are read as
xgrammar reads them: in the schema's own order, text as it stands, everything else as JSON.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from runtime.structured.pieces import NOTHING, Piece, PieceWriter

Form = Mapping[str, object]
Ends = tuple[str, ...]
"""One of these follows, and belongs to what is written; none where it is empty."""


def begins(form: Form) -> str | None:
    """The text that something surely begins with."""
    begin = form.get({"const_string": "value", "tag": "begin"}.get(str(form.get("type")), ""))
    return begin if isinstance(begin, str) and begin else None


def refuse(form: Form, *names: str) -> None:
    for name in names:
        if form.get(name) not in (None, False, []):
            raise ValueError(f"{name} = {json.dumps(form[name])[:40]} is not supported: leave it out")


def text_of(form: Form, name: str, least: str = "") -> str:
    value = form.get(name)
    if not isinstance(value, str) or len(value) < len(least):
        raise ValueError(f"{name} must be a text{' that is not empty' if least else ''}")
    return value


def texts_of(form: Form, name: str) -> Ends:
    value = form.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a list of texts")
    return tuple(value)


def forms_of(form: Form, name: str) -> list[Form]:
    value = form.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) for each in value):
        raise ValueError(f"{name} must be a list of objects, at least one")
    return cast(list[Form], value)


END = "</parameter>"
BLANKS = Piece(r"/[\x20\x0A\x0D\x09]*/", is_terminal=True)
PLAIN = {"type", "title", "description", "default", "examples", "enum"}
"""Keywords of text that is written without quotes here."""


def qwen_xml(schema: object, writer: PieceWriter, json_of: Callable[[object], str]) -> Piece:
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
    schema: object, writer: PieceWriter, json_of: Callable[[object], str], shared: Mapping[str, object]
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


REPEATED = {"star": "*", "plus": "+"}
Spell = Callable[[str], str]
SpellJson = Callable[[object, int | None], str]


def tags_grammar(
    spec: object, special_tokens: frozenset[str], json_of: SpellJson, lark_of: Spell, regex_of: Spell
) -> str:
    """The grammar of a structural tag; raises ValueError for what is none.

    Text like `<name>` that is among `special_tokens` is that token. The functions spell a schema (with at
    most so much white space in a row), a grammar and an expression as Lark does.
    """
    if not isinstance(spec, Mapping):
        raise ValueError("a structural tag must be an object")
    form = _legacy(spec) if "structures" in spec else spec.get("format")
    if not isinstance(form, Mapping):
        raise ValueError('a structural tag needs "structures" and "triggers", or a "format"')
    writer = PieceWriter(special_tokens)
    start = _Reader(writer, json_of, lark_of, regex_of).read(form, ())
    return writer.grammar(start)


def _legacy(spec: Form) -> Form:
    tags = [
        {
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": each.get("schema")},
            "end": each.get("end"),
        }
        for each in forms_of(spec, "structures")
    ]
    return {"type": "triggered_tags", "triggers": spec.get("triggers"), "tags": tags}


class _Reader:
    """Writes formats; each method gives what matches one of them, with one of `ends` behind it."""

    def __init__(self, writer: PieceWriter, json_of: SpellJson, lark_of: Spell, regex_of: Spell) -> None:
        self._writer = writer
        self._json_of, self._lark_of, self._regex_of = json_of, lark_of, regex_of
        self._kinds: dict[str, Callable[[Form, Ends], Piece]] = {
            "any_text": self._any_text,
            "or": self._or,
            "sequence": self._sequence,
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "dispatch": self._dispatch,
            "optional": self._optional,
        }
        self._closed: dict[str, Callable[[Form], Piece]] = {
            "const_string": self._const,
            "json_schema": self._json,
            "qwen_xml_parameter": self._xml,
            "regex": lambda form: Piece(
                f"/{self._regex_of(text_of(form, 'pattern', 'x'))}/", is_terminal=True
            ),
            "grammar": lambda form: Piece(f"%lark {{\n{self._lark_of(text_of(form, 'grammar', 'x'))}\n}}"),
            "token": lambda form: self._writer.token(form.get("token")),
            "tags_with_separator": self._separated,
            "star": self._repeated,
            "plus": self._repeated,
            "repeat": self._repeated,
        }

    def read(self, form: object, ends: Ends) -> Piece:
        """Return what matches the format; raises ValueError if nothing here can say it."""
        if not isinstance(form, Mapping):
            raise ValueError("a format must be an object with a type")
        kind = form.get("type")
        if isinstance(kind, str) and kind in self._kinds:
            return self._kinds[kind](form, ends)
        if isinstance(kind, str) and kind in self._closed:
            return self._writer.joined([self._closed[kind](form), self._ends(ends)])
        known = ", ".join(sorted({*self._kinds, *self._closed}))
        raise ValueError(f"a format of type {kind!r} is not supported: use {known}")

    def _ends(self, ends: Ends) -> Piece:
        return self._writer.either([self._writer.literal(end) for end in ends]) if ends else NOTHING

    def _const(self, form: Form) -> Piece:
        return self._writer.literal(text_of(form, "value"))

    def _json(self, form: Form) -> Piece:
        style = form.get("style", "json")
        if style == "qwen_xml":
            return self._xml(form)
        if style != "json":
            raise ValueError(f"the style {style!r} of a json_schema is not supported: use json or qwen_xml")
        refuse(form, "any_order", "excludes")
        schema, most = form.get("json_schema"), form.get("max_whitespace_cnt")
        if not isinstance(schema, Mapping | bool):
            raise ValueError("json_schema must be an object")
        if most is not None and (not isinstance(most, int) or most < 0):
            raise ValueError("max_whitespace_cnt must be a number")
        return Piece(self._json_of(schema, most))

    def _xml(self, form: Form) -> Piece:
        refuse(form, "any_order", "excludes", "max_whitespace_cnt")
        return qwen_xml(form.get("json_schema"), self._writer, lambda schema: self._json_of(schema, None))

    def _any_text(self, form: Form, ends: Ends) -> Piece:
        refuse(form, "max_tokens")
        most = form.get("max_chars")
        if most is not None and (not isinstance(most, int) or most < 0):
            raise ValueError("max_chars must be a number, at least 0")
        return self._writer.text(ends, excludes=texts_of(form, "excludes"), most_characters=most)

    def _or(self, form: Form, ends: Ends) -> Piece:
        return self._writer.either([self.read(each, ends) for each in forms_of(form, "elements")])

    def _optional(self, form: Form, ends: Ends) -> Piece:
        return self._writer.either([self.read(form.get("content"), ends), self._ends(ends)])

    def _sequence(self, form: Form, ends: Ends) -> Piece:
        """Free text before fixed text ends where that first stands."""
        elements = forms_of(form, "elements")
        last = len(elements) - 1
        pieces = [self.read(each, ends if at == last else ()) for at, each in enumerate(elements)]
        if all(piece.is_terminal for piece in pieces):
            return self._writer.joined(pieces)
        for at in range(last):
            if not pieces[at].is_open:
                continue
            fixed = begins(elements[at + 1])
            if fixed is None:
                raise ValueError(f"{elements[at]['type']} must stand last, or before a const_string or a tag")
            behind = ends if at + 1 == last else ()
            pieces[at] = self.read(elements[at], (fixed,))
            is_tag = elements[at + 1].get("type") == "tag"
            rest = self._tag(elements[at + 1], behind, len(fixed)) if is_tag else self._ends(behind)
            pieces[at + 1] = rest
        return self._writer.joined(pieces)

    def _tag(self, form: Form, ends: Ends, begun: int = 0) -> Piece:
        """`begun` characters of the tag's begin are said already."""
        begin, end = form.get("begin"), form.get("end")
        if isinstance(begin, Mapping):
            first = self.read(begin, ())
        elif isinstance(begin, str):
            first = self._writer.literal(begin[begun:])
        else:
            raise ValueError("a tag's begin must be text or a token")
        if isinstance(end, Mapping):
            content = self.read(form.get("content"), ())  # text holds no special token: one ends it anywhere
            return self._writer.joined([first, content, self.read(end, ()), self._ends(ends)])
        own = (end,) if isinstance(end, str) else texts_of(form, "end")
        if not own:
            raise ValueError("a tag's end must be text, a list of texts or a token")
        content = self.read(form.get("content"), ())
        if content.is_open and "" in own:
            raise ValueError(f"the tag {begin!r} holds free text: its end must not be empty")
        inner = self.read(form.get("content"), own) if own != ("",) else content
        return self._writer.joined([first, inner, self._ends(ends)])

    def _separated(self, form: Form) -> Piece:
        tag = self._writer.either([self._tag(each, ()) for each in forms_of(form, "tags")])
        if not form.get("stop_after_first"):
            more = self._writer.joined([self._writer.literal(text_of(form, "separator")), tag])
            tag = self._writer.joined([tag, self._writer.repeated(more, "*")])
        return tag if form.get("at_least_one") else self._writer.either([tag, NOTHING])

    def _repeated(self, form: Form) -> Piece:
        content = self.read(form.get("content"), ())
        if content.is_open:
            raise ValueError(f"free text in {form['type']!r} is not supported: say it once")
        times = REPEATED.get(str(form["type"]))
        if times is None:
            least, most = form.get("min"), form.get("max")
            if not (isinstance(least, int) and isinstance(most, int) and least >= 0 and most >= -1):
                raise ValueError("repeat needs min and max, numbers; a max of -1 is no bound")
            times = f"{{{least},{'' if most == -1 else most}}}"
        return self._writer.repeated(content, times)

    def _triggered(self, form: Form, ends: Ends) -> Piece:
        tags, triggers = forms_of(form, "tags"), texts_of(form, "triggers")
        if not triggers or not all(triggers):
            raise ValueError("triggers must be a list of texts, none of them empty")
        by_trigger: dict[str, list[Form]] = {}
        for tag in tags:
            begin = tag.get("begin")
            if not isinstance(begin, str):
                raise ValueError("the begin of a triggered tag must be text")
            found = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(found) != 1:
                raise ValueError(f"{len(found) or 'no'} triggers begin the tag {begin!r}: exactly one must")
            by_trigger.setdefault(found[0], []).append(tag)
        rules = [
            (trigger, self._writer.either([self._tag(tag, (), len(trigger)) for tag in own]))
            for trigger, own in by_trigger.items()
        ]
        first = None
        if form.get("at_least_one"):
            first = self._writer.either([self._tag(tag, ()) for tag in tags])
        loops = not form.get("stop_after_first")
        return self._free(rules, first, loops, texts_of(form, "excludes"), ends)

    def _dispatch(self, form: Form, ends: Ends) -> Piece:
        found = []
        rules = form.get("rules")
        for rule in rules if isinstance(rules, list) else ():
            if not (isinstance(rule, list) and len(rule) == 2 and isinstance(rule[0], str) and rule[0]):
                raise ValueError("each rule must be a pair of a text and a format")
            content = self.read(rule[1], ())
            if content.is_open:
                raise ValueError("a rule may not end in free text")
            found.append((rule[0], content))
        if not found:
            raise ValueError("rules must be a list of pairs")
        loops = form.get("loop", True) is not False
        return self._free(found, None, loops, texts_of(form, "excludes"), ends)

    def _free(
        self, rules: Sequence[tuple[str, Piece]], first: Piece | None, loops: bool, excludes: Ends, ends: Ends
    ) -> Piece:
        """Text in which each of some beginnings obliges to something; `first` must come before it."""
        texts = tuple(trigger for trigger, _ in rules)
        stops = (*texts, *ends)
        said = [
            self._writer.joined([self._writer.text((trigger,), stops, excludes), rest])
            for trigger, rest in rules
        ]
        tail = self._writer.text(ends, stops, excludes)
        if not loops:
            last = self._ends(ends)
            if first is not None:
                return self._writer.joined([first, last])
            return self._writer.either([*(self._writer.joined([each, last]) for each in said), tail])
        again = self._writer.repeated(self._writer.either(said), "*")
        return self._writer.joined([*([] if first is None else [first]), again, tail])
