"""GGUF files for tests, written by llama.cpp's own package from model folders.

Names, turned queries and keys, and norms are those of llama.cpp's converter, from the package's table of
names and by hand here; nothing of what reads the files is used.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors.torch import load_file

from tests.bench.gguf_model import interleaved

Kind = gguf.GGMLQuantizationType
NAMES = {
    "llama": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "gemma": "GEMMA",
    "gemma2": "GEMMA2",
    "gemma3_text": "GEMMA3",
}
NORMAL, CONTROL, BYTE, USER_DEFINED = 1, 3, 6, 4


def stored(values: np.ndarray, kind: Kind) -> np.ndarray:
    """A matrix in a type; of K types, which the package does not write, random blocks."""
    if kind in (Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        return random_blocks(values, kind)
    return quantize(values.astype(np.float32), kind)


def random_blocks(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Random blocks of a K type, whose scales give values about as large as those of a matrix."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(values.size)
    made = rng.integers(0, 256, (*values.shape[:-1], values.shape[-1] // block, size), dtype=np.uint8)
    spread = float(np.abs(values).mean())
    if kind is Kind.Q3_K:  # d last: values are d * (scale - 32) * q, with q from -4 to 3
        made[..., 108:110] = np.frombuffer(np.float16(spread / 50).tobytes(), np.uint8)
    elif kind is not Kind.Q6_K:  # d and dmin first: values are d * scale * q - dmin * min
        made[..., 0:2] = np.frombuffer(np.float16(spread / 250).tobytes(), np.uint8)
        made[..., 2:4] = np.frombuffer(np.float16(spread / 32).tobytes(), np.uint8)
    else:  # d last: values are d * scale * (q - 32), with scales from -128 to 127
        made[..., 208:210] = np.frombuffer(np.float16(spread / 1000).tobytes(), np.uint8)
    return made.reshape(*values.shape[:-1], -1)


def write(
    folder: Path,
    file: Path,
    kind: Kind,
    *,
    head: Kind | None = None,
    factors: np.ndarray | None = None,
    pieces: tuple[list[str], list[str]] | None = None,
    change: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """The model of a folder as a file whose matrices are of one type.

    `factors` divide the frequencies of positions; `pieces` are a vocabulary of SentencePiece, without and
    with scores; `change` is what makes a file that is not served.
    """
    kind = change.get("kind", kind)
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    arch = gguf.MODEL_ARCH[NAMES[family]]
    writer = gguf.GGUFWriter(file, change.get("architecture", gguf.MODEL_ARCH_NAMES[arch]))
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    add_shape(writer, config)
    if (scaling := change.get("rope_scaling_type")) is not None:
        writer.add_rope_scaling_type(scaling)
    if "split" in change:
        writer.add_uint16("split.count", change["split"])
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    for name, wanted in {"blk.0.ffn_up_exps.weight": "experts", "blk.0.ssm_a.weight": "extra"}.items():
        if wanted in change:
            writer.add_tensor(name, np.zeros((2, 4, 32), np.float32))
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, weight in load_file(folder / "model.safetensors").items():
        weight = weight.float()
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, heads if "q_proj" in name else key_heads)
        if family.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        is_head = name.startswith(("lm_head", "model.embed"))
        add_values(writer, found, weight.contiguous().numpy(), head if head is not None and is_head else kind)
    if pieces is None:
        add_words(writer, folder, config["vocab_size"], change)
    else:
        add_pieces(writer, *pieces, size=config["vocab_size"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The sizes of a model."""
    family, heads = config["model_type"], config["num_attention_heads"]
    key_heads = config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family.startswith("gemma") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_values(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: Kind) -> None:
    """A tensor of a type; vectors are always float32."""
    if values.ndim == 1 or kind is Kind.F32:
        writer.add_tensor(name, values)
    elif kind is Kind.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, stored(values, kind), raw_dtype=kind)


def add_pieces(writer: gguf.GGUFWriter, first: list[str], scored: list[str], *, size: int) -> None:
    """A vocabulary of SentencePiece: the unknown, control tokens and bytes, then pieces, the best first."""
    rest = [f"unused{index}" for index in range(size - len(first) - len(scored))]
    kinds = [2, CONTROL, CONTROL, *[BYTE] * 256]
    kinds += [USER_DEFINED if piece.startswith("<") else NORMAL for piece in scored]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*first, *scored, *rest])
    writer.add_token_scores(
        [*[0.0] * len(first), *(-float(place) for place in range(len(scored) + len(rest)))]
    )
    writer.add_token_types([*kinds, *[5] * len(rest)])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)


def add_words(writer: gguf.GGUFWriter, folder: Path, size: int, change: Mapping[str, Any]) -> None:
    """The folder's byte-level vocabulary; without one, that of bytes alone."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return add_bytes(writer, size)
    made = json.loads(path.read_text())
    known = {index: token for token, index in made["model"]["vocab"].items()}
    known |= {each["id"]: each["content"] for each in made["added_tokens"]}
    special = {each["id"] for each in made["added_tokens"] if each["special"]}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    by_name = {token: index for index, token in known.items()}
    writer.add_tokenizer_model(change.get("model", "gpt2"))
    writer.add_tokenizer_pre(change.get("pre", "smollm"))
    writer.add_token_list([known[index] for index in range(size)])
    writer.add_token_types([CONTROL if index in special else NORMAL for index in range(size)])
    writer.add_token_merges(
        [one if isinstance(one, str) else " ".join(one) for one in made["model"]["merges"]]
    )
    for role in ("bos", "eos", "pad"):
        if isinstance(token := config.get(f"{role}_token"), str):
            getattr(writer, f"add_{role}_token_id")(by_name[token])
    writer.add_add_bos_token(made["post_processor"] is not None)
    if (template := folder / "chat_template.jinja").exists():
        writer.add_chat_template(template.read_text())


def add_bytes(writer: gguf.GGUFWriter, size: int) -> None:
    """A vocabulary of bytes, spelled as GPT-2 does, of which a small model has the first."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    spelled = list(bytes_to_unicode().values())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    both = spelled[65] + spelled[66]
    writer.add_token_list([*spelled[: size - 1], both])
    writer.add_token_types([NORMAL] * size)
    writer.add_token_merges([" ".join(both)])
