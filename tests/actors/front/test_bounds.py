"""Bounds of every request field, by every entry point; values beyond are refused by name."""

import math
from dataclasses import replace
from typing import Any

import pytest

from sundog.actors.front.codec import Vocabulary
from sundog.actors.front.prompts import spellings
from sundog.actors.graph import open_graph
from sundog.actors.messages import Accepted, Generate, Refused, Sampling
from tests.actors.fakes import FakeBackend, Listener, engine_config, read

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
        ("max_tokens", 10**30),
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
        ("min_p", -0.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.5),
        ("frequency_penalty", math.nan),
        ("logit_bias", ((256, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((3, math.nan),)),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (3, 256)),
        ("bad_words", ("",)),
        ("bad_words", ("word",)),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", -2),
        ("prompt_logprobs", 21),
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


async def test_parameters_are_held_to_their_bounds_however_often_they_come() -> None:
    """Good ones that came before let no others in, and refused ones stay refused."""
    good, bad = Sampling(max_tokens=4), Sampling(max_tokens=4, min_p=-0.1)
    async with open_graph(engine_config(), [FakeBackend()], vocabulary=Vocabulary(size=256)) as client:
        for sampling, is_good in ((good, True), (good, True), (bad, False), (bad, False), (good, True)):
            answer = await client.ask(Generate((1, 2, 3), sampling))
            assert isinstance(answer, Accepted) == is_good
        refused = await client.ask(Generate((1, 2, 3), good, priority=INT64_MAX + 1))
    assert isinstance(refused, Refused) and refused.param == "priority"


async def test_half_a_surrogate_pair_is_no_text() -> None:
    """Python holds what no tokenizer reads."""
    from tests.actors.fakes import Bytes

    async with open_graph(engine_config(), [FakeBackend()], codec=Bytes()) as client:
        refused = await client.ask(Generate("a\ud800b"))
    assert isinstance(refused, Refused) and (refused.kind, refused.param) == ("invalid", "prompt")
    assert "character 1" in refused.reason


async def test_all_log_probabilities_are_for_those_who_raise_the_bound() -> None:
    """-1 is one for each token of the vocabulary, which the engine is told."""
    config = replace(engine_config(), max_logprobs=-1)
    listener = Listener()
    async with open_graph(
        config, [FakeBackend()], vocabulary=Vocabulary(size=256), listeners=[listener]
    ) as client:
        asked = Sampling(max_tokens=1, logprobs=-1, prompt_logprobs=-1)
        await read(await client.ask(Generate((1, 2, 3), asked)))
    sampling = listener.submits[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (256, 256)


@pytest.mark.parametrize(
    ("spelt", "expected"),
    [
        ({"cat": [1], " cat": [2]}, ((1,), (2,))),
        ({"cat": [1], " cat": [9, 1]}, ((1,),)),
        ({"cat": [1, 2], " cat": [1, 3]}, ((1, 2),)),
        ({"cat": [1, 2], " cat": [3, 4]}, ((1, 2), (3, 4))),
        ({"cat": [1], " cat": []}, ((1,),)),
    ],
)
def test_a_bad_word_is_spelt_with_and_without_a_space(spelt: dict[str, list[int]], expected: Any) -> None:
    """With one if that is as short and begins otherwise, as in vLLM; spaces of the client's do not count."""
    for word in ("cat", "  cat"):
        assert spellings([word], spelt.__getitem__) == expected


def test_a_bad_word_of_no_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no token"):
        spellings(["  "], lambda text: [])
