"""Messages between doors and server arrive unchanged."""

from typing import Any

import pytest

from sundog.actors.core.params.logprobs import TokenLogprobs
from sundog.actors.core.params.sampling import Adapter, Constraint, ConstraintKind
from sundog.actors.kernel.stream import Delta
from sundog.actors.messages import ChatMessage, Generate, Health, Reading, Sampling
from sundog.runtime.doors.messages import DOOR_MESSAGES, Asked, Deltas, StreamNews
from sundog.runtime.wire.records import Packer, Unpacker


def crossed(message: Any) -> Any:
    """It, as the other end of a link reads it."""
    return Unpacker(DOOR_MESSAGES).unpack(*Packer(DOOR_MESSAGES).pack(message))


RICH = Sampling(
    temperature=0.5,
    max_tokens=7,
    stop=("\n\n", "end"),
    logit_bias=((3, -1.5),),
    bad_words=("no",),
    logprobs=2,
    constraint=Constraint(ConstraintKind.JSON, '{"type": "object"}', param="response_format"),
)
CALL = {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1.5}'}}], "name": None}


@pytest.mark.parametrize(
    "prompt",
    [
        "a text",
        "",
        (5, 0, 2**27),
        (),
        (ChatMessage("user", "hé\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")),),
        (ChatMessage("assistant", "", CALL), ChatMessage("tool", "4", {"tool_call_id": "1"})),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_a_question_crosses_as_it_is(prompt: Any, n: int) -> None:
    """Whatever it asks, with every field set."""
    generate = Generate(
        prompt,
        RICH,
        request_id="cmpl-1",
        priority=-3,
        cache_salt="salt",
        tenant="t",
        slo_ttft_s=0.5,
        predicted_tokens=9,
        n=n,
        reading=Reading(False, 5, "right", False, True, {"tools": [{"a": [1, None]}], "deep": {"x": 10**30}}),
        slo_tpot_s=0.1,
        slo_e2e_s=9.0,
        adapter=Adapter("lora", "/there"),
        session="s",
    )
    arrived = crossed(Asked(11, generate)).generate
    for name in Generate.__slots__:
        assert getattr(arrived, name) == getattr(generate, name), name


def test_deltas_cross_as_they_are() -> None:
    """Those of many streams in one message, the last ones too."""
    likely = TokenLogprobs(1, -0.5, 3, (1, 2), (-0.5, -0.25))
    first = Delta("a", (1,), 1, None, None, 4, (1.5,), None, (likely,), (None, likely))
    last = Delta("", (), 0, "error", None, 0, (), "it failed", (), (), 2.5, b"\0\1")
    stopped = Delta("b", (2, 3), 2, "stop", 7)
    by_text = Delta("c", (2,), 1, "stop", "end")
    sent = Deltas(
        tuple([StreamNews(number, each) for number, each in enumerate((first, last, stopped, by_text))])
    )
    assert crossed(sent) == sent
    assert crossed(Health("degraded", ("healthy", "draining"), "x", None)).replicas == ("healthy", "draining")
