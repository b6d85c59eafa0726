"""Models through the command line: prices, refusals and remarks."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import warm

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Twenty requests."""
    return warm.run("sundog", "replay", TRACE, "--limit", "20", "--json", *arguments)


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"sim/hardware/models/{name}.json").read_text())
    return found


def test_deepseek_is_no_dense_model_that_fits_on_one_gpu(tmp_path: Path) -> None:
    """674 GB of weights: refused on one H100 with the number of GPUs it takes, played on eight H200."""
    (tmp_path / "config.json").write_text(json.dumps(config("deepseek-v3")))
    done = replay("--model", str(tmp_path), "--gpu", "h100")
    assert done.returncode == 2 and done.stdout == ""
    assert "67" in done.stderr and "raise --tensor-parallel-size to 16" in done.stderr
    done = replay("--model", str(tmp_path), "--gpu", "h200", "-tp", "8")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_finished"] == 20


def test_formats_beside_a_config_leave_more_room(tmp_path: Path) -> None:
    """A checkpoint whose hf_quant_config.json says FP8 fits where its 16-bit twin does not."""
    (tmp_path / "config.json").write_text(json.dumps(config("llama-3.1-70b")))
    plain = replay("--model", str(tmp_path), "--max-model-len", "4096")
    assert plain.returncode == 2 and "141" in plain.stderr
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    done = replay("--model", str(tmp_path), "--max-model-len", "4096", "--num-gpu-blocks", "500")
    assert done.returncode == 0, done.stderr
    assert "kv_cache_quant_algo is left out: give --kv-cache-dtype fp8" in done.stderr
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "W4A8"}}')
    done = replay("--model", str(tmp_path))
    assert done.returncode == 2 and "modelopt with quant_algo 'W4A8'" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "kimi_linear"}', "most of its layers have linear attention"),
        ('{"model_type": "deepseek_v4"}', "it has sparse attention"),
        ('{"model_type": "mamba2"}', "model_type is 'mamba2', which the cost model does not know"),
        ("[]", "a config.json holds one object, not list"),
        ('{"text_config": {"text_config": {}}}', "text_config holds another text_config"),
    ],
)
def test_a_config_that_is_not_known_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    """Exit code 2, the reason, no traceback."""
    (tmp_path / "config.json").write_text(text)
    done = replay("--model", str(tmp_path))
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_folder_without_a_config_is_one_line(tmp_path: Path) -> None:
    """The path that was tried is in it."""
    done = replay("--model", str(tmp_path))
    assert done.returncode == 2 and "cannot read the model's config" in done.stderr


def test_formats_shrink_weights_and_what_is_dequantised_is_said() -> None:
    """Half the bytes, faster tokens, more blocks; a cache of eight bits holds twice the tokens."""

    def figures(*arguments: str) -> dict[str, Any]:
        done = replay("--model", "llama-3.1-70b", "-tp", "4", "--cost", "roofline", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    plain, fp8, awq = figures(), figures("--quantization", "fp8"), figures("--quantization", "awq")
    cache = figures("--kv-cache-dtype", "fp8")
    assert "remarks" not in plain and cache["num_kv_blocks"] == pytest.approx(
        2 * plain["num_kv_blocks"], rel=1e-3
    )
    assert plain["tpot_s"]["mean"] > fp8["tpot_s"]["mean"] > awq["tpot_s"]["mean"]
    assert plain["num_kv_blocks"] < fp8["num_kv_blocks"] < awq["num_kv_blocks"]
    assert "awq weights are read as they are stored and multiplied in 16 bits" in awq["remarks"][0]
    assert fp8["ttft_s"]["mean"] < awq["ttft_s"]["mean"], "H100 multiplies in fp8"


def test_a_change_of_cost_model_is_said_in_one_line_and_in_the_summary() -> None:
    """Tables by default; a roofline where they lack something, and what; a guess is called one."""
    for options, said in (
        (("--dtype", "float32"), "come from a roofline: kernels were measured in 16 bits"),
        (
            ("--kv-cache-dtype", "fp8", "--gpu", "l40s"),
            "attention on an 8-bit cache was not measured on L40S",
        ),
    ):
        done = replay("--num-gpu-blocks", "9000", *options)
        assert len(done.stderr.splitlines()) == 1 and said in done.stderr
        assert json.loads(done.stdout)["remarks"] == done.stderr.splitlines()
    plain = replay()
    assert plain.stderr.splitlines()[0].endswith("pass it as --num-gpu-blocks")
    assert "remarks" not in json.loads(plain.stdout)
    assert "come from a roofline" in replay("--model", "gemma-2-2b").stderr


REFUSED = [
    (["--pipeline-parallel-size", "33"], "pipeline_parallel_size is 33, and llama-3.1-8b has 32 layers"),
    (["--model", "mixtral-8x7b", "-tp", "2", "--data-parallel-size", "2"], "add --enable-expert-parallel"),
    (["--enable-expert-parallel"], "llama-3.1-8b has no experts"),
    (["--model", "qwen1.5-moe-a2.7b", "-tp", "8", "--enable-expert-parallel"], "the 60 experts"),
    (["--quantization", "fp9"], "unknown quantization"),
    (["--quantization", "mxfp4"], "the model has none"),
    (["--model", "gpt-oss-20b", "--quantization", "fp8"], "are mxfp4 already"),
    (["--kv-cache-dtype", "float32"], "kv_cache_dtype is float32"),
    (["--override-generation-config", '{"top_q": 0.9}'], "Did you mean top_p?"),
    (["--override-generation-config", '{"top_p": "high"}'], "top_p is 'high': give a number"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_predicted_is_refused_by_name(arguments: list[str], words: str) -> None:
    """One line and exit code 2."""
    done = replay(*arguments)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_measured_products_price_dense_models_in_eight_bits() -> None:
    """No change of cost model on an H100; a roofline where the GPU has no units, and it says both."""
    eight, plain = replay("--quantization", "fp8"), replay()
    assert "remarks" not in json.loads(eight.stdout)
    ratio = json.loads(eight.stdout)["tpot_s"]["mean"] / json.loads(plain.stdout)["tpot_s"]["mean"]
    assert 0.5 < ratio < 0.8
    remarks = json.loads(replay("--quantization", "fp8", "--gpu", "a100").stdout)["remarks"]
    assert "in 16 bits, not in fp8" in remarks[0] and "has no float8 units" in remarks[1]


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_tokens_are_drawn_as_the_model_says_where_asked_for() -> None:
    """Before vLLM 0.17 a sort of all logits in every step; else requests are greedy in every version."""

    def tpot_s(version: str, *arguments: str) -> float:
        done = replay("--engine-version", version, *arguments)
        assert done.returncode == 0, done.stderr
        mean_s: float = json.loads(done.stdout)["tpot_s"]["mean"]
        return mean_s

    def drawn(settings: str) -> tuple[str, str]:
        return "--override-generation-config", settings

    greedy_s = tpot_s("0.16")
    assert tpot_s("0.16", *drawn('{"temperature": 0}')) == tpot_s("0.33") == greedy_s
    filtered_s = tpot_s("0.16", *drawn("{}"))
    assert filtered_s > tpot_s("0.16", *drawn('{"top_p": 1}')) > greedy_s
    assert filtered_s > tpot_s("0.33", *drawn("{}")) > greedy_s


def test_a_gpu_by_its_data_sheet_says_so_and_refuses_what_it_lacks() -> None:
    """MI300X is priced by a roofline, B200 by measured kernels; a T4 has no bfloat16."""
    assert "no kernels were measured on AMD Instinct MI300X" in replay("--gpu", "mi300x").stderr
    assert "roofline" not in replay("--gpu", "b200").stderr
    small = ("--gpu", "t4", "--model", "qwen3-0.6b", "--max-model-len", "4096")
    assert "T4 16 GB does not compute in bfloat16" in replay(*small).stderr
    assert replay(*small, "--dtype", "float16").returncode == 0


def test_ranks_of_two_machines_are_not_priced_in_silence() -> None:
    """Sixteen ranks are taken to share NVLink, and a remark says so."""
    done = replay("--model", "deepseek-v3", "-tp", "16")
    assert "16 ranks are assumed to share one machine's link" in json.loads(done.stdout)["remarks"][-1]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_says_once_what_no_table_prices() -> None:
    """Of the setting that has it, on stderr."""
    done = warm.run("sundog", "sweep", TRACE, "--limit", "5", "--vary", "model=qwen3-0.6b,gemma-2-2b")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gemma-2-2b: step times come from a roofline") == 1
    assert "qwen3-0.6b: steps" not in done.stderr


def test_data_parallel_ranks_of_a_dense_model_are_replicas() -> None:
    """The same bytes."""
    assert replay("-dp", "2").stdout == replay("--replicas", "2").stdout


def test_expert_parallel_ranks_share_experts_as_tensor_parallel_ones_do() -> None:
    """On average; said in a remark."""
    arguments = ("--model", "qwen3-30b-a3b", "-tp", "2", "--cost", "roofline")
    whole, parts = replay(*arguments, "--enable-expert-parallel"), replay(*arguments)
    assert "spread evenly over ranks" in whole.stderr
    assert json.loads(whole.stdout)["tpot_s"] == json.loads(parts.stdout)["tpot_s"]


def test_heads_that_cannot_be_split_are_refused() -> None:
    """Four key heads go to 1, 2, 4 and 8 ranks, not to 16 of 28 query heads."""
    assert "must divide the 28 attention heads" in replay("--model", "qwen2.5-7b", "-tp", "16").stderr
    assert replay("--model", "qwen3-30b-a3b", "-tp", "8").returncode == 0


def test_a_projection_left_in_16_bits_takes_its_room(tmp_path: Path) -> None:
    """Queries of 32 layers, a byte more each: 4096 x 4096 x 32 bytes are 256 blocks of 16 tokens fewer."""
    blocks = []
    for left in ([], ["q_proj"]):
        form = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", *left]}
        given = {**config("llama-3.1-8b"), "quantization_config": form}
        (tmp_path / "config.json").write_text(json.dumps(given))
        done = replay("--model", str(tmp_path))
        assert done.returncode == 0, done.stderr
        blocks.append(json.loads(done.stdout)["num_kv_blocks"])
    assert blocks[0] - blocks[1] == 256
