"""Messages as bytes: a round trip preserves them, and malformed ones are refused by name."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sundog.actors.core.queue.policy import RankValue
from sundog.actors.messages import Abort, Batch, StepOutput, Submit
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.records import Packer, Unpacker, fingerprint
from sundog.runtime.wire.shapes import element, field_types, is_record, optional
from sundog.runtime.worker.messages import MESSAGES
from tests.bench.bench_wire import decode_step

RANKS = st.recursive(
    st.integers(0, 9) | st.floats(allow_nan=False) | st.just("a"), lambda part: st.tuples(part, part)
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type as the messages declare it."""
    if is_record(hint):
        return st.builds(hint, *map(values, field_types(hint)))
    if hint is RankValue:
        return RANKS
    if hint is object:
        return st.binary(max_size=4)
    if (inner := element(hint)) is not None:
        return st.lists(values(inner), max_size=3).map(tuple)
    if (maybe := optional(hint)) is not None:
        return st.none() | values(maybe)
    if get_origin(hint) is tuple:
        return st.tuples(*map(values, get_args(hint)))
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return st.one_of([values(each) for each in get_args(hint)])
    if hint is float:
        return st.floats(allow_nan=False)
    if hint is int:
        return st.integers(-(2**63), 2**64 - 1)
    assert get_origin(hint) is not Mapping
    return st.from_type(hint)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("record", MESSAGES, ids=lambda record: record.__name__)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_every_message_comes_back_as_it_was(record: type, data: st.DataObject) -> None:
    """Whatever its fields hold."""
    packer, unpacker = Packer(MESSAGES), Unpacker(MESSAGES)
    for message in data.draw(st.lists(values(record), max_size=4)):
        assert unpacker.unpack(*packer.pack(message)) == message


def test_a_message_that_cannot_be_sent_leaves_nothing_behind() -> None:
    """It is refused by name, and the next one comes as it is."""
    packer, unpacker = Packer(MESSAGES), Unpacker(MESSAGES)
    names = tuple(f"r{number}" for number in range(3))
    unpacker.unpack(*packer.pack(Abort(names[:1])))
    for unsendable in (Abort((names[1], "\ud800")), Submit("r2", 0.0, 2**70, 1), object()):
        with pytest.raises(WireError, match=f"{type(unsendable).__name__} cannot be sent"):
            packer.pack(unsendable)
        assert unpacker.unpack(*packer.pack(Abort(names))) == Abort(names)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("tag", range(len(MESSAGES) + 2))
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\xc0", b"\xff" * 20, b"\x9f" * 1000])
def test_bytes_that_are_no_message_are_refused_by_name(tag: int, body: bytes) -> None:
    """Never another error, and nothing that is half a message."""
    if tag:
        with pytest.raises(WireError, match="that is none|unknown tag"):
            Unpacker(MESSAGES).unpack(tag, body)


def test_ends_that_declare_a_message_otherwise_have_another_fingerprint() -> None:
    """Its name, its order among the others, and its fields count."""
    assert fingerprint(MESSAGES) == fingerprint(list(MESSAGES))
    assert len({fingerprint(each) for each in (MESSAGES, MESSAGES[1:], MESSAGES[::-1], (Batch,))}) == 4


def test_a_steps_batch_is_a_diff() -> None:
    """With 256 running decodes nothing is said of them, but of those that grow by a block."""
    packer = Packer(MESSAGES)
    sizes = [len(packer.pack(decode_step(256, step, all_grow=True).batch)[1]) for step in range(2, 40)]
    assert max(sizes) < 48 * 256
    sizes = [len(packer.pack(decode_step(256, step).batch)[1]) for step in range(40, 80)]
    assert max(sizes) < 1024


def test_a_token_takes_little_more_than_the_id_of_its_request() -> None:
    """Fields have no names on the wire."""
    packer, unpacker = Packer(MESSAGES), Unpacker(MESSAGES)
    packed = [packer.pack(decode_step(256, step)) for step in range(2, 20)]
    assert max(len(body) for _, body in packed) < 48 * 256
    outputs = [unpacker.unpack(*each) for each in packed]
    assert outputs == [decode_step(256, step) for step in range(2, 20)]
    assert all(isinstance(output, StepOutput) for output in outputs)
