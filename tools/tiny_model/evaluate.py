"""Evaluation of the embedded model: greedy answers to held-out questions, and how many are right, by kind."""

from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from tools.tiny_model.example import Example
from tools.tiny_model.grammar import KINDS, draw_example

EVALUATION_SEED = 1_000_003


def held_out_examples(num_each: int) -> dict[str, list[Example]]:
    """Return `num_each` held-out examples of every kind; every call returns the same ones."""
    rng = Random(EVALUATION_SEED)
    drawn = [draw_example(rng, held_out=True, kind=k) for k, _ in KINDS for _ in range(num_each)]
    return {e.kind: [x for x in drawn if x.kind == e.kind] for e in drawn}


def is_right(example: Example, answer: str) -> bool:
    """Return whether the answer contains every required text."""
    return all(needle in answer for needle in example.needles)


@torch.inference_mode()
def answers(folder: Path, examples: list[Example], dtype: torch.dtype) -> list[str]:
    """Return greedy answers to the last question of each example; an answer without an end is empty."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the library's own gap
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.eval()  # type: ignore[no-untyped-call]  # the library's own gap
    chats = [[{"role": r, "content": t} for r, t in e.turns[:-1]] for e in examples]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    out = model.generate(**inputs, max_new_tokens=220, do_sample=False)  # type: ignore[operator]  # nn.Module
    new = out[:, inputs["input_ids"].shape[1] :]
    ended = (new == tokenizer.eos_token_id).any(dim=1).tolist()
    texts = tokenizer.batch_decode(new, skip_special_tokens=True)
    return [text if end else "" for text, end in zip(texts, ended, strict=True)]


def accuracy(folder: Path, num_each: int = 60, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Return the share of right answers to held-out questions, by kind."""
    result = {}
    for kind, examples in held_out_examples(num_each).items():
        said = answers(folder, examples, dtype)
        right = sum(is_right(e, a) for e, a in zip(examples, said, strict=True))
        result[kind] = right / len(examples)
    return result
