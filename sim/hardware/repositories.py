"""Hugging Face repositories of the models that this package describes.

Several checkpoints may have the same shape; the chat model is listed.
"""

from sundog.sim.hardware.model import described_name

OWNERS = {
    "01-ai": ("Yi-34B-Chat",),
    "allenai": (
        "OLMo-2-1124-13B-Instruct",
        "OLMo-2-1124-7B-Instruct",
        "Olmo-3-1025-7B",
        "OLMoE-1B-7B-0924-Instruct",
    ),
    "baichuan-inc": ("Baichuan2-7B-Chat",),
    "ByteDance-Seed": ("Seed-OSS-36B-Instruct",),
    "CohereLabs": ("c4ai-command-r-plus", "c4ai-command-r7b-12-2024"),
    "deepseek-ai": ("DeepSeek-V2-Lite-Chat", "DeepSeek-V2-Chat", "DeepSeek-V3.2", "DeepSeek-V3"),
    "google": (
        "gemma-2-27b-it",
        "gemma-2-2b-it",
        "gemma-2-9b-it",
        "gemma-2b-it",
        "gemma-3-12b-it",
        "gemma-3-1b-it",
        "gemma-3-27b-it",
        "gemma-3-4b-it",
        "gemma-7b-it",
    ),
    "HuggingFaceTB": ("SmolLM3-3B",),
    "ibm-granite": ("granite-3.0-3b-a800m-instruct", "granite-3.1-8b-instruct", "granite-4.0-micro"),
    "internlm": ("internlm3-8b-instruct",),
    "LGAI-EXAONE": ("EXAONE-4.0-32B",),
    "meta-llama": (
        "Llama-2-70b-chat-hf",
        "Llama-2-7b-chat-hf",
        "Llama-3.1-405B-Instruct",
        "Llama-3.1-70B-Instruct",
        "Llama-3.1-8B-Instruct",
        "Llama-3.2-1B-Instruct",
        "Llama-3.2-3B-Instruct",
        "Llama-4-Maverick-17B-128E-Instruct",
        "Llama-4-Scout-17B-16E-Instruct",
    ),
    "microsoft": ("Phi-3-mini-4k-instruct", "Phi-3.5-MoE-instruct", "phi-4"),
    "MiniMaxAI": ("MiniMax-M2.5", "MiniMax-M2"),
    "mistralai": (
        "Mistral-Small-24B-Instruct-2501",
        "Mixtral-8x22B-Instruct-v0.1",
        "Mixtral-8x7B-Instruct-v0.1",
    ),
    "moonshotai": ("Kimi-K2-Instruct",),
    "openai": ("gpt-oss-120b", "gpt-oss-20b"),
    "Qwen": (
        "Qwen1.5-MoE-A2.7B-Chat",
        "Qwen2-57B-A14B-Instruct",
        "Qwen2.5-0.5B-Instruct",
        "Qwen2.5-1.5B-Instruct",
        "Qwen2.5-14B-Instruct",
        "Qwen2.5-32B-Instruct",
        "Qwen2.5-72B-Instruct",
        "Qwen2.5-7B-Instruct",
        "Qwen3-0.6B",
        "Qwen3-1.7B",
        "Qwen3-14B",
        "Qwen3-235B-A22B",
        "Qwen3-30B-A3B",
        "Qwen3-32B",
        "Qwen3-4B",
        "Qwen3-8B",
        "Qwen3-Coder-480B-A35B-Instruct",
        "Qwen3-Next-80B-A3B-Instruct",
        "Qwen3.5-27B",
        "Qwen3.5-35B-A3B",
        "Qwen3.5-397B-A17B",
        "Qwen3.5-9B",
    ),
    "zai-org": ("chatglm3-6b", "GLM-4-9B-0414", "GLM-4.5-Air", "GLM-4.5", "GLM-5"),
}
"""Repositories by owner, in Hugging Face's spelling."""
OTHERS = {
    "internlm2-7b": "internlm/internlm2-chat-7b",
    "mistral-7b-v0.3": "mistralai/Mistral-7B-Instruct-v0.3",
    "dots.llm1": "rednote-hilab/dots.llm1.inst",
    "ernie-4.5-21b-a3b": "baidu/ERNIE-4.5-21B-A3B-PT",
}
"""Repositories whose name differs from the model's."""


def repository_of(name: str) -> str | None:
    """Return the repository with a model's weights; None for a path or an unknown model.

    A name with an owner, such as `Qwen/Qwen3-8B`, is already a repository.
    """
    if name.startswith((".", "/", "~")) or name.endswith(".json"):
        return None
    if "/" in name:
        return name
    key = described_name(name)
    return None if key is None else repositories().get(key)


def repositories() -> dict[str, str]:
    """Return the repository of each described model, by the model's name."""
    found = dict(OTHERS)
    for owner, names in OWNERS.items():
        for name in names:
            if (key := described_name(name)) is not None:
                found[key] = f"{owner}/{name}"
    return found
