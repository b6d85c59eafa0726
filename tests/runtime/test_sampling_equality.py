"""Sampling parameters give the same tokens as the library's processors give one request alone.

In any batch, and however prompts are computed.
"""

import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sundog.actors.core.params.sampling import Sampling
from sundog.actors.front.codec import Vocabulary
from sundog.actors.graph import open_graph
from sundog.actors.messages import Generate
from sundog.runtime.engine.backend import TorchBackend
from tests.actors.fakes import engine_config, read
from tests.runtime.driver import Driver
from tests.runtime.models import VOCAB_SIZE, build_model, random_prompt
from tests.runtime.reference import decode, random_sampling, with_budget, with_words_of

NUM_TOKENS, EOS = 14, 9
Opened = tuple[PreTrainedModel, Path]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("llama")
    return build_model("llama", folder), folder


def backend(folder: Path, num_blocks: int = 200) -> TorchBackend:
    return TorchBackend(
        folder,
        dtype="float32",
        block_size=4,
        num_gpu_blocks=num_blocks,
        max_model_len=128,
        eos_token_ids=(EOS,),
    )


async def drive(folder: Path) -> Driver:
    torch_backend = backend(folder)
    await torch_backend.load()
    return Driver(torch_backend, chunk=11)


KINDS = {
    "repetition": Sampling(temperature=0.0, repetition_penalty=3.0),
    "rewarded repetition": Sampling(temperature=0.0, repetition_penalty=0.3),
    "presence": Sampling(temperature=0.0, presence_penalty=2.0),
    "frequency": Sampling(temperature=0.0, frequency_penalty=2.0),
    "rewarded": Sampling(temperature=0.0, frequency_penalty=-2.0, presence_penalty=-2.0),
    "bias": Sampling(temperature=0.0, logit_bias=tuple((token, -30.0) for token in range(0, VOCAB_SIZE, 2))),
    "allowed": Sampling(temperature=0.0, allowed_token_ids=tuple(range(40, 70))),
    "min_tokens": Sampling(temperature=0.0, min_tokens=10, stop_token_ids=tuple(range(120))),
    "min_p": Sampling(temperature=1.5, seed=3, min_p=0.3),
    "all filters": Sampling(temperature=1.2, seed=3, min_p=0.05, top_k=20, top_p=0.7),
}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_each_parameter_alone_is_the_library_s(llama: Opened, kind: str) -> None:
    """And changes the answer, or its test would say nothing."""
    model, folder = llama
    prompt, sampling = random_prompt(1, 23), KINDS[kind]
    driver = await drive(folder)
    driver.submit("a", prompt, sampling)
    answer = (await driver.run(NUM_TOKENS))["a"]
    assert answer == decode(model, prompt, sampling, NUM_TOKENS, EOS, ends=False)
    plain = Sampling(temperature=sampling.temperature, seed=sampling.seed)
    assert answer != decode(model, prompt, plain, NUM_TOKENS, EOS, ends=False)


async def test_bad_words_are_never_said(llama: Opened) -> None:
    """Of one, two and three tokens, which the answer without them has; the prompt's do not begin one."""
    model, folder = llama
    prompt = random_prompt(1, 23)
    plain = decode(model, prompt, Sampling(temperature=0.0), NUM_TOKENS, EOS, ends=False)
    sampling = with_words_of(Sampling(temperature=0.0), [*plain[:2], prompt[-1], *plain[:5]])
    driver = await drive(folder)
    driver.submit("a", prompt, sampling)
    answer = (await driver.run(NUM_TOKENS))["a"]
    assert answer == decode(model, prompt, sampling, NUM_TOKENS, EOS, ends=False) != plain
    for word in sampling.bad_words_token_ids:
        assert word not in list(zip(*(answer[i:] for i in range(len(word))), strict=False))


@pytest.mark.long(keep=4, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("seed", range(12))
async def test_any_mixture_gives_what_each_gives_alone(llama: Opened, seed: int) -> None:
    """Chunked, preempted, on shared prefixes, left out of steps, beside requests that ask for nothing."""
    model, folder = llama
    rng = random.Random(seed)
    first = random_prompt(seed, 30)
    prompts = {"plain": random_prompt(seed + 50, 9), "shared": first[:26] + random_prompt(seed + 60, 7)}
    prompts |= {"first": first} | {
        f"r{i}": random_prompt(100 * seed + i, rng.randint(1, 40)) for i in range(3)
    }
    wanted = {
        name: with_budget(rng, random_sampling(rng, VOCAB_SIZE), prompt, VOCAB_SIZE)
        for name, prompt in prompts.items()
    } | {"plain": Sampling(temperature=0.0)}
    driver = await drive(folder)
    driver.submit("first", first, wanted["first"])
    for _ in range(4):
        await driver.step()
    driver.submit("shared", prompts["shared"], wanted["shared"], sharing="first")
    for name in ("plain", "r0", "r1", "r2"):
        driver.submit(name, prompts[name], wanted[name])
        await driver.step()
    for _ in range(3):
        decoding = [name for name, sequence in driver.sequences.items() if sequence.decoding]
        await driver.step(idle=tuple(rng.sample(decoding, 1)))
        victim = rng.choice([name for name, sequence in driver.sequences.items() if sequence.running])
        driver.preempt(victim)
        await driver.step()
        driver.admit(victim)
    outputs = await driver.run(NUM_TOKENS)
    for name, prompt in prompts.items():
        num_tokens = len(outputs[name])
        alone = decode(model, prompt, wanted[name], num_tokens, EOS, ends=False)
        assert outputs[name] == alone, (name, wanted[name])
    assert not driver.failed


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_a_whole_engine_gives_what_each_request_gives_alone(
    llama: Opened, seed: int, is_async: bool
) -> None:
    """With its own scheduler, prefix cache and a pool so small that it preempts; deltas bring the scores."""
    model, folder = llama
    rng = random.Random(1000 + seed)
    common = random_prompt(seed, 18)
    prompts = [
        common[: rng.randint(5, 18)] + random_prompt(10 * seed + i, rng.randint(1, 20)) for i in range(9)
    ]
    wanted = [with_budget(rng, random_sampling(rng, VOCAB_SIZE), each, VOCAB_SIZE) for each in prompts]
    wanted = [
        Sampling(**{**fields(each), "max_tokens": NUM_TOKENS, "logprobs": rng.choice((None, 2))})
        for each in wanted
    ]
    config = engine_config(num_gpu_blocks=34, async_scheduling=is_async, max_model_len=64)
    vocabulary = Vocabulary(eos_token_id=EOS, size=VOCAB_SIZE)
    async with open_graph(config, [backend(folder, 34)], vocabulary=vocabulary) as client:
        accepted = [
            await client.ask(Generate(tuple(prompt), sampling))
            for prompt, sampling in zip(prompts, wanted, strict=True)
        ]
        answers = [await read(each) for each in accepted]
    for prompt, sampling, answer in zip(prompts, wanted, answers, strict=True):
        alone = decode(model, prompt, sampling, NUM_TOKENS, EOS, ends=True)
        assert list(answer.token_ids) == alone, sampling
        if sampling.logprobs is None:
            assert answer.logprobs == ()
        else:
            assert [each.token_id for each in answer.logprobs] == alone
            assert {len(each.top_ids) for each in answer.logprobs} == {2}


def fields(sampling: Sampling) -> dict[str, object]:
    return {name: getattr(sampling, name) for name in Sampling.__slots__}


async def test_a_scored_prompt_is_computed_whole_beside_its_cached_twin(llama: Opened) -> None:
    """The second of two equal prompts would hit the first one's blocks; its scores come all the same."""
    _, folder = llama
    prompt = tuple(random_prompt(1, 30))
    scored = Sampling(temperature=0.0, max_tokens=2, prompt_logprobs=1)
    config = engine_config(num_gpu_blocks=200)
    async with open_graph(config, [backend(folder)], vocabulary=Vocabulary(size=VOCAB_SIZE)) as client:
        plain = await read(await client.ask(Generate(prompt, Sampling(temperature=0.0, max_tokens=2))))
        again = await read(await client.ask(Generate(prompt, Sampling(temperature=0.0, max_tokens=2))))
        answer = await read(await client.ask(Generate(prompt, scored)))
    assert plain.prompt_logprobs == () and again.num_cached_tokens > 0 == answer.num_cached_tokens
    first, *rest = answer.prompt_logprobs
    assert first is None and [each.token_id for each in rest if each] == list(prompt[1:])
    assert answer.token_ids == plain.token_ids


async def test_a_request_with_no_token_left_fails_alone(llama: Opened) -> None:
    """Its every allowed token is an end token that may not come yet; the others go on."""
    model, folder = llama
    prompt = random_prompt(1, 12)
    hopeless = Sampling(temperature=0.0, max_tokens=4, min_tokens=2, allowed_token_ids=(EOS,))
    config = engine_config(num_gpu_blocks=200)
    vocabulary = Vocabulary(eos_token_id=EOS, size=VOCAB_SIZE)
    async with open_graph(config, [backend(folder)], vocabulary=vocabulary) as client:
        asked = [
            Generate(tuple(prompt), each) for each in (hopeless, Sampling(temperature=0.0, max_tokens=4))
        ]
        accepted = [await client.ask(each) for each in asked]
        failed, well = [await read(each) for each in accepted]
    assert failed.finish_reason == "error" and "ruled out" in str(failed.error)
    assert list(well.token_ids) == decode(model, prompt, Sampling(temperature=0.0), 4, EOS, ends=True)


async def test_a_bias_can_force_the_end(llama: Opened) -> None:
    config = engine_config(num_gpu_blocks=200)
    vocabulary = Vocabulary(eos_token_id=EOS, size=VOCAB_SIZE)
    async with open_graph(config, [backend(llama[1])], vocabulary=vocabulary) as client:
        forced = Sampling(temperature=1.0, max_tokens=8, min_tokens=3, logit_bias=((EOS, 100.0),))
        answer = await read(await client.ask(Generate((5, 6, 7), forced)))
    assert answer.finish_reason == "stop" and answer.num_tokens == 4 and answer.token_ids[-1] == EOS
