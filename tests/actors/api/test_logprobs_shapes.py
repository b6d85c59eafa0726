"""Log probabilities as JSON: infinities, token ids, and the pieces of a character."""

from sundog.actors.api.answers.logprobs import Logprobs, prompt_logprobs
from sundog.actors.core.params.logprobs import TokenLogprobs
from tests.actors.fakes import Bytes

NEVER = float("-inf")


def entry(token: int, logprob: float = -1.0, **top: float) -> TokenLogprobs:
    return TokenLogprobs(token, logprob, 9, tuple(map(ord, top)), tuple(top.values()))


def test_minus_infinity_is_a_number() -> None:
    """-9999, as OpenAI writes it, in every shape."""
    never = entry(ord("a"), NEVER, b=NEVER)
    lists = Logprobs(Bytes(), 1, False).completion((), (), [never])
    assert lists["token_logprobs"] == [-9999.0] and lists["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]
    (content,) = Logprobs(Bytes(), 2, False).chat([never])["content"]  # type: ignore[misc]
    assert (
        content["logprob"] == -9999.0 and [top["logprob"] for top in content["top_logprobs"]] == [-9999.0] * 2
    )
    assert prompt_logprobs(Bytes(), [None, never])[1] == {
        "97": {"logprob": -9999.0, "rank": 9, "decoded_token": "a"},
        "98": {"logprob": -9999.0, "rank": 1, "decoded_token": "b"},
    }


def test_the_last_token_of_a_character_shows_it() -> None:
    """Across reads; one that would not complete it shows nothing."""
    logprobs = Logprobs(Bytes(), 1, False)
    tokens: list[object] = []
    for byte in "aé🦊".encode():
        tokens += logprobs.completion((), (), [entry(byte)])["tokens"]  # type: ignore[misc]
    assert tokens == ["a", "", "é", "", "", "", "🦊"]


def test_chat_lists_no_more_than_it_was_asked_for() -> None:
    """The token itself comes first, as in vLLM; a completion lists it beside the others."""
    drawn = entry(ord("z"), -5.0, a=-0.1, b=-2.0)
    (content,) = Logprobs(Bytes(), 2, False).chat([drawn])["content"]  # type: ignore[misc]
    assert [top["token"] for top in content["top_logprobs"]] == ["z", "a"]
    lists = Logprobs(Bytes(), 2, False).completion((), (), [drawn])
    assert [list(top) for top in lists["top_logprobs"]] == [["z", "a", "b"]]  # type: ignore[attr-defined]
