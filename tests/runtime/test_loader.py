"""Folders that cannot be served are refused with one clear error; others give their facts."""

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sundog.actors.core.config import ConfigError
from sundog.runtime.checkpoint.facts import LoadError, check_context, read_facts
from sundog.runtime.checkpoint.weights import file_tensors
from sundog.runtime.lora.peft import read_adapter
from sundog.runtime.model.loader import load_model
from tests.core.traces import num_cases
from tests.runtime.models import build_model


def folder_with(path: Path, **config: object) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"")
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    build_model("llama", folder)
    return folder


def test_a_load_error_is_a_config_error() -> None:
    """The command line shows it as one line, exit code 2."""
    assert issubclass(LoadError, ConfigError)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"nowhere does not exist; give a folder, or OWNER/NAME"):
        read_facts(tmp_path / "nowhere")


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no config\.json"):
        read_facts(tmp_path)


def test_an_unreadable_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"cannot read .*config\.json"):
        read_facts(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", "many"), ("max_position_embeddings", {}), ("architectures", "LlamaForCausalLM")],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    folder_with(tmp_path, **{"model_type": "llama", field: value})
    with pytest.raises(LoadError, match=rf"cannot read .*config\.json: {field} is "):
        read_facts(tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "llava", "vision_config": {}}, "multimodal"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "not a causal"),
    ],
)
def test_other_kinds_of_models_are_refused(tmp_path: Path, config: dict[str, object], reason: str) -> None:
    with pytest.raises(LoadError, match=f"{reason}.*decoder-only text models"):
        read_facts(folder_with(tmp_path, **config))


def test_weights_in_another_format_are_refused(tmp_path: Path) -> None:
    folder_with(tmp_path, model_type="llama")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(LoadError, match=r"no \*\.safetensors .*only pytorch_model\.bin"):
        read_facts(tmp_path)


def test_an_unknown_model_type_is_refused(tmp_path: Path) -> None:
    folder_with(tmp_path, model_type="no_such", architectures=["NoSuchForCausalLM"])
    with pytest.raises(LoadError, match="no_such"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (
            "hidden_act",
            "no_such",
            "hidden_act of config.json is 'no_such', which transformers [0-9.]+ does not",
        ),
        ("rope_parameters", {"rope_type": "odd"}, "rope_parameters.rope_type of config.json is 'odd', which"),
        ("dtype", "float17", "dtype of config.json is 'float17', which transformers"),
        ("num_hidden_layers", 0, "num_hidden_layers of config.json is 0"),
        ("num_hidden_layers", -1, "num_hidden_layers of config.json is -1"),
        ("quantization_config", "fp8", "quantization_config is 'fp8'; it should be an object or null"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(
    field: str, value: object, reason: str, tmp_path: Path, llama: Path
) -> None:
    """And not only its value, which is all that the library's errors say."""
    copied(llama, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(LoadError, match=reason) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Two files of weights and their index, in place of one file."""
    names = sorted(tensors)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        part = {name: tensors[name] for name in names if files[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def copied(llama: Path, folder: Path) -> dict[str, torch.Tensor]:
    """The model's files, which a test then spoils; returns its tensors."""
    for file in llama.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return load_file(llama / "model.safetensors")


def test_shards_are_one_model(tmp_path: Path, llama: Path) -> None:
    """Whatever file a tensor is in."""
    tensors = copied(llama, tmp_path)
    shards(tmp_path, tensors)
    loaded = load_model(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def cut_off(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def cut_off_in_the_header(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])


def lose_a_shard(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    shards(folder, tensors)
    (folder / "model-00002-of-00002.safetensors").unlink()


def lose_the_index(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    shards(folder, tensors)
    (folder / "model.safetensors.index.json").unlink()


def empty_the_index(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    shards(folder, tensors)
    (folder / "model.safetensors.index.json").write_text("{}")


def another_shape(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(8, 64)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def spoil_the_index(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    shards(folder, tensors)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "../model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def integers(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(96, 64, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut_off, r"its header promises [\d,]+ bytes and it has [\d,]+; download it again"),
        (cut_off_in_the_header, "it is cut off or no safetensors file"),
        (lose_a_shard, r"lacks model-00002-of-00002\.safetensors"),
        (lose_the_index, r"has shards of weights but no model\.safetensors\.index\.json"),
        (empty_the_index, r"index\.json: it has no weight_map"),
        (spoil_the_index, r"model\.norm\.weight is in '\.\./model-00001.*', which is no file beside it"),
        (another_shape, r"up_proj\.weight has the shape 8 x 64, and the model of config\.json 96 x 64"),
        (integers, r"up_proj\.weight is stored as I8, and config\.json has no quantization_config"),
    ],
)
def test_broken_weights_are_refused_in_one_line(
    spoil: Callable[[Path, dict[str, torch.Tensor]], None], reason: str, tmp_path: Path, llama: Path
) -> None:
    """Never loaded by half, and never made up."""
    spoil(tmp_path, copied(llama, tmp_path))
    with pytest.raises(LoadError, match=reason) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


Header = dict[str, Any]
UP = "model.layers.1.mlp.up_proj.weight"


def rewritten(file: Path, change: Callable[[Header], object]) -> None:
    """Change the header of a safetensors file by hand, as somebody would who wants to harm its reader."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    changed = change(header)
    text = (changed if isinstance(changed, str) else json.dumps(header)).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def overlap(header: Header) -> None:
    """Two tensors in the same bytes: the second is not where the first ends."""
    first, second = sorted((row["data_offsets"], name) for name, row in header.items() if "dtype" in row)[:2]
    size = second[0][1] - second[0][0]
    header[second[1]]["data_offsets"] = [first[0][0], first[0][0] + size]


MALICIOUS: dict[str, tuple[Callable[[Header], object], str]] = {
    "an unknown type": (lambda h: h[UP].update(dtype="F1024"), "is stored as F1024, no type of the format"),
    "a type that is none": (lambda h: h[UP].update(dtype=["F32"]), r"is stored as \['F32'\], no type of"),
    "another type": (lambda h: h[UP].update(dtype="F64"), "bytes, not those of its shape and type"),
    "an endless shape": (lambda h: h[UP].update(shape=[2**62, 2**62]), "not those of its shape and type"),
    "a negative shape": (lambda h: h[UP].update(shape=[-96, -64]), r"has the shape \(-96, -64\)"),
    "half a row": (lambda h: h[UP].update(shape=[96.5, 64]), r"has the shape \(96\.5, 64\)"),
    "an overlap": (overlap, "begins at byte 0, where|where [\\d,]+ is its place"),
    "an end before a begin": (lambda h: h[UP].update(data_offsets=[9, 1]), "its header is no safetensors"),
    "a place before the file": (lambda h: h[UP].update(data_offsets=[-9, 1]), "its header is no safetensors"),
    "a place behind the file": (lambda h: h[UP].update(data_offsets=[0, 2**60]), "its header promises"),
    "an endless place": (lambda h: h[UP].update(data_offsets=[0, float("inf")]), "is no safetensors header"),
    "a name twice": (
        lambda h: json.dumps(h)[:-1] + f',"{UP}":{json.dumps(h[UP])}}}',
        "no safetensors header",
    ),
    "a deep header": (lambda h: "[" * 100_000, "its header is no safetensors header"),
    "a list": (lambda h: "[1, 2]", "its header is no safetensors header"),
    "a long name": (lambda h: h.update({"x\n" * 5000: h[UP] | {"dtype": "no"}}), "is stored as no, no type"),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_a_malicious_header_is_refused_in_one_line_for_models_and_adapters(
    name: str, tmp_path: Path, llama: Path
) -> None:
    """Before a byte of the tensors is read, and before torch takes memory for what a shape says."""
    change, reason = MALICIOUS[name]
    copied(llama, tmp_path)
    rewritten(tmp_path / "model.safetensors", change)
    with pytest.raises(LoadError, match=reason) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    (tmp_path / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    with pytest.raises(LoadError, match=reason) as caught:
        read_adapter(adapter, max_rank=8)
    assert "\n" not in str(caught.value)


def test_whatever_is_done_to_a_header_is_one_refusal_or_the_same_model(tmp_path: Path, llama: Path) -> None:
    """Random changes of single bytes: never another error, never other tensors of that name."""
    rng, data = random.Random(7), (llama / "model.safetensors").read_bytes()
    length, file = 8 + int.from_bytes(data[:8], "little"), tmp_path / "model.safetensors"
    refused = 0
    for _ in range(num_cases(300)):
        place, byte = rng.randrange(length), rng.choice([rng.randrange(256), *b'0123456789-.eE[]{}",'])
        file.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
        try:
            found = file_tensors(file)
        except LoadError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            # What passes is a file that the library reads, too, with these very shapes.
            assert {name: tuple(tensor.shape) for name, tensor in load_file(file).items()} == {
                name: stored.shape for name, stored in found.items()
            }
    assert refused > 100


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "model.pth", "consolidated.ckpt"])
def test_pickles_are_refused_by_name_and_never_opened(file: str, tmp_path: Path, llama: Path) -> None:
    """Reading one runs its code: this one would leave a folder."""
    copied(llama, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    mark, pickled = tmp_path / "it ran", f"cos\nmkdir\n(V{tmp_path / 'it ran'}\ntR.".encode()
    pickle.loads(pickled)
    assert mark.exists(), "the attack works"
    mark.rmdir()
    (tmp_path / file).write_bytes(pickled)
    with pytest.raises(LoadError, match=rf"no \*\.safetensors weights \(only {file}, which run code"):
        load_model(tmp_path)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    (adapter / "adapter_model.bin").write_bytes(pickled)
    with pytest.raises(
        LoadError, match=r"has no adapter_model\.safetensors \(only adapter_model\.bin, which runs"
    ):
        read_adapter(adapter, max_rank=8)
    assert not mark.exists()


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": [1]}])
def test_an_index_needs_nothing_but_its_map(metadata: dict[str, object], tmp_path: Path, llama: Path) -> None:
    """Which tensor is in which file."""
    tensors = copied(llama, tmp_path)
    shards(tmp_path, tensors)
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": json.loads(file.read_text())["weight_map"], **metadata}))
    loaded = load_model(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_weights_without_a_place_are_a_remark(
    tmp_path: Path, llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is the same without them; a model of another kind would lack weights, too."""
    tensors = copied(llama, tmp_path) | {"model.layers.7.extra.weight": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    load_model(tmp_path)
    assert "the model has no place for model.layers.7.extra.weight" in caplog.text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_take_the_type_that_is_asked_for(dtype: str, llama: Path) -> None:
    assert load_model(llama, dtype=dtype).dtype == getattr(torch, dtype)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"it is a LoRA adapter: serve its base model with --lora-modules"):
        read_facts(tmp_path)


def test_missing_weights_are_refused_rather_than_made_up(tmp_path: Path, llama: Path) -> None:
    """The library would fill them with random numbers and a warning."""
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lacks weights: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(tmp_path)


def test_an_unknown_dtype_is_refused(llama: Path) -> None:
    with pytest.raises(LoadError, match="dtype 'float12' is unknown"):
        load_model(llama, dtype="float12")


def test_a_device_that_is_not_there_is_refused(llama: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(LoadError, match="sees no CUDA device"):
        load_model(llama, device="cuda")


def test_how_threads_wait_is_set_before_torch_is_imported() -> None:
    """Later it has no effect, and a step on busy cores takes several times as long."""
    code = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Watch())
import sundog.runtime.engine.backend
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1000"]


def test_facts_are_those_of_the_configuration(llama: Path) -> None:
    facts = read_facts(llama)
    assert (facts.model_type, facts.architecture) == ("llama", "LlamaForCausalLM")
    assert (facts.vocab_size, facts.max_position_embeddings) == (256, 512)


def test_a_context_that_changes_the_rotary_embedding_is_refused(tmp_path: Path) -> None:
    """Keys kept before the change would be wrong after it."""
    rope = {"rope_type": "dynamic", "original_max_position_embeddings": 4096}
    folder_with(tmp_path, model_type="llama", rope_parameters=rope, max_position_embeddings=131072)
    check_context(tmp_path, 4096)
    with pytest.raises(LoadError, match="use --max-model-len 4096"):
        check_context(tmp_path, 4097)
