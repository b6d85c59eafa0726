"""LoRA adapters on a live server: named by `model`, listed beside it, independent of each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import openai
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from sundog.runtime.serve import EMBEDDED_MODEL
from tests import warm
from tests.runtime.adapters import Changes, make_adapter, merge
from tests.runtime.models import generate
from tests.runtime.test_serve import Server, sundog_serve

PROMPT = [1, *range(20, 60)]
NUM_TOKENS = 12


@dataclass
class Adapted:
    server: Server
    model: PreTrainedModel
    changes: dict[str, Changes]

    def ask(self, name: str, num_tokens: int = NUM_TOKENS, prompt: Sequence[int] = PROMPT) -> str:
        completion = self.server.client.completions.create(
            model=name, prompt=prompt, max_tokens=num_tokens, temperature=0, extra_body={"ignore_eos": True}
        )
        assert completion.model == name
        return completion.choices[0].text

    def cached(self, name: str, prompt: Sequence[int]) -> int:
        completion = self.server.client.completions.create(model=name, prompt=prompt, max_tokens=1)
        assert completion.usage is not None and completion.usage.prompt_tokens_details is not None
        return completion.usage.prompt_tokens_details.cached_tokens or 0


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    targets = ("q_proj", "v_proj", "down_proj")
    changes = {name: make_adapter(model, folder / name, targets, seed=seed) for seed, name in enumerate("ab")}
    modules = [part for name in "ab" for part in ("--lora-modules", f"{name}={folder / name}")]
    with sundog_serve("--api-key", "secret", "--dtype", "float32", "--enable-lora", *modules) as server:
        yield Adapted(server, model, {"sundog-tiny": {}} | changes)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_model_names_the_adapter_and_answers_as_the_merged_model(adapted: Adapted) -> None:
    """Each twice: the second time on blocks of the prefix cache, which are the adapter's own."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED_MODEL / "tokenizer.json"))
    answers: dict[str, str] = {}
    prompt = [1, *range(120, 160)]  # of no other test
    for name, changes in adapted.changes.items():
        assert adapted.cached(name, prompt) == 0
        answers[name] = adapted.ask(name, prompt=prompt)
        assert adapted.cached(name, prompt) > 0
        assert adapted.ask(name, prompt=prompt) == answers[name]
        merge(adapted.model, changes)
        tokens = generate(adapted.model, prompt, NUM_TOKENS)
        merge(adapted.model, changes, -1)
        assert answers[name].strip() == tokenizer.decode(tokens).strip()
    assert len(set(answers.values())) == 3


def test_prompts_are_scored_by_the_adapter_they_name(adapted: Adapted) -> None:
    """After a step of an adapter, whose rows are no concern of the first scores."""
    adapted.ask("a", 1)
    for name, changes in adapted.changes.items():
        completion = adapted.server.client.completions.create(
            model=name, prompt=PROMPT, max_tokens=1, extra_body={"prompt_logprobs": 0}
        )
        entries = completion.choices[0].model_dump()["prompt_logprobs"][1:]
        merge(adapted.model, changes)
        logprob_TV = adapted.model(torch.tensor([PROMPT])).logits[0].detach().log_softmax(-1)
        merge(adapted.model, changes, -1)
        for position, (token, entry) in enumerate(zip(PROMPT[1:], entries, strict=True)):
            assert abs(entry[str(token)]["logprob"] - float(logprob_TV[position, token])) < 1e-3, name


def test_models_are_listed_with_their_adapters(adapted: Adapted) -> None:
    """As vLLM lists them: the adapter's parent is the model, its root the folder."""
    cards = {card.id: card.model_dump() for card in adapted.server.client.models.list()}
    assert list(cards) == ["sundog-tiny", "a", "b"]
    assert cards["sundog-tiny"]["parent"] is None
    assert cards["a"]["parent"] == "sundog-tiny" and cards["a"]["root"].endswith("/a")
    assert adapted.server.client.models.retrieve("b").id == "b"


def test_an_unknown_name_is_refused_with_the_known_ones(adapted: Adapted) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has .*sundog-tiny.*'?a'?.*b") as caught:
        adapted.ask("c")
    assert caught.value.param == "model"


def test_an_emulated_server_takes_adapters_by_name() -> None:
    """Their folders need not exist, as the GPU need not; several stand behind one flag, or are objects."""
    module = '{"name": "c", "path": "/nowhere", "base_model_name": "qwen3-8b"}'
    arguments = ("--api-key", "secret", "--gpu", "h100", "--enable-lora", "--max-loras", "2")
    modules = ("--lora-modules", "a=/nowhere", "b=/nowhere", "qwen3-8b", "--lora-modules", module)
    with sundog_serve(*arguments, *modules) as server:
        assert [card.id for card in server.client.models.list()] == ["qwen3-8b", "a", "b", "c"]
        assert server.client.completions.create(model="a", prompt="Hello", max_tokens=3).model == "a"


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--lora-modules", "a=/nowhere"), "--lora-modules is given without --enable-lora: add it"),
        (("--enable-lora", "--lora-modules", "a"), "--lora-modules is a: give NAME=DIR"),
        (("--enable-lora", "--lora-modules", "sundog-tiny=/x"), "another model is called sundog-tiny"),
        (("--enable-lora", "--lora-modules", '{"name": "a", "dir": "/x"}'), "dir is unknown; give NAME=DIR"),
        (
            ("--enable-lora", "--lora-modules", '{"name": "a", "path": "/x", "base_model_name": "gpt"}'),
            "its base model is gpt, and sundog-tiny is served",
        ),
        (("--enable-lora", "--lora-modules", "a=/nowhere"), "/nowhere has no adapter_config.json"),
    ],
)
def test_a_mistake_in_the_adapters_is_one_line(arguments: tuple[str, ...], reason: str) -> None:
    done = warm.run("sundog", "serve", "--port", "0", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr and done.stderr.count("\n") == 1
