"""Records of real servers that anyone can fetch, as `sundog validate` reads them.

    python -m tools.public_records fetch FOLDER             the logs of the servers in `PUBLIC`
    python -m tools.public_records convert FOLDER RESULT... results of `vllm bench serve --save-result`
    sundog validate FOLDER --page public.md                 predicted beside measured

What was fetched is kept in FOLDER, and not fetched again. Results of `vllm bench serve` do not say how the
server was started: `--gpu`, `--max-num-seqs` and so on do, as vLLM's command line did.
"""

import argparse
import gzip
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

COMMIT = "5daddb21a545658d5150b535712d0494584b5278"
SERVING_SIM = f"https://raw.githubusercontent.com/casys-kaist/LLMServingSim/{COMMIT}/bench/examples"
PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class PublicLog:
    """A server's log of every request: `url` is the folder of its meta.json and requests.jsonl."""

    gpu: str
    model: str
    """Repository of the model on Hugging Face; a log may instead have a path on its author's disk."""
    url: str

    @property
    def name(self) -> str:
        """Name of the folder that `sundog validate` reads: the GPU and the model."""
        return f"{self.gpu}_{self.model.rpartition('/')[2]}"


PUBLIC = tuple(
    PublicLog(gpu, model, f"{SERVING_SIM}/{gpu}/{model.rpartition('/')[2]}/vllm")
    for gpu, model in (
        ("RTX4090", "meta-llama/Llama-3.1-8B"),
        ("RTXPRO6000", "meta-llama/Llama-3.1-8B"),
        ("RTXPRO6000", "Qwen/Qwen3-32B"),
        ("RTXPRO6000", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
    )
)
"""vLLM 0.19 to 0.28 on one and two GPUs, 300 requests each: LLMServingSim's examples (MIT)."""


class NotConverted(Exception):
    """A record that cannot be fetched or converted; the message names file and field."""


def fetched(log: PublicLog, folder: Path) -> Path:
    """Fetch a log, unless it is there, and return its folder below `folder`."""
    place = folder / log.name
    if (place / "meta.json").is_file() and (place / "requests.jsonl.gz").is_file():
        return place
    meta, rows = (_read(f"{log.url}/{name}") for name in ("meta.json", "requests.jsonl"))
    place.mkdir(parents=True, exist_ok=True)
    (place / "requests.jsonl.gz").write_bytes(gzip.compress(rows, mtime=0))
    (place / "meta.json").write_text(json.dumps(with_model(json.loads(meta), log.model), indent=1))
    return place


def with_model(meta: dict[str, Any], model: str) -> dict[str, Any]:
    """Return a log's meta.json, with a path to the model replaced by the name of its repository."""
    if not isinstance(meta.get("engine_kwargs"), dict):
        raise NotConverted("meta.json has no engine_kwargs: it is no log of this kind")
    return {**meta, "model": model, "engine_kwargs": {**meta["engine_kwargs"], "model": model}}


def _read(url: str) -> bytes:
    try:
        with urlopen(url, timeout=PATIENCE_S) as answer:
            found: bytes = answer.read()
            return found
    except OSError as error:
        raise NotConverted(f"{url}: {error}") from None


METRICS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""Metrics of a record, and vLLM's names for them; E2E is included if `--percentile-metrics` names e2el."""
KINDS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
AT_ONCE_PER_S = 1e6
"""Rate that stands for requests that all arrive at once."""
REQUIRED = ("completed", "duration", "total_input_tokens", "total_output_tokens", "request_rate")


def of_bench(result: Mapping[str, Any], source: str, server: Mapping[str, Any]) -> str:
    """Return the text of a `.server.toml` for a result of `vllm bench serve`; `server` has its options.

    All prompts and answers are assumed to have the mean length. For a data set of one length (`random`) that
    is exact; for others it is an approximation, which the record states. Raises NotConverted.
    """
    missing = [name for name in REQUIRED if name not in result]
    if missing:
        raise NotConverted(f"{source}: {', '.join(missing)} is missing: give what --save-result wrote")
    count = int(result["completed"])
    if count < 2 or (failed := int(result.get("failed", 0) or 0)) * 20 > count:
        raise NotConverted(f"{source}: {count} requests were answered, {failed if count > 1 else 0} failed")
    rate = float(result["request_rate"])
    rate = AT_ONCE_PER_S if math.isinf(rate) else rate
    load: dict[str, Any] = {
        "rate_per_s": rate,
        "duration_s": count / rate,
        "prompt_tokens": round(result["total_input_tokens"] / count),
        "output_tokens": max(round(result["total_output_tokens"] / count), 1),
    }
    if result.get("max_concurrency"):
        load["max_concurrency"] = int(result["max_concurrency"])
    measured: dict[str, dict[str, float]] = {}
    for metric, theirs in METRICS.items():
        own = {ours: result.get(f"{kind}_{theirs}_ms") for kind, ours in KINDS.items()}
        known = {kind: float(value) for kind, value in own.items() if value}
        if known:
            measured[metric] = known
    if not measured:
        raise NotConverted(f"{source}: there is no latency in it, as mean_ttft_ms")
    note = "vllm bench serve; every request has the mean lengths"
    head = {"source": f"{source} ({note})", **server, "measured_requests_per_s": count / result["duration"]}
    lines = [f"{name} = {_value(value)}" for name, value in head.items() if value is not None]
    lines += ["", "[load]", *(f"{name} = {_value(value)}" for name, value in load.items())]
    lines += ["", "[measured_ms]"]
    for metric, own_ms in measured.items():
        inner = ", ".join(f"{kind} = {_value(value)}" for kind, value in own_ms.items())
        lines.append(f"{metric} = {{ {inner} }}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    return json.dumps(value)


def main(words: Sequence[str] | None = None) -> int:
    """Fetch or convert records; a record that fails is reported in one line, and the others continue."""
    parser = argparse.ArgumentParser(prog="python -m tools.public_records", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetch = verbs.add_parser("fetch", help="fetch the logs of public servers")
    fetch.add_argument("folder", type=Path)
    convert = verbs.add_parser("convert", help="convert results of vllm bench serve")
    convert.add_argument("folder", type=Path)
    convert.add_argument("results", type=Path, nargs="+")
    convert.add_argument("--gpu", required=True)
    convert.add_argument("--model", help="the model; as the result says if not given")
    for name in ("--max-num-seqs", "--max-num-batched-tokens"):
        convert.add_argument(name, type=int, required=True)
    for name in ("--tensor-parallel-size", "--num-gpu-blocks", "--max-model-len"):
        convert.add_argument(name, type=int)
    convert.add_argument("--engine-version")
    asked = parser.parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    num_failed = 0
    makers: list[Callable[[], Path]] = [partial(fetched, log, asked.folder) for log in PUBLIC]
    if asked.verb == "convert":
        makers = [partial(_converted, path, asked) for path in asked.results]
    for make in makers:
        try:
            print(make())
        except NotConverted as error:
            num_failed += 1
            print(error, file=sys.stderr)
    return 2 if num_failed else 0


def _converted(path: Path, asked: argparse.Namespace) -> Path:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotConverted(f"{path}: {error}") from None
    if not isinstance(result, dict):
        raise NotConverted(f"{path} is no result of vllm bench serve: it holds no object")
    names = ("gpu", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "num_gpu_blocks")
    server = {name: getattr(asked, name) for name in (*names, "max_model_len", "engine_version")}
    server = {"model": asked.model or result.get("model_id"), **server}
    place: Path = asked.folder / f"{path.stem}.server.toml"
    place.write_text(of_bench(result, path.name, server), encoding="utf-8")
    return place


if __name__ == "__main__":
    sys.exit(main())
