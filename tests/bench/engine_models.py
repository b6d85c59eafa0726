"""Models of the engine's benchmark, and the highest speed at which this machine could decode them."""

import ctypes
import json
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "llama-4m": {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2048,
        "tie_word_embeddings": False,
        "max_position_embeddings": 16384,
    },
}
"""Qwen3-0.6B's public shape, and a Llama of 4 million parameters."""
VOCAB_SIZE = 1024
READ_BYTES = 1 << 29
NUM_READS = 12


@dataclass(frozen=True, slots=True)
class Shape:
    """What a decode step reads: all weights but the rows of an untied embedding, and each context's keys."""

    weight_bytes: int
    token_kv_bytes: int
    head_weights: int
    query_columns: int
    """Of all layers together."""

    @classmethod
    def of(cls, name: str) -> "Shape":
        """Of a model of the table, in bf16."""
        return cls.made(SHAPES[name])

    @classmethod
    def made(cls, s: dict[str, Any]) -> "Shape":
        """Of a configuration, in bf16."""
        head_width = s.get("head_dim", s["hidden_size"] // s["num_attention_heads"])
        heads, key_heads = s["num_attention_heads"] * head_width, s["num_key_value_heads"] * head_width
        layer = s["hidden_size"] * (2 * heads + 2 * key_heads + 3 * s["intermediate_size"])
        weights = s["num_hidden_layers"] * layer + s["vocab_size"] * s["hidden_size"]
        layers, head = s["num_hidden_layers"], s["vocab_size"] * s["hidden_size"]
        return cls(2 * weights, 2 * 2 * layers * key_heads, head, layers * heads)

    def step_s(self, batch: int, context: float, bytes_per_s: float) -> float:
        """The least time of a step that reads everything once."""
        return (self.weight_bytes + batch * context * self.token_kv_bytes) / bytes_per_s

    def prompt_flops(self, num_tokens: int) -> float:
        """Of a prompt's products: each token meets all weights but the head's, and half the prompt's keys."""
        linear = 2 * self.head_weights + num_tokens * (self.weight_bytes - 2 * self.head_weights)
        return linear + 2 * self.query_columns * num_tokens**2


def make_model(name: str, folder: Path) -> None:
    """Random weights in bf16 and a byte-level BPE tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**SHAPES[name])
    config.architectures = None
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    make_tokenizer(folder)


def make_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer, of this project's docs."""
    from tokenizers import ByteLevelBPETokenizer

    texts = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(text) for text in texts], VOCAB_SIZE, special_tokens=["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def read_bytes_per_s(num_threads: int) -> float:
    """How fast these threads read memory together: the C library's search for a byte that is not there."""
    libc = ctypes.CDLL(None)
    libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.memchr.restype = ctypes.c_void_p
    rooms = [ctypes.create_string_buffer(READ_BYTES) for _ in range(num_threads)]
    for room in rooms:
        ctypes.memset(room, 1, READ_BYTES)

    def read(room: Any) -> None:
        libc.memchr(ctypes.addressof(room), 0xFF, READ_BYTES)

    best = float("inf")
    for _ in range(NUM_READS):
        threads = [threading.Thread(target=read, args=(room,)) for room in rooms]
        begin_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - begin_s)
    return num_threads * READ_BYTES / best


if __name__ == "__main__":  # a process of its own, whose memory is gone when it has made the model
    make_model(sys.argv[1], Path(sys.argv[2]))
