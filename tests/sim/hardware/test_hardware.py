"""GPUs and models as data: known counts, names, memory, and clear refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.hardware.attention import Heads
from sundog.sim.hardware.formats import dtype_name
from sundog.sim.hardware.gpu import known_gpus, load_gpu
from sundog.sim.hardware.memory import plan_memory
from sundog.sim.hardware.model import load_model
from sundog.sim.hardware.shape import Layer, Mlp
from tests.sim.hardware.params import num_active_params, num_params

PARAMS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_parameters_are_counted_to_the_last_one(name: str) -> None:
    """The counts are those of the published checkpoints."""
    assert num_params(load_model(name)) == PARAMS[name]


def test_active_parameters_leave_out_idle_experts() -> None:
    """Mixtral sends a token to 2 of 8 experts: 12.9 of 46.7 billion."""
    assert num_active_params(load_model("mixtral-8x7b")) == 12_879_925_248
    assert num_active_params(load_model("llama-2-7b")) == PARAMS["llama-2-7b"]


def test_kv_bytes_per_token_follow_the_heads_and_the_dtype() -> None:
    """2 x layers x KV heads x head size x bytes."""
    assert load_model("llama-3.1-8b").kv_bytes_per_token() == 131_072
    assert load_model("llama-2-7b").kv_bytes_per_token() == 524_288
    assert load_model("qwen3-14b").kv_bytes_per_token("float8") == 81_920


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
        ("LLAMA-2-7B", "llama-2-7b"),
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
    ],
)
def test_hugging_face_ids_name_shipped_models(name: str, expected: str) -> None:
    """The part after the slash counts, whatever its case."""
    assert load_model(name).name == expected


def test_a_model_is_read_from_a_folder_or_a_file(tmp_path: Path) -> None:
    """A config.json of Hugging Face's is enough; what is missing has its usual default."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        model = load_model(str(path))
        assert model.layers == ((Layer(Heads(4, 4, 16), Mlp(128), 128), 2),)
        assert model.dtype == "bfloat16"


def test_unknown_names_suggest_the_nearest_and_list_all() -> None:
    """A misspelt name is answered with the right one."""
    with pytest.raises(ConfigError, match="Did you mean llama-3.*qwen3-32b"):
        load_model("llama-3.1-8")
    with pytest.raises(ConfigError, match="Did you mean h100.*rtx-4090"):
        load_gpu("h1000")
    with pytest.raises(ConfigError, match="Did you mean bfloat16"):
        dtype_name("bfloat6")


@pytest.mark.parametrize("name", known_gpus())
def test_gpus_are_plausible(name: str) -> None:
    """Arithmetic outruns memory by the factor that every GPU of these years has."""
    gpu = load_gpu(name)
    assert 30 < gpu.peak("float16") / gpu.memory_bandwidth_bytes_per_s < 600
    assert 15e9 < gpu.memory_bytes < 210e9
    assert gpu.peak("float16") > gpu.peak("float32")


@pytest.mark.parametrize("name", ["H100", "h100 ", "A100", "RTX 4090", "rtx_4090", "L40S", "h200"])
def test_gpu_names_are_taken_as_people_type_them(name: str) -> None:
    """Case, blanks and underscores do not matter."""
    assert load_gpu(name).memory_bytes > 0


def test_a_gpu_file_is_checked_key_by_key(tmp_path: Path) -> None:
    """A misspelt or impossible entry is an error that names it."""
    source = Path("sim/hardware/gpus/h100.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(source)
    assert load_gpu(str(path)) == replace(load_gpu("h100"), key="")
    for old, new, words in (
        ("power_w", "powr_w", "missing power_w, unknown key powr_w"),
        ("power_w = 700", "power_w = -1", "power_w is -1: it must be from 0.1 to 100000"),
        ("power_w = 700", "power_w = nan", "power_w is nan"),
        ("num_sms = 132", "num_sms = 132.5", "num_sms is 132.5: it must be a whole number"),
        ("num_sms = 132", "num_sms = true", "num_sms is True: it must be a number"),
        ('name = "H100', 'name = 5 # "', "name is 5: it must be a text"),
        ("bfloat16 =", "bflot16 =", "peak_flops_per_s 'bflot16'. Did you mean bfloat16"),
        (
            "memory_bandwidth_bytes_per_s = 3",
            "memory_bandwidth_bytes_per_s = 1e-300 # ",
            "must be from 1e.06",
        ),
        ("power_w = 700", 'power_w = "x"', "power_w is 'x'"),
        ("kv_bandwidth = 0.85", "kv_bandwidth = 1.5", "kv_bandwidth is 1.5: it must be from 0.001 to 1"),
        ('link = "nvlink"', 'link = "wire"', "link is 'wire': known are nvlink, pcie, pcie-p2p"),
        ('link = "nvlink"', 'link = "nvlink"\nvendor = "intel"', "vendor is 'intel': known are nvidia, amd"),
        ("num_sms = 132", "", "missing num_sms"),
        ("name =", "name", "not TOML"),
    ):
        assert old in source
        path.write_text(source.replace(old, new))
        with pytest.raises(ConfigError, match=words):
            load_gpu(str(path))


def test_a_link_is_part_of_the_machine(tmp_path: Path) -> None:
    """Behind a colon, after a name or a path; an unknown one is refused with those there are."""
    pair = load_gpu("rtx-pro-6000")
    assert pair.link == "pcie" and load_gpu("h100").link == "nvlink"
    assert load_gpu("RTX PRO 6000:pcie-p2p") == replace(pair, link="pcie-p2p")
    path = tmp_path / "mine.toml"
    path.write_text(Path("sim/hardware/gpus/h100.toml").read_text())
    assert load_gpu(f"{path}:pcie").link == "pcie"
    with pytest.raises(ConfigError, match="link is 'nvlnk': known are nvlink, pcie, pcie-p2p"):
        load_gpu("h100:nvlnk")


def test_kv_blocks_are_near_those_of_real_servers() -> None:
    """vLLM counted 18,038 blocks for Qwen3-14B on an H100 and 2,588 for Llama-3.1-8B on a 4090."""
    qwen = plan_memory(load_model("qwen3-14b"), load_gpu("h100"), max_num_batched_tokens=8192)
    assert qwen.num_blocks == pytest.approx(18_038, rel=0.01)
    llama = plan_memory(load_model("llama-3.1-8b"), load_gpu("rtx-4090"), gpu_memory_utilization=0.9)
    assert llama.num_blocks == pytest.approx(2_588, rel=0.07)


def test_a_model_that_fits_a_gpu_keeps_its_default_context() -> None:
    """Qwen3-32B on 80 GB: 1,024 rows of logits come when the layers are through, so only the larger counts.

    Of 0.92 x 85,027,979,264 bytes the weights take 65,524,246,528; two float32 copies of 1,024 x 151,936
    logits 1,244,659,712, layers 8,192 x (2 x 25,600 + 2 x 5,120) x 2 = 1,006,632,960, the runtime
    600,000,000. A block of 16 tokens takes 64 layers x 2 x 8 heads x 128 x 2 bytes x 16 = 4,194,304: 2,588
    blocks, and 40,960 tokens need 2,561.
    """
    model = load_model("qwen3-32b")
    plan = plan_memory(model, load_gpu("h100"), max_num_seqs=1024, max_num_batched_tokens=8192)
    left = int(0.92 * 85_027_979_264) - model.weight_bytes() - 1_244_659_712 - 600_000_000
    assert plan.num_blocks == left // 4_194_304 == 2_588
    assert plan.num_blocks > model.max_positions / 16 + 1


def test_tensor_parallel_ranks_share_weights_and_kv_heads() -> None:
    """Four ranks hold a quarter each; beyond the KV heads, heads are replicated."""
    model, gpu = load_model("llama-2-70b"), load_gpu("h100")
    four = plan_memory(model, gpu, tensor_parallel_size=4)
    assert four.weight_bytes == model.weight_bytes() // 4
    assert four.block_bytes == 16 * model.kv_bytes_per_token() // 4
    sixteen = plan_memory(model, gpu, tensor_parallel_size=16)
    assert sixteen.block_bytes == plan_memory(model, gpu, tensor_parallel_size=8).block_bytes


def test_too_little_memory_says_how_much_is_needed_and_the_way_out() -> None:
    """138 GB of weights do not fit on one H100; two hold them."""
    with pytest.raises(ConfigError, match=r"138\.\d weights.*tensor-parallel-size to 2.*--gpu"):
        plan_memory(load_model("llama-2-70b"), load_gpu("h100"))
    with pytest.raises(ConfigError, match="must divide the 40 attention heads"):
        plan_memory(load_model("qwen3-14b"), load_gpu("h100"), tensor_parallel_size=3)
    with pytest.raises(ConfigError, match="gpu_memory_utilization is 1.5"):
        plan_memory(load_model("qwen3-14b"), load_gpu("h100"), gpu_memory_utilization=1.5)
