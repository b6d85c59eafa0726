"""Small random embedding models, in the formats of sentence-transformers and transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedModel

from tests.runtime.models import COMMON, NARROW, VOCAB_SIZE, WINDOW

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{index}" for index in range(VOCAB_SIZE - 4))]
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 514, "pad_token_id": 1},
    "mpnet": {"max_position_embeddings": 514, "pad_token_id": 1},
    "distilbert": {"dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
    "llama": {},
    "qwen3": NARROW,
    "gemma3_text": {**NARROW, **WINDOW, "query_pre_attn_scalar": 16, "use_bidirectional_attention": True},
}


def make_embedder(kind: str, folder: Path, **config: Any) -> PreTrainedModel:
    """A float32 model without a head and a tokenizer of words, saved to `folder`."""
    torch.manual_seed(0)
    settings = AutoConfig.for_model(kind, **{**COMMON, "eos_token_id": 2, **KINDS[kind], **config})
    model: PreTrainedModel = AutoModel.from_config(settings).float().eval()
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


def as_sentence_transformer(
    folder: Path, mode: str, *further: str, max_tokens: int | None = None, **transformer: object
) -> None:
    """Add the files that say how states become vectors; `further` modules come behind the pooling."""
    kinds = ["Transformer", "Pooling", *further]
    rows = []
    for index, kind in enumerate(kinds):
        path = "" if index == 0 else f"{index}_{kind}"
        (folder / path).mkdir(exist_ok=True)
        rows.append(
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
    (folder / "modules.json").write_text(json.dumps(rows))
    modes = {
        f"pooling_mode_{name}": name == mode
        for name in ("cls_token", "mean_tokens", "lasttoken", "max_tokens")
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    asked = {"max_seq_length": max_tokens, **transformer}
    (folder / "sentence_bert_config.json").write_text(json.dumps(asked))


def states(model: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """The last layer's states [L, H] of one prompt alone, by transformers' own forward."""
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)))
    found: torch.Tensor = output.last_hidden_state[0]
    return found
