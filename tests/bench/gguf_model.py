"""Conversion of a model folder of the engine's benchmark to a GGUF file for llama.cpp.

    PYTHONPATH=LLAMA_CPP/gguf-py python -m tests.bench.gguf_model FOLDER FILE

llama.cpp's own converter knows published tokenizers alone. Weights stay bf16, norms are float32 as there; the
vocabulary is the tokenizer's, filled up with tokens that are never used.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file


def interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of a Llama's queries or keys as llama.cpp turns them: neighbours in pairs, not halves."""
    return weight.view(num_heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(folder: Path, file: Path) -> None:
    """Write one file with the configuration, the vocabulary and the weights."""
    import gguf  # of llama.cpp's tree

    config = json.loads((folder / "config.json").read_text())
    kind, num_layers = config["model_type"], config["num_hidden_layers"]
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(file, kind)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_vocabulary(writer, json.loads((folder / "tokenizer.json").read_text())["model"], config["vocab_size"])

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], num_layers)
    for name, weight in load_file(folder / "model.safetensors").items():
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, heads if "q_proj" in name else key_heads)
        found = names.get_name(name, try_suffixes=(".weight",))
        if weight.ndim == 1:
            writer.add_tensor(found, weight.float().numpy())
        else:
            bits = weight.contiguous().view(torch.uint16).numpy()
            writer.add_tensor(found, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer, tokenizer, vocab_size: int) -> None:  # type: ignore[no-untyped-def]  # gguf is not installed
    """Add the tokens and merges of a byte-level BPE tokenizer."""
    import gguf

    known = {index: token for token, index in tokenizer["vocab"].items()}
    kinds = [gguf.TokenType.NORMAL if i in known else gguf.TokenType.UNUSED for i in range(vocab_size)]
    kinds[0] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([known.get(i, f"<unused{i}>") for i in range(vocab_size)])
    writer.add_token_types(kinds)
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in tokenizer["merges"]])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
