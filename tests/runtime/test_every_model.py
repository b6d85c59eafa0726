"""Every model type of the library gives the answers of `generate`, or is refused as docs/served.md says."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.runtime.every_model import EQUAL, WHOLE, verdict
from tests.runtime.variants import RUNNABLE
from tests.test_layers import ROOT

ALWAYS = """
    llama qwen2 qwen2_moe qwen3 qwen3_moe mistral mixtral gemma gemma2 gemma3_text phi phi3 phimoe olmo olmo2
    olmo3 olmoe granite granitemoe gpt_oss glm glm4 glm4_moe cohere cohere2 smollm3 gpt2 gpt_neox opt
    starcoder2 deepseek_v2 deepseek_v3 ernie4_5 hunyuan_v1_dense seed_oss exaone4 gpt_bigcode minicpm3 lfm2
    diffllama stablelm nemotron falcon gptj gpt_neo mpt bloom codegen xglm doge moshi llama4_text
    mamba jamba zamba recurrent_gemma qwen3_next granitemoehybrid deepseek_v32 rwkv bert bart gemma3 musicgen
""".split()
"""The others take as long again, and run with `--rare`."""


@cache
def documented() -> dict[str, str]:
    """What docs/served.md says of each model type."""
    page = (ROOT / "docs/served.md").read_text(encoding="utf-8").partition("## Every causal model type")[2]
    rows = re.findall(r"^\| ([a-z].*?) \| (.*?) \|$", page, re.M)
    said = [(name, outcome) for names, outcome in rows for name in names.split(", ")]
    assert len(said) == len(dict(said)), "a model type stands in two rows"
    return dict(said)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def types_to_try() -> list[object]:
    return [
        name
        if name in ALWAYS
        else pytest.param(
            name, marks=pytest.mark.long(rare=True, reason="builds every other model of transformers")
        )
        for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    ]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("model_type", types_to_try())
def test_a_model_answers_as_generate_does_or_is_refused_by_its_reason(
    model_type: str, tmp_path: Path
) -> None:
    """Chunked, batched and preempted; never a wrong answer, and never a crash."""
    if model_type not in documented():
        pytest.skip(f"docs/served.md is of another transformers than {transformers.__version__}")
    found = verdict(model_type, tmp_path)
    if not RUNNABLE:  # no step is one compiled call here
        assert documented()[model_type].replace(WHOLE, EQUAL) == found
    else:
        assert documented()[model_type] == found


def test_the_page_has_a_row_for_every_model_type() -> None:
    """Of the version of transformers that it names."""
    page = (ROOT / "docs/served.md").read_text(encoding="utf-8")
    if f"transformers {transformers.__version__}" not in page:
        pytest.skip("the page is of another version")
    assert documented().keys() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert sum(outcome.startswith(EQUAL) for outcome in documented().values()) >= 80
