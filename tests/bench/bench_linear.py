"""What one product for layers of one input saves: packed layer by layer, and merged.

Random weights in bf16 of Qwen3-0.6B's shape with six layers, and of the embedded model's. Passes
that attend to nothing, on one thread: milliseconds of processor time, the best of sixteen turns that
alternate, so that another load on the machine meets both. The logits must be the same bits.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 8000,
    "tie_word_embeddings": True,
}
EMBEDDED = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1536,
}
NUM_TURNS, NUM_PASSES = 16, 20


def alternate_ms(passes: list[Callable[[], object]], num_passes: int) -> list[float]:
    """Processor time of each kind of pass."""
    found: list[list[float]] = [[] for _ in passes]
    for _ in range(NUM_TURNS):
        for one, times in zip(passes, found, strict=True):
            one()
            begin_s = time.process_time()
            for _ in range(num_passes):
                one()
            times.append(1e3 * (time.process_time() - begin_s) / num_passes)
    return [min(times) for times in found]


def compare(name: str, shape: dict[str, object]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from runtime.attention.step import LayerProbe
    from runtime.model.loader import load_model
    from runtime.model.model import probe_layers
    from runtime.native.linear import noted_inputs, pack_linears

    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = AutoConfig.for_model(**shape)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        plain, merged = load_model(Path(folder)), load_model(Path(folder))
        pack_linears(plain)
        with noted_inputs(merged) as together:
            probe_layers(merged)
        pack_linears(merged, together)
        for num_rows in (1, 8, 32, 256):
            ids_1T = torch.arange(num_rows)[None] + 5

            def logits(model: torch.nn.Module, ids_1T: torch.Tensor = ids_1T) -> torch.Tensor:
                with torch.inference_mode():
                    out = model(
                        input_ids=ids_1T,
                        position_ids=ids_1T,
                        use_cache=False,
                        logits_to_keep=1,
                        paged=LayerProbe(),
                    )
                found: torch.Tensor = out.logits
                return found

            same = torch.equal(logits(plain), logits(merged))
            passes = [lambda f=logits: f(plain), lambda f=logits: f(merged)]
            before, after = alternate_ms(passes, NUM_PASSES if num_rows < 256 else 8)
            print(
                f"{name:<12} {num_rows:>5} {before:>8.2f} ms {after:>8.2f} ms {after / before:>6.2f}"
                f"  {'the same' if same else 'DIFFERENT'}",
                flush=True,
            )


def main() -> None:
    print(f"{'shape':<12} {'rows':>5} {'one by one':>11} {'merged':>11} {'ratio':>6}  bits")
    compare("Qwen3, 6", QWEN3)
    compare("embedded", EMBEDDED)


if __name__ == "__main__":
    main()
