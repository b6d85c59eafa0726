"""Serialisation of messages: each travels as the tuple of its fields, without their names.

Fields are packed in declaration order, by msgspec; a value of another type than declared is refused by name.
Both ends number the types alike (`fingerprint`).
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, get_args, get_origin

import msgspec

from sundog.actors.core.queue.policy import RankValue
from sundog.actors.messages.client import ChatMessage, Prompt
from sundog.runtime.wire.frames import NOTHING, WireError
from sundog.runtime.wire.shapes import (
    OPTIONS,
    element,
    field_types,
    is_record,
    optional,
    typed_fields,
    wire_type,
)

Turn = Callable[[Any], Any] | None
"""Function that converts a value for the other side; None if it needs no conversion."""


class Packer:
    """Packer of outgoing messages."""

    def __init__(self, types: Sequence[type]) -> None:
        self._turns = {each: (tag, _packing(each)) for tag, each in enumerate(types, NOTHING + 1)}
        self._encode = msgspec.msgpack.Encoder().encode

    def pack(self, message: object) -> tuple[int, bytes]:
        """Return the tag of the message's type, and its body; WireError for an unknown type."""
        if message is None:
            return NOTHING, b""
        try:
            tag, turn = self._turns[type(message)]
            return tag, self._encode(message if turn is None else turn(message))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"{type(message).__name__} cannot be sent: {error}") from error


class Unpacker:
    """Unpacker of received messages."""

    def __init__(self, types: Sequence[type]) -> None:
        self._turns = [
            (each, msgspec.msgpack.Decoder(wire_type(each)).decode, _unpacking(each)) for each in types
        ]

    def unpack(self, tag: int, body: bytes) -> object:
        """Return the message; WireError if it is invalid."""
        if tag == NOTHING:
            return None
        try:
            record, decode, turn = self._turns[tag - NOTHING - 1]
        except IndexError:
            raise WireError(f"a message with the unknown tag {tag}") from None
        try:
            value = decode(body)
            return value if turn is None else turn(value)
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
            raise WireError(f"a {record.__name__} that is none: {error}") from error


def fingerprint(types: Sequence[type]) -> bytes:
    """Return eight bytes that differ if two ends declare different messages."""
    told: list[str] = []
    seen: set[type] = set()

    def tell(hint: Any) -> None:
        if is_record(hint) and hint not in seen:
            seen.add(hint)
            told.append(f"{hint.__name__}{typed_fields(hint)}")
            for each in field_types(hint):
                tell(each)
        for part in get_args(hint):
            tell(part)

    for each in types:
        told.append(each.__name__)
        tell(each)
    return hashlib.sha256("\n".join(told).encode()).digest()[:8]


def _packing(hint: Any) -> Turn:
    """Return the function that converts values of this type to types that msgspec packs natively."""
    if hint == OPTIONS:
        return json.dumps
    if hint == Prompt:
        turn = _packing(ChatMessage)
        assert turn is not None
        return lambda prompt: [turn(each) for each in prompt] if _is_chat(prompt, ChatMessage) else prompt
    if is_record(hint):
        names = tuple(typed_fields(hint))
        turns = [_packing(each) for each in field_types(hint)]
        return _record_packing(names, turns)
    return _parts(hint, _packing, list)


def _unpacking(hint: Any) -> Turn:
    """Return the function that converts values read by msgspec back to this type."""
    if hint is RankValue:
        return _tupled
    if hint == OPTIONS:
        return json.loads
    if hint == Prompt:
        turn = _unpacking(ChatMessage)
        assert turn is not None
        return lambda prompt: tuple([turn(each) for each in prompt]) if _is_chat(prompt, tuple) else prompt
    if is_record(hint):
        turns = [_unpacking(each) for each in field_types(hint)]
        return _record_unpacking(hint, turns)
    return _parts(hint, _unpacking, tuple)


def _parts(hint: Any, turning: Callable[[Any], Turn], many: type) -> Turn:
    if (maybe := optional(hint)) is not None:
        inner = turning(maybe)
        return None if inner is None else _unless_none(inner)
    if (each := element(hint)) is not None:
        inner = turning(each)
        return None if inner is None else _each(inner, many)
    if get_origin(hint) is tuple:
        turns = [turning(part) for part in get_args(hint)]
        if any(turns):
            return lambda values: tuple(
                [value if turn is None else turn(value) for value, turn in zip(values, turns, strict=True)]
            )
    return None


def _unless_none(turn: Callable[[Any], Any]) -> Turn:
    return lambda value: None if value is None else turn(value)


def _each(turn: Callable[[Any], Any], many: type) -> Turn:
    return lambda values: many([turn(value) for value in values])


def _record_packing(names: tuple[str, ...], turns: Sequence[Turn]) -> Turn:
    if not names:
        return lambda record: ()
    if len(names) == 1:
        get_only, only = attrgetter(*names), turns[0] or _as_it_is
        return lambda record: [only(get_only(record))]
    get = attrgetter(*names)
    turned = [(n, turn) for n, turn in enumerate(turns) if turn is not None]

    def pack(record: object) -> object:
        values = list(get(record))
        for n, turn in turned:
            values[n] = turn(values[n])
        return values

    return pack if turned else get


def _record_unpacking(record: type, turns: Sequence[Turn]) -> Turn:
    turned = [(n, turn) for n, turn in enumerate(turns) if turn is not None]

    def unpack(said: Sequence[object]) -> object:
        if not turned:
            return record(*said)
        values = list(said)
        for n, turn in turned:
            values[n] = turn(values[n])
        return record(*values)

    return unpack


def _tupled(value: object) -> object:
    """Convert lists back to tuples: msgpack has one kind of sequence."""
    return tuple([_tupled(each) for each in value]) if isinstance(value, list) else value


def _is_chat(prompt: object, turn: type) -> bool:
    return isinstance(prompt, tuple) and bool(prompt) and isinstance(prompt[0], turn)


def _as_it_is(value: object) -> object:
    return value
