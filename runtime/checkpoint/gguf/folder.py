"""GGUF file as a model folder: its configuration and tokenizer as files, and a link to the file itself.

All code that reads a folder can read this one; only the weights come from the file (`read_gguf`).
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.checkpoint.gguf.header import GgufFile, read_header
from sundog.runtime.checkpoint.gguf.shape import FACTORS, config_of, with_factors
from sundog.runtime.checkpoint.gguf.tensors import factors, name_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedConfig

_LOG = logging.getLogger("sundog")
LINK = "model.gguf"
PLAIN = ("F32", "F16", "BF16")
"""Types of tensors that are stored as plain numbers."""


@contextmanager
def gguf_folder(file: Path) -> Iterator[Path]:
    """Yield a temporary folder that represents a GGUF file; LoadError names what is not supported."""
    if not file.is_file():
        is_folder = file.is_dir()
        raise LoadError(f"{file} is a folder, no GGUF file" if is_folder else f"{file} does not exist")
    with TemporaryDirectory(prefix="sundog-gguf-") as name:
        folder = Path(name)
        write_folder(file, folder)
        yield folder


def write_folder(file: Path, folder: Path) -> None:
    """Write the files that represent a GGUF file into a folder."""
    from sundog.runtime.checkpoint.gguf.words import Words

    header = read_header(file)
    config = config_of(header)
    for tensor in header.tensors.values():
        if tensor.name != FACTORS:
            name_of(header, tensor)
    words = Words(header)
    if len(words.tokens) > int(str(config["vocab_size"])):
        raise header.wrong(f"it has {len(words.tokens):,} tokens and {config['vocab_size']:,} embeddings")
    ends = words.ends()
    if FACTORS in header.tensors:
        try:
            config = with_factors(config, factors(header))
        except ValueError as error:
            raise header.wrong(str(error)) from None
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends} if ends else {}))
    (folder / "tokenizer.json").write_text(words.tokenizer(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(words.config(), encoding="utf-8")
    (folder / LINK).symlink_to(file.resolve())
    _log_multiplied_out(header)


def _log_multiplied_out(header: GgufFile) -> None:
    """Log the types of matrices that take more memory than in the file, the largest first."""
    from sundog.runtime.checkpoint.gguf.whole import KINDS

    size: dict[str, int] = {}
    for tensor in header.tensors.values():
        if len(tensor.shape) > 1 and tensor.kind not in (*PLAIN, *KINDS):
            size[tensor.kind] = size.get(tensor.kind, 0) + tensor.num_bytes
    if size:
        kinds = ", ".join(sorted(size, key=lambda kind: -size[kind]))
        _LOG.info("%s: weights in %s are multiplied out to 16 bits", header.path, kinds)


def read_gguf(
    folder: Path, config: "PreTrainedConfig", dtype: "torch.dtype", *, leaves_out: bool
) -> "dict[str, Tensor]":
    """Return the weights of the file that a folder represents, as `read_weights` does."""
    from sundog.runtime.checkpoint.gguf.weights import read_weights

    return read_weights(read_header((folder / LINK).resolve()), config, dtype, leaves_out=leaves_out)


def is_gguf(folder: Path) -> bool:
    """Return whether a folder represents a GGUF file."""
    return (folder / LINK).is_symlink()
