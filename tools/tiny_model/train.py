"""Training of the embedded model, from scratch, on text that the grammar writes.

    python -m tools.tiny_model.train --out DIR --seed 0 --minutes 26

With `--start DIR` the training goes on from a saved model instead; give it a seed of its own. Same seed, same
machine, same torch: same weights, as long as the time limit does not shorten the schedule.  Progress goes to
stderr, the final report as JSON to stdout.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.tiny_model.evaluate import accuracy
from tools.tiny_model.grammar import draw_document
from tools.tiny_model.packing import pack
from tools.tiny_model.vocabulary import BOS, END, IGNORED, PAD, save_tokenizer, token_id, train_tokenizer

VOCAB_SIZE = 1536
MAX_TOKENS = 2048
TOKENIZER_DOCUMENTS = 8000
TOKENS_PER_STEP = 4096
MUON_RATE = 6e-3
ADAM_RATE = 5e-3
# Share of the training at which rows grow: short rows are quick, long rows teach long chats.
ROW_TOKENS = ((0.0, 256), (0.7, 512), (0.92, 1024))


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """Return the configuration: four Llama layers with two key-value heads and tied embeddings."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_TOKENS,
        rms_norm_eps=1e-5,
        attention_bias=False,
        bos_token_id=token_id(tokenizer, BOS),
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    )


def grammar_texts(seed: int) -> Iterator[str]:
    """Yield the texts from which the tokenizer learns its merges."""
    rng = Random(f"{seed}:tokenizer")
    for _ in range(TOKENIZER_DOCUMENTS):
        document = draw_document(rng)
        yield from (t for t in (document.text, *(t for _, t in document.turns)) if t)


def build_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Return a new model whose residual branches begin small (GPT-2, section 2.3)."""
    model = LlamaForCausalLM(model_config(tokenizer))
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data.mul_(1 / math.sqrt(2 * model.config.num_hidden_layers))
    return model


def build_optimisers(model: LlamaForCausalLM) -> tuple[torch.optim.Muon, torch.optim.AdamW]:
    """Return Muon for the matrices inside the layers, and AdamW for embeddings and norms."""
    inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    outer = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(inner, momentum=0.95, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    return muon, torch.optim.AdamW(outer, weight_decay=0.0, betas=(0.9, 0.95))


def learning_rate_factor(progress: float) -> float:
    """Return the factor of the learning rate: it rises over the first 2 % of the training, stays, and
    falls to zero over the last 60 %.
    """
    return min(1.0, progress / 0.02 + 0.01, max(0.0, (1 - progress) / 0.6))


def loss_of(model: LlamaForCausalLM, ids_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over the labelled tokens; logits are computed only for these."""
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    wanted_BT = labels_BT[:, 1:] != IGNORED
    logits_NV = model.lm_head(hidden_BTH[:, :-1][wanted_BT])
    return cross_entropy(logits_NV, labels_BT[:, 1:][wanted_BT])


def train(
    model: LlamaForCausalLM, tokenizer: Tokenizer, seed: int, num_steps: int, limit_s: float
) -> tuple[int, float, float]:
    """Train the model in place; return the steps done, the last smoothed loss and the seconds used.

    Seconds are processor time divided by the number of threads, so that other work on the machine does not
    shorten the training.
    """
    muon, adam = build_optimisers(model)
    sources = {n: pack(Random(f"{seed}:{n}"), tokenizer, n) for _, n in ROW_TOKENS}
    begin_s, used_s, progress, step, smooth = time.process_time(), 0.0, 0.0, 0, math.nan
    while progress < 1:
        length = [n for start, n in ROW_TOKENS if progress >= start][-1]
        rows = list(islice(sources[length], TOKENS_PER_STEP // length))
        ids_BT, labels_BT = (torch.tensor(column) for column in zip(*rows, strict=True))
        loss = loss_of(model, ids_BT, labels_BT)
        loss.backward()  # type: ignore[no-untyped-call]  # the library's own gap
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = learning_rate_factor(progress)
        for optimiser, rate in ((muon, MUON_RATE), (adam, ADAM_RATE)):
            optimiser.param_groups[0]["lr"] = rate * factor
            optimiser.step()  # type: ignore[no-untyped-call]  # the library's own gap
            optimiser.zero_grad()
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
        step += 1
        used_s = (time.process_time() - begin_s) / torch.get_num_threads()
        progress = max(step / num_steps, used_s / limit_s)
        if step % 25 == 0:
            print(
                f"step {step} of {num_steps}, {used_s:.0f} s, loss {smooth:.4f}", file=sys.stderr, flush=True
            )
    return step, smooth, used_s


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights in bfloat16, configurations and tokenizer into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    config = model.config
    GenerationConfig(  # type: ignore[no-untyped-call]  # the library's own gap
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        do_sample=False,
    ).save_pretrained(folder)
    save_tokenizer(tokenizer, folder, MAX_TOKENS)


def main() -> None:
    """Parse the command line, train, save, evaluate and report."""
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a saved model to go on from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument(
        "--minutes", type=float, default=26.0, help="upper limit of processor time per thread"
    )
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.start is None:
        tokenizer = train_tokenizer(grammar_texts(args.seed), VOCAB_SIZE)
        model = build_model(tokenizer)
    else:
        tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
        model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    done = train(model, tokenizer, args.seed, args.steps, 60 * args.minutes)
    save(model, tokenizer, args.out)
    report = {
        "parameters": model.num_parameters(),
        "steps": done[0],
        "loss": round(done[1], 4),
        "train_s": round(done[2]),
        "accuracy": accuracy(args.out),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
