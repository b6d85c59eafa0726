"""Model that says a given text: its token depends on the position alone."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

NUM_POSITIONS = 512
SPECIAL = ("<|begin|>", "<|end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
END = 1
TEMPLATE = "{{ 'x' * (messages[-1]['content'] | int) }}{% if tools %}{% endif %}"
"""A prompt of as many tokens as the last message says."""


def _tokenizer() -> Tokenizer:
    """Bytes, and the marks of reasoning and calls as one token each."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in MARKS])
    return tokenizer


def build_parrot(
    folder: Path,
    texts: Sequence[str],
    template_of: Callable[[list[int]], str] = lambda lengths: TEMPLATE,
    context: int = NUM_POSITIONS,
) -> list[int]:
    """Write the model's folder; returns the length of the prompt after which it says each text, and ends.

    `template_of` makes the chat template from these lengths; a longer `context` has nothing to say there.

    Positions are orthogonal vectors of mean 0, which one layer of zeros and the last norm leave in their
    directions; the head has at each position's direction the token that comes next.
    """
    tokenizer, num = _tokenizer(), NUM_POSITIONS
    mixed = torch.randn(num, num, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed[:, 0] = 1
    position_PD = torch.zeros(num, num, dtype=torch.float64)
    position_PD[: num - 1] = torch.linalg.qr(mixed)[0][:, 1:].T
    next_P, lengths = [END] * num, []
    length = 8
    for text in texts:
        lengths.append(length)
        for token in [*tokenizer.encode(text, add_special_tokens=False).ids, END]:
            next_P[length - 1] = token
            length += 1
    assert length < num, "the texts are too long"
    head_VD = torch.zeros(tokenizer.get_vocab_size(), num, dtype=torch.float64)
    for position in range(num - 1):
        head_VD[next_P[position]] += position_PD[position]
    config = GPT2Config(
        vocab_size=len(head_VD),
        n_positions=context,
        n_embd=num,
        n_layer=1,
        n_head=8,
        n_inner=64,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=END,
    )
    model = GPT2LMHeadModel(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        model.transformer.wpe.weight[:num].copy_(position_PD.float())
        model.lm_head.weight.copy_(head_VD.float())
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[END], clean_up_tokenization_spaces=False
    )
    fast.chat_template = template_of(lengths)
    fast.save_pretrained(folder)
    generation = folder / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": END}))
    return lengths


def build_answering(folder: Path, answers: Sequence[tuple[str, str]], otherwise: str) -> None:
    """Write a parrot that says the first answer whose word stands in a message, if tools are offered."""

    def template_of(lengths: list[int]) -> str:
        cases = [
            f"{length} if tools and {json.dumps(word)} in said else "
            for length, (word, _) in zip(lengths, answers, strict=False)
        ]
        said = "{%- set said = messages | map(attribute='content') | map('string') | join(' ') -%}"
        return f"{said}{{{{ 'x' * ({''.join(cases)}{lengths[-1]}) }}}}"

    build_parrot(folder, [*(text for _, text in answers), otherwise], template_of, context=65536)


if __name__ == "__main__":  # for tests whose own environment has no torch
    build_answering(Path(sys.argv[1]), *json.loads(sys.argv[2]))
