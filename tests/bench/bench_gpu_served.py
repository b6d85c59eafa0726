"""Server on a GPU beside its simulation: calibrated, then compared under a load that was not fitted.

A model of random weights is made, `sundog calibrate` measures its engine and its server on the device, and
`sundog bench --simulate` puts a recorded load of chats on `sundog serve` and predicts it from the file that
calibrate wrote. What both print is kept, and the figures stand in one JSON beside those of `make gpu`.

    python -m tests.bench gpu_served [--model qwen3-0.6b] [--rate 8] [--seconds 40] [--out FILE]

It needs the packages of the server beside torch and transformers. `--device cpu --model llama-4m` tries it
without a GPU.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.gpu_parts import shapes

RESULTS = Path(__file__).parent / "results"
TRACE = Path(__file__).resolve().parents[2] / "traces" / "chat-poisson-2rps-5min.jsonl.gz"
TRACE_RATE = 2.0
MOST_S = 280.0
"""The longest that a command may take."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench gpu_served")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="qwen3-0.6b", choices=sorted(shapes()))
    parser.add_argument("--measured-seconds", type=float, default=20.0, help="of calibrate's steps")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second of the load")
    parser.add_argument("--seconds", type=float, default=40.0, help="of the load")
    parser.add_argument("--out", type=Path, help="the JSON; default: by the device's kind and the model")
    return parser.parse_args()


def sundog(*words: str) -> str:
    """What a command of `sundog` prints; ends this one with its last words if it fails."""
    command = [sys.executable, "-m", "sundog", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S)
    print(ran.stderr[-3000:], file=sys.stderr, flush=True)
    if ran.returncode:
        sys.exit(f"sundog {' '.join(words)} ended with {ran.returncode}: {ran.stdout[-2000:]}")
    return ran.stdout


def make_model(name: str, folder: Path, device: str) -> None:
    """Random weights in bf16, made on the device, and the tokenizer of the engine's benchmark."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.bench.engine_models import make_tokenizer

    torch.manual_seed(0)
    config = AutoConfig.for_model(**shapes()[name])
    config.architectures = None
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    make_tokenizer(folder)


def write_load(path: Path, rate: float, seconds: float) -> None:
    """The recorded chats at another rate: their instants scaled, their lengths as they are."""
    import gzip

    with gzip.open(TRACE, "rt") as recorded, path.open("w") as load:
        for line in recorded:
            row = json.loads(line)
            if "arrival_s" in row:  # the first line says the format
                row["arrival_s"] *= TRACE_RATE / rate
            if row.get("arrival_s", 0.0) < seconds:
                load.write(json.dumps(row) + "\n")


def measure(args: argparse.Namespace, scratch: Path) -> Iterator[dict[str, Any]]:
    """What calibrate measured and tried; then also the load as it was seen and predicted."""
    from sundog.child import serving

    folder, cost, load = scratch / args.model, scratch / "cost.toml", scratch / "load.jsonl"
    make_model(args.model, folder, args.device)
    write_load(load, args.rate, args.seconds)
    sundog(
        "calibrate", str(folder), "--device", args.device, "-o", str(cost),
        "--seconds", str(args.measured_seconds),
    )  # fmt: skip
    known = {"model": args.model, "rate": args.rate, "seconds": args.seconds}
    known["profile"] = tomllib.loads(cost.read_text())
    yield known
    with serving(str(folder), scratch, "--device", args.device) as url:
        told = sundog("bench", url, str(load), "--simulate", str(cost), "--json")
    yield {**known, "load": json.loads(told)}


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="sundog-") as scratch:
        for measured in measure(args, Path(scratch)):
            kind = str(measured["profile"]["measured"]["device"]).lower().replace(" ", "-")
            out = args.out or RESULTS / f"served-{kind}-{args.model}.json"
            out.write_text(json.dumps(measured, indent=1) + "\n")
            print(out, flush=True)


if __name__ == "__main__":
    main()
