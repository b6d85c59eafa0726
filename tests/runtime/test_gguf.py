"""Weights, vocabulary and shape of GGUF files equal those that transformers reads from the same file."""

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sundog.actors.messages import ChatMessage
from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.checkpoint.gguf.folder import gguf_folder, write_folder
from sundog.runtime.checkpoint.gguf.header import read_header
from sundog.runtime.checkpoint.gguf.weights import is_left_out, matrices
from sundog.runtime.checkpoint.gguf.whole import WholeWeights, whole
from sundog.runtime.engine import model_loader
from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.model.loader import load_model
from sundog.runtime.model.model import Model
from sundog.runtime.native.few_bits import FewBitsLinear
from sundog.runtime.native.library import open_library
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.step.step import Step
from sundog.runtime.text.tokenizer import Tokenizer
from tests.gguf_files import Kind, stored, write
from tests.runtime.adapters import make_adapter
from tests.runtime.driver import Driver
from tests.runtime.models import COMMON, build_model, random_prompt
from tests.runtime.variants import EACH_VARIANT, needs_kernels

TEXTS = (
    "Hello there, it's 2026 and 12345 of us'll be in Zürich.",
    "  two spaces\n\n\tand tabs; naïve — 你好 🌦️",
    "<|user|>a special token<|end|> in the text",
    "",
    "a",
)


def logits_of(folder: Path, prompt: list[int], **more: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more).eval()
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return found


def ours(file: Path, folder: Path, prompt: list[int]) -> torch.Tensor:
    """The logits of the weights, and of the configuration, that are made of a file to be served."""
    write_folder(file, folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).eval()
    model.load_state_dict(load_model(folder, dtype="float32").state_dict())
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return found


PACKED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q3_K", "Q4_K", "Q6_K")


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_means_what_transformers_reads(kind: str, tmp_path: Path) -> None:
    """Logits of the embedded model, from a file of that type, in float32, by two readers of GGUF."""
    file = write(EMBEDDED_MODEL, tmp_path / "model.gguf", Kind[kind])
    prompt = random_prompt(1, 40)
    (folder := tmp_path / "folder").mkdir()
    theirs = logits_of(tmp_path, prompt, gguf_file=file.name)
    mine = ours(file, folder, prompt)
    assert torch.allclose(mine, theirs, atol=2e-3, rtol=1e-4), (mine - theirs).abs().max()
    assert theirs.std() > 0.1


def test_a_mixture_is_read_as_one_model(tmp_path: Path) -> None:
    """As Q4_K_M is: matrices of one type, embeddings and head of another."""
    file = write(EMBEDDED_MODEL, tmp_path / "model.gguf", Kind.Q4_K, head=Kind.Q6_K)
    prompt = random_prompt(2, 40)
    (folder := tmp_path / "folder").mkdir()
    assert torch.allclose(
        ours(file, folder, prompt), logits_of(tmp_path, prompt, gguf_file=file.name), atol=2e-3
    )


GEMMA = {"head_dim": 16, "tie_word_embeddings": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma": GEMMA,
    "gemma2": {**GEMMA, "sliding_window": 12, "query_pre_attn_scalar": 16},
    "gemma3_text": {**GEMMA, "sliding_window": 12, "query_pre_attn_scalar": 16},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_the_model_that_was_written(family: str, tmp_path: Path) -> None:
    """The logits of a random model are those of its file, of seven layers: Gemma 3's sixth is another."""
    config = AutoConfig.for_model(family, **{**COMMON, "num_hidden_layers": 7, **FAMILIES[family]})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():  # fresh biases and norms are 0 or 1, whatever is done to them
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(0.5, 0.3)
    model.save_pretrained(tmp_path)
    prompt = random_prompt(3, 40)
    file = write(tmp_path, tmp_path / "m.gguf", Kind.F32)
    mine, theirs = ours(file, new(tmp_path / "folder"), prompt), logits_of(tmp_path, prompt)
    assert torch.allclose(mine, theirs, atol=1e-4), (mine - theirs).abs().max()
    assert theirs.std() > 0.1


def test_frequencies_of_llama_3_come_from_the_file(tmp_path: Path) -> None:
    """Its factors are a tensor of the file; the library works the same ones out of four numbers."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    build_model("llama", tmp_path, rope_parameters=rope)
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    turned, _scale = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(tmp_path), "cpu")
    factors = (plain / turned).numpy()
    assert factors.max() > 2 and factors.min() == pytest.approx(1)
    file = write(tmp_path, tmp_path / "m.gguf", Kind.F32, factors=factors)
    prompt = random_prompt(4, 200)
    mine, theirs = ours(file, new(tmp_path / "folder"), prompt), logits_of(tmp_path, prompt)
    assert torch.allclose(mine, theirs, atol=1e-4), (mine - theirs).abs().max()


def test_words_and_template_are_those_of_the_folder_that_was_written(tmp_path: Path) -> None:
    """Tokens, what is skipped, the ends of answers, and a conversation."""
    write_folder(write(EMBEDDED_MODEL, tmp_path / "m.gguf", Kind.BF16), folder := new(tmp_path / "folder"))
    theirs, mine = Tokenizer(EMBEDDED_MODEL), Tokenizer(folder)
    for text in TEXTS:
        assert mine.encode(text) == theirs.encode(text), text
        assert mine.decode(mine.encode(text)) == theirs.decode(theirs.encode(text))
    assert mine.eos_token_ids == theirs.eos_token_ids and mine.vocab_size == theirs.vocab_size
    turns = [ChatMessage("user", "Hello")]
    assert mine.render_chat(turns) == theirs.render_chat(turns)


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
SCORED = ["▁", "a", "b", "c", "d", "ab", "cd", "▁a", "abc", "▁ab", "bc", "▁abcd", "dd", "▁▁", "▁c", "<think>"]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_words_of_sentencepiece_are_merged_as_transformers_merges_them(family: str, tmp_path: Path) -> None:
    """Scores say in which order, of Gemma's files places; what no piece stands for is bytes."""
    build_model(family, tmp_path, vocab_size=300, tie_word_embeddings=True)
    file = write(tmp_path, tmp_path / "m.gguf", Kind.F32, pieces=(PIECES, SCORED))
    write_folder(file, folder := new(tmp_path / "folder"))
    mine = Tokenizer(folder)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in ("abcd", "ab cd  abc", "é ü 你", "abcabcdd dd", "x"):
        assert mine.encode(text) == theirs.encode(text), text
    assert mine.encode("abcd")[0] == 1 and mine.eos_token_ids == (2,)
    assert mine.decode(mine.encode("ab cd é")) == "ab cd é"
    # As in llama.cpp, a text behind a special token is led by a space, too; transformers leads the first.
    names = [mine.token_name(token) for token in mine.encode("a<think>bcd")]
    led = ["▁a", "<think>", "▁", "b", "cd"] if family == "llama" else ["a", "<think>", "b", "cd"]
    assert names == ["<s>", *led]


@pytest.mark.parametrize("kind", PACKED)
def test_packed_weights_are_those_of_ggufs_reader_bit_for_bit(kind: str) -> None:
    """Of any bytes, in scales between 2^-14 and 2, so that no value is infinite."""
    block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    rows = np.random.default_rng(0).integers(0, 256, (6, 512 // block, size), dtype=np.uint8)
    for at in {"Q6_K": (209,), "Q4_K": (1, 3), "Q5_K": (1, 3), "Q4_1": (1, 3), "Q5_1": (1, 3)}.get(
        kind, (1,)
    ):
        rows[..., at] = rows[..., at] & 0x83 | 0x38  # the upper byte of a number of 16 bits
    rows = rows.reshape(6, -1)
    expected = gguf.quants.dequantize(rows, Kind[kind])
    assert np.isfinite(expected).all() and len(np.unique(expected)) > 500
    assert np.array_equal(whole(kind, rows).multiplied_out().numpy(), expected)


def product_of_rounded_rows(parts: WholeWeights, x: torch.Tensor) -> torch.Tensor:
    """Rows of 8 bits in units of 32 inputs, by the weights in double: what kernels compute, but for float."""
    x_NGi = x.double().view(len(x), -1, 32)
    unit_NG1 = x_NGi.abs().amax(-1, keepdim=True) / 127
    rounded = ((x_NGi / unit_NG1).round() * unit_NG1).flatten(1)
    return rounded @ parts.multiplied_out().double().T


@needs_kernels
@pytest.mark.parametrize("variant", EACH_VARIANT)
@pytest.mark.parametrize("kind", PACKED)
def test_kernels_multiply_packed_weights_as_they_are(variant: str, kind: str) -> None:
    """For few rows and many, to a bf16; a row is the same to the bit beside any others."""
    torch.manual_seed(0)
    parts = whole(kind, stored(torch.randn(70, 768).numpy(), Kind[kind]))
    bias_O = torch.randn(70).bfloat16()
    layer = FewBitsLinear(70, bias_O, [parts], open_library(variant))
    x = torch.randn(40, 768).bfloat16()
    expected = product_of_rounded_rows(parts, x) + bias_O.double()
    found = layer(x)
    assert (found - expected).abs().max() < 2**-7 * expected.abs().max()
    for first, end in ((0, 1), (3, 5), (5, 9), (11, 17)):
        assert torch.equal(layer(x[first:end]), found[first:end])


async def served_logits(
    file: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_kernels: bool,
    adapter: Path | None = None,
) -> tuple[torch.Tensor, Model]:
    """The logits behind a prompt, of a file in bfloat16."""
    write_folder(file, folder)
    rows: list[torch.Tensor] = []
    made = Model.logits

    def logits(self: Model, step: Step) -> torch.Tensor:
        rows.append(made(self, step))
        return rows[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Model, "logits", logits)
        if not has_kernels:
            patch.setattr(model_loader, "kernels", lambda: None)
        adapters = {} if adapter is None else {"x": adapter}
        backend = TorchBackend(folder, max_model_len=128, num_gpu_blocks=60, block_size=4, adapters=adapters)
        await backend.load()
        driver = Driver(backend, num_blocks=60)
        driver.submit("a", random_prompt(1, 20), adapter="x" if adapters else None)
        await driver.run(1)
    assert backend._loaded is not None
    return rows[-1][-1].float(), backend._loaded.model


EMBEDDINGS = "model.embed_tokens.weight"


def save_mixture(folder: Path) -> Path:
    """As Q4_K_M is: matrices of Q4_K, a head of Q6_K that embeddings share."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.05}
    build_model("llama", folder, tie_word_embeddings=True, **wide)
    return write(folder, folder / "m.gguf", Kind.Q4_K, head=Kind.Q6_K)


@needs_kernels
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K_M"])
async def test_a_file_is_served_packed_with_the_logits_of_its_weights(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a matrix in bfloat16 but the embeddings; as multiplied out, but for rows of 8 bits."""
    file = save_mixture(tmp_path)
    if kind != "Q4_K_M":
        file = write(tmp_path, file, Kind[kind])
    found, model = await served_logits(file, new(tmp_path / "a"), monkeypatch, has_kernels=True)
    plain, other = await served_logits(file, new(tmp_path / "b"), monkeypatch, has_kernels=False)
    assert model.is_whole and (found - plain).norm() < 0.03 * plain.norm()
    assert plain.std() > 0.01 and not torch.equal(found, plain)
    packed = [each for each in model._model.modules() if isinstance(each, FewBitsLinear)]
    assert len(packed) == 7 * 3 + 1  # seven in each of three layers, and the head
    assert [name for name, each in model._model.named_parameters() if each.ndim > 1] == [EMBEDDINGS]
    assert not any(isinstance(each, FewBitsLinear) for each in other._model.modules())
    stored_bytes = sum(tensor.num_bytes for tensor in matrices(read_header(file)).values())
    exact = {"Q8_0": 1.0, "Q4_0": 1.0, "Q4_K_M": 6 / 4.5}[kind]
    assert sum(each.num_bytes for each in packed[:-1]) == exact * stored_bytes


@needs_kernels
async def test_an_adapter_changes_a_packed_file_as_one_that_is_multiplied_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_mixture(tmp_path)
    make_adapter(
        AutoModelForCausalLM.from_pretrained(tmp_path), adapter := tmp_path / "x", ("q_proj", "up_proj")
    )
    bare, _ = await served_logits(file, new(tmp_path / "a"), monkeypatch, has_kernels=True)
    found, model = await served_logits(
        file, new(tmp_path / "b"), monkeypatch, has_kernels=True, adapter=adapter
    )
    plain, _ = await served_logits(file, new(tmp_path / "c"), monkeypatch, has_kernels=False, adapter=adapter)
    assert sum(isinstance(each, FewBitsLinear) for each in model._model.modules()) == 7 * 3 + 1
    assert (found - plain).norm() < 0.1 * plain.norm() < (found - bare).norm()


@pytest.mark.parametrize("kind", ["Q8_0", "Q3_K"])
def test_types_that_take_more_memory_than_in_the_file_are_logged(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sundog")
    write_folder(write(EMBEDDED_MODEL, tmp_path / "m.gguf", Kind[kind]), new(tmp_path / "folder"))
    said = "weights in Q3_K are multiplied out to 16 bits" in caplog.text
    assert said == (kind == "Q3_K") and "Q8_0" not in caplog.text


def test_what_is_not_packed_is_multiplied_out(tmp_path: Path) -> None:
    """Types and layers the kernels do not have, and both halves of an MLP if one is such; none in float32."""
    file = write(EMBEDDED_MODEL, tmp_path / "m.gguf", Kind.Q8_0)
    write_folder(file, folder := new(tmp_path / "folder"))
    header = read_header(file)
    assert len(matrices(header)) == sum(len(each.shape) == 2 for each in header.tensors.values()) - 1
    up = header.tensors["blk.0.ffn_up.weight"]
    header.tensors[up.name] = replace(up, kind="Q3_K")
    without = matrices(header)
    assert "model.layers.0.mlp.up_proj.weight" not in without
    assert "model.layers.0.mlp.gate_proj.weight" not in without
    assert "model.layers.1.mlp.gate_proj.weight" in without
    for dtype, is_left_out_there in (("bfloat16", True), ("float32", False)):
        model = load_model(folder, dtype=dtype, leaves_out=True)
        assert any(is_left_out(each) for each in model.parameters()) is is_left_out_there


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"architecture": "mamba"}, "its architecture is mamba; llama, qwen2"),
        ({"pre": "no-such-split"}, "its text is split as no-such-split"),
        ({"model": "t5"}, "its tokenizer is t5; gpt2 and llama are served"),
        ({"kind": Kind.TQ2_0}, "is stored as TQ2_0"),
        ({"experts": True}, "belongs to experts"),
        ({"rope_scaling_type": gguf.RopeScalingType.LONGROPE}, "rope.scaling.type is longrope"),
        ({"extra": True}, "it has a tensor blk.0.ssm_a.weight, which llama has not"),
        ({"split": 2}, "it is one of 2 parts of a model: join them with `llama-gguf-split --merge "),
    ],
)
def test_what_is_not_served_is_refused_by_name(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Before a weight is read."""
    file = write(EMBEDDED_MODEL, tmp_path / "m.gguf", Kind.F16, change=changed)
    with pytest.raises(LoadError) as caught, gguf_folder(file):
        pass
    assert words in str(caught.value) and str(file) in str(caught.value)


def test_a_part_is_refused_with_the_command_that_joins_all(tmp_path: Path) -> None:
    """Whichever part it is, the command begins with the first, as llama.cpp wants it."""
    part = write(EMBEDDED_MODEL, tmp_path / "a b-00002-of-00003.gguf", Kind.F16, change={"split": 3})
    with pytest.raises(LoadError) as caught:
        read_header(part)
    first, merged = tmp_path / "a b-00001-of-00003.gguf", tmp_path / "a b.gguf"
    assert f"llama-gguf-split --merge '{first}' '{merged}'`" in str(caught.value)


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def kind(value: int) -> bytes:
    return struct.pack("<I", value)


BEGIN = b"GGUF" + kind(3)
ONE_FIELD = BEGIN + number(0) + number(1)
ONE_TENSOR = BEGIN + number(1) + number(0)
TWO_TENSORS = BEGIN + number(2) + number(0)
ROW = text("t") + kind(1) + number(8) + kind(0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"GG", "ends within its header"),
        (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
        (b"GGUF" + kind(1) + bytes(40), "its version is 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "little-endian"),
        (BEGIN + number(2**60) + number(0), "promises 1,152,921,504,606,846,976 tensors"),
        (BEGIN + number(0) + number(2**60), "fields of metadata"),
        (ONE_FIELD + number(2**62), "a key is 4,611,686,018,427,387,904 bytes long"),
        (ONE_FIELD + number(0), "a key is 0 bytes long"),
        (ONE_FIELD + number(1) + b"\xff" + kind(4) + kind(1), "is not UTF-8"),
        (ONE_FIELD + text("k") + kind(8) + number(2**63), "promises 9,223,"),
        (ONE_FIELD + text("k") + kind(9) + kind(8) + number(2**61), "more than the file"),
        (ONE_FIELD + text("k") + kind(9) + kind(4) + number(2**61), "more than the file"),
        (ONE_FIELD + text("k") + kind(9) + kind(9) + number(1), "GGUF does not define"),
        (ONE_FIELD + text("k") + kind(99), "is of type 99"),
        (BEGIN + number(0) + number(2) + 2 * (text("k") + kind(4) + kind(1)), "k is given twice"),
        (ONE_TENSOR + text("t") + kind(9) + bytes(99), "has 9 dimensions"),
        (ONE_TENSOR + text("t") + kind(1) + number(0) + kind(0) + number(0), "the shape (0,)"),
        (ONE_TENSOR + text("t") + kind(1) + number(8) + kind(77) + number(0), "type 77"),
        (ONE_TENSOR + text("t") + kind(1) + number(8) + kind(8) + number(0), "Q8_0 cannot"),
        (ONE_TENSOR + text("t") + kind(1) + number(2**63) + kind(0) + number(0), "cut off"),
        (ONE_TENSOR + ROW + number(2**63), "cut off"),
        (TWO_TENSORS + ROW + number(0) + ROW + number(32) + bytes(99), "t is given twice"),
        (TWO_TENSORS + ROW + number(0) + ROW.replace(b"t", b"u") + number(16) + bytes(99), "u begins within"),
        (
            ONE_FIELD + text("general.alignment") + kind(4) + kind(3),
            "general.alignment is 3, no power of two",
        ),
    ],
)
def test_a_header_of_any_bytes_is_refused_in_one_line(data: bytes, words: str, tmp_path: Path) -> None:
    """Nothing is believed before it is held against the size of the file."""
    (file := tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(LoadError) as caught:
        read_header(file)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_changed_byte_of_a_header_ends_in_a_folder_or_a_refusal(tmp_path: Path) -> None:
    """Anywhere in it, and wherever the file is cut off."""
    file = write(EMBEDDED_MODEL, tmp_path / "m.gguf", Kind.F16)
    whole, header = file.read_bytes(), read_header(file)
    begin = min(tensor.at for tensor in header.tensors.values())
    rng, refused = random.Random(0), 0
    for number in range(150):
        data, at = bytearray(whole), rng.choice([rng.randrange(400), rng.randrange(begin)])
        data[at] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        (changed := tmp_path / "changed.gguf").write_bytes(data)
        try:
            write_folder(changed, new(tmp_path / f"f{number}"))
        except LoadError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 40
