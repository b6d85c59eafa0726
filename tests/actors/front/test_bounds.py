"""Every field of a request has bounds, whatever door it comes by; what is beyond is refused by name."""

import math
from typing import Any

import pytest

from actors.front.codec import Vocabulary
from actors.graph import open_graph
from actors.messages import Accepted, Generate, Refused, Sampling
from tests.actors.fakes import FakeBackend, engine_config, read

INT64_MAX = 2**63 - 1


async def ask(sampling: dict[str, Any], **fields: Any) -> Accepted | Refused:
    async with open_graph(engine_config(), [FakeBackend()], vocabulary=Vocabulary(size=256)) as client:
        answer = await client.ask(Generate((1, 2, 3), Sampling(**{"max_tokens": 4} | sampling), **fields))
        if isinstance(answer, Accepted):
            assert (await read(answer)).num_tokens == 4
        return answer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 0),
        ("top_k", INT64_MAX + 1),
        ("seed", INT64_MAX + 1),
        ("seed", -INT64_MAX - 2),
        ("max_tokens", 0),
        pytest.param("max_tokens", 10**5000, id="max_tokens-huge"),
        ("min_tokens", -1),
        ("min_tokens", 5),
        ("stop_token_ids", (256,)),
        ("stop_token_ids", (3, -1)),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("stop", ("",)),
    ],
)
async def test_sampling_beyond_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    """And says what would do."""
    refused = await ask({name: value})
    assert isinstance(refused, Refused) and (refused.kind, refused.param) == ("invalid", name)
    assert len(refused.reason) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", INT64_MAX + 1),
        pytest.param("priority", -(10**5000), id="priority-huge"),
        ("predicted_tokens", -1),
        ("slo_ttft_s", math.nan),
        ("slo_ttft_s", -1.0),
    ],
)
async def test_a_request_beyond_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    """And says what would do."""
    refused = await ask({}, **{name: value})
    assert isinstance(refused, Refused) and (refused.kind, refused.param) == ("invalid", name)
    assert len(refused.reason) < 200


async def test_what_is_just_within_is_served() -> None:
    """To the last number."""
    extremes: dict[str, Any] = {
        "top_k": INT64_MAX,
        "seed": -INT64_MAX - 1,
        "min_tokens": 4,
        "stop_token_ids": (255, 0),
        "top_p": 1.0,
        "temperature": 0.0,
    }
    assert isinstance(await ask(extremes, priority=-INT64_MAX - 1, predicted_tokens=0), Accepted)


async def test_half_a_surrogate_pair_is_no_text() -> None:
    """Python holds what no tokenizer reads."""
    from tests.actors.fakes import Bytes

    async with open_graph(engine_config(), [FakeBackend()], codec=Bytes()) as client:
        refused = await client.ask(Generate("a\ud800b"))
    assert isinstance(refused, Refused) and (refused.kind, refused.param) == ("invalid", "prompt")
    assert "character 1" in refused.reason
