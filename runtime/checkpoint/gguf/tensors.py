"""Tensors of a GGUF file: names in transformers' models, and dequantised values."""

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.checkpoint.gguf.header import GgufFile, GgufTensor
from sundog.runtime.checkpoint.gguf.shape import EMBEDDING, FACTORS, HEAD

Bytes = npt.NDArray[np.uint8]
TOP = {
    EMBEDDING: "model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SANDWICHED = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""New names of the norms of models that have a norm before and after both attention and MLP."""


def name_of(file: GgufFile, tensor: GgufTensor) -> str:
    """Return the name of a tensor in transformers' model; LoadError if it has none."""
    if (top := TOP.get(tensor.name)) is not None:
        return top
    parts = PARTS | SANDWICHED if file.architecture in ("gemma2", "gemma3") else PARTS
    matched = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor.name)
    if matched is None or matched[2] not in parts:
        raise file.wrong(f"it has a tensor {tensor.name}, which {file.architecture} has not here")
    return f"model.layers.{matched[1]}.{parts[matched[2]]}.{matched[3]}"


def factors(file: GgufFile) -> list[float]:
    """Return the divisors of rotary frequencies."""
    tensor = file.tensors[FACTORS]
    (rows,) = stored_rows(file, tensor, num_rows=1, num_at_once=1)
    return [float(each) for each in multiplied_out(tensor.kind, rows)[0]]


def stored_rows(file: GgufFile, tensor: GgufTensor, *, num_rows: int, num_at_once: int) -> Iterator[Bytes]:
    """Yield the bytes [O, bytes] of a tensor of `num_rows`, some rows at a time.

    Raises LoadError if the file has gone, or been cut off, since its header was read.
    """
    row_bytes = tensor.num_bytes // num_rows
    try:
        with file.path.open("rb") as stream:
            stream.seek(tensor.at)
            for first in range(0, num_rows, num_at_once):
                num = min(num_at_once, num_rows - first)
                found = np.fromfile(stream, np.uint8, num * row_bytes)
                if len(found) < num * row_bytes:
                    raise LoadError(
                        f"cannot read {file.path}: it was cut off while it was read, within {tensor.name};"
                        " download it again"
                    )
                yield found.reshape(num, row_bytes)
    except OSError as error:
        raise LoadError(f"cannot read {file.path}: {error.strerror or error}") from None


def multiplied_out(kind: str, rows: Bytes) -> npt.NDArray[np.float32]:
    """Return the dequantised values [O, I] of rows [O, bytes]."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if kind in ("F32", "F16"):
        return rows.view("<f4" if kind == "F32" else "<f2").astype(np.float32)
    return np.asarray(dequantize(rows, GGMLQuantizationType[kind]), dtype=np.float32)
