"""Tokenizer of the embedded model, and its chat format.

Byte-level BPE in which every digit is a token of its own, so that numbers are read and written digit by
digit.  Turns are marked by one token per role and closed by the end token, which is also what generation
stops at.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.tiny_model.grammar import Document

PAD, BOS, END = "<|pad|>", "<|bos|>", "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS = (PAD, BOS, END, *ROLES.values())
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] | trim) + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
IGNORED = -100  # the label that torch's cross entropy leaves out
LONG_TURN_TOKENS = 40


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token; fail if the vocabulary lacks it."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(f"the vocabulary has no token {token!r}")
    return found


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a tokenizer that learned its merges from `texts`; encoding a prompt adds BOS in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, token_id(tokenizer, BOS))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_tokens: int) -> None:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and the template."""
    names = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    extra = {"additional_special_tokens": list(ROLES.values())}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        **names,
        **extra,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in (("tokenizer_config", config), ("special_tokens_map", names | extra)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE + "\n")


def encode(tokenizer: Tokenizer, document: Document) -> tuple[list[int], list[int]]:
    """Return token ids and labels of equal length.

    A label is the token itself where the model should learn to write it (the assistant's turns, raw texts and
    long user turns, which tell stories, each with the end token) and IGNORED elsewhere.
    """
    ids, labels = [token_id(tokenizer, BOS)], [IGNORED]
    end = token_id(tokenizer, END)
    for role, text in document.turns or (("", document.text),):
        if role:
            ids.append(token_id(tokenizer, ROLES[role]))
            labels.append(IGNORED)
        body = [*tokenizer.encode(text, add_special_tokens=False).ids, end]
        ids += body
        learn = role in ("assistant", "") or len(body) > LONG_TURN_TOKENS
        labels += body if learn else [IGNORED] * len(body)
    return ids, labels
