"""Files of models that are cut off, before or while they are read: one line that names the file."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sundog.runtime.checkpoint.facts import LoadError, read_facts
from sundog.runtime.checkpoint.gguf.folder import write_folder
from sundog.runtime.checkpoint.gguf.header import read_header
from sundog.runtime.checkpoint.gguf.weights import matrices, parts, read_weights
from sundog.runtime.lora.adapters import Adapters
from sundog.runtime.model.loader import load_model
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.text.tokenizer import Tokenizer
from tests.gguf_files import Kind, write
from tests.runtime.adapters import make_adapter


def is_one_line_about(error: pytest.ExceptionInfo[LoadError], path: Path) -> bool:
    """Whether a refusal is one line with the file's name, or its folder's."""
    text = str(error.value)
    return "\n" not in text and (str(path) in text or path.name in text)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_a_gguf_file_that_is_cut_while_it_is_read_is_refused(kind: str, tmp_path: Path) -> None:
    """Its header was read, and then it loses its end, at thirty places; and last it goes."""
    file = write(EMBEDDED_MODEL, tmp_path / "m.gguf", Kind[kind])
    header = read_header(file)
    (folder := tmp_path / "folder").mkdir()
    write_folder(file, folder)
    config = AutoConfig.from_pretrained(folder)
    packed = matrices(header)

    def read(is_packed: bool) -> None:
        if is_packed:
            for tensor in packed.values():
                list(parts(header, tensor, config))
        else:
            read_weights(header, config, torch.bfloat16)

    begin = min(tensor.at for tensor in header.tensors.values())
    last = max((tensor.at + tensor.num_bytes for tensor in packed.values()), default=0)
    ends = {False: max(tensor.at + tensor.num_bytes for tensor in header.tensors.values()), True: last}
    rng, whole = random.Random(2), file.read_bytes()
    for is_packed in [False, True] if packed else [False]:
        file.write_bytes(whole)
        read(is_packed)
        cuts = [rng.randrange(begin) for _ in range(5)] + [rng.randrange(ends[is_packed]) for _ in range(25)]
        for cut in sorted([*cuts, ends[is_packed] - 1], reverse=True):
            with file.open("r+b") as stream:
                stream.truncate(cut)
            with pytest.raises(LoadError, match="cut off while it was read") as caught:
                read(is_packed)
            assert is_one_line_about(caught, file)
    file.unlink()
    with pytest.raises(LoadError, match="No such file") as caught:
        read(is_packed=False)
    assert is_one_line_about(caught, file)


def test_an_adapter_that_is_cut_before_it_is_attached_is_refused(tmp_path: Path) -> None:
    """Its header was read when the server started, and its weights are read after the model's."""
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
    make_adapter(model, folder := tmp_path / "x", ("q_proj", "up_proj"))
    file = folder / "adapter_model.safetensors"
    whole = file.read_bytes()
    for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole)
        adapters = Adapters({"x": folder}, 64)
        file.write_bytes(whole[:cut])
        with pytest.raises(LoadError) as caught:
            adapters.attach(model)
        assert is_one_line_about(caught, file)
    file.unlink()
    with pytest.raises(LoadError) as caught:
        adapters.attach(model)
    assert is_one_line_about(caught, file)


READS: dict[str, Callable[[Path], object]] = {
    "config.json": read_facts,
    "model.safetensors": load_model,
    "tokenizer.json": Tokenizer,
    "tokenizer_config.json": Tokenizer,
    "generation_config.json": Tokenizer,
}


@pytest.mark.parametrize("name", READS)
def test_each_file_of_a_model_that_is_cut_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    """Wherever it is cut, but for the newline at its end."""
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED_MODEL, folder)
    file = folder / name
    whole = file.read_bytes().rstrip()
    rng = random.Random(3)
    for cut in sorted({0, 1, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(12))}):
        file.write_bytes(whole[:cut])
        with pytest.raises(LoadError) as caught:
            READS[name](folder)
        assert is_one_line_about(caught, file), (cut, str(caught.value))
