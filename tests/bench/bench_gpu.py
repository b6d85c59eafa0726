"""Speed of the engine on a GPU, beside the limits of memory and arithmetic, and beside transformers.

Random weights in bf16: decode steps of 1, 32 and 256 requests with contexts of 1,024 tokens, two steps
under way as they are served, and prefill. The bandwidth of a large copy and the rate of a large product are
measured in the same run, and transformers' continuous batching computes the same requests. Steps are driven
by the scheduler itself, without HTTP. Each part has a process and a time of its own, and every row is written
to the JSON at once: what fails, hangs or is ended leaves its reason there and takes no other part along.

    python -m tests.bench gpu [--most-seconds 400] [--device cpu --tiny] [--out FILE]

Without a GPU it says so, unless `--device cpu` is given: `--tiny` makes that a matter of seconds.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import gpu_parts
from tests.bench.gpu_parts import FULL, TINY, Limits, Plan

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
MOST_S = {"device": 60.0, "make": 90.0, "engine": 130.0, "library": 75.0}
"""The longest that a part of each kind may take."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of four million weights, a few steps")
    parser.add_argument("--most-seconds", type=float, default=400.0)
    parser.add_argument("--no-library", action="store_true", help="without transformers' continuous batching")
    parser.add_argument("--out", type=Path, help="the JSON; default: by the device's name, in --folder")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the JSON goes; default: results/")
    parser.add_argument("--tests", type=Path, help="what became of the tests, for the JSON to tell")
    parser.add_argument("--part", nargs=3, metavar=("KIND", "MODEL", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--limits", type=float, nargs=2, default=(0.0, 0.0), help=argparse.SUPPRESS)
    return parser.parse_args()


def part(args: argparse.Namespace, plan: Plan) -> None:
    """A part in a process of its own, which prints its rows."""
    for row in _rows(args, plan):
        print("ROW " + json.dumps(row), flush=True)


def _rows(args: argparse.Namespace, plan: Plan) -> Iterator[gpu_parts.Row]:
    kind, name, folder = args.part
    if kind == "device":
        return gpu_parts.device(args.device)
    if kind == "make":
        return gpu_parts.make_model(name, folder, args.device)
    if kind == "engine":
        return gpu_parts.engine(name, folder, args.device, plan, Limits(*args.limits))
    return gpu_parts.library(name, folder, args.device, plan)


class Record:
    """The JSON, written anew with every row."""

    def __init__(self, args: argparse.Namespace, facts: dict[str, Any]) -> None:
        self._args = args
        self.facts, self.rows = facts, list[dict[str, Any]]()

    @property
    def file(self) -> Path:
        """By the device's name, once it is known."""
        name = re.sub(r"[^a-z0-9]+", "-", str(self.facts.get("device", "unknown")).lower()).strip("-")
        out: Path | None = self._args.out
        return out or self._args.folder / f"gpu-{name}.json"

    @property
    def limits(self) -> Limits:
        return Limits(*(self.facts.get(key, 0.0) for key in asdict(Limits(0, 0))))

    def add(self, row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        if row["part"] == "device" and "error" not in row:
            self.facts |= {key: value for key, value in row.items() if key != "part"}
            return
        self.rows.append(row)
        self._compare()
        self.write()

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.facts | {"rows": self.rows}, indent=1) + "\n", encoding="utf-8")

    def _compare(self) -> None:
        """How many times as fast as transformers, once both are there."""
        theirs = {
            (r["model"], r["batch"]): r for r in self.rows if r["part"] == "transformers" and "step_ms" in r
        }
        for row in self.rows:
            other = theirs.get((row.get("model"), row.get("batch")))
            if row["part"] == "decode" and "step_ms" in row and other is not None:
                row["times_transformers"] = row["tokens_per_s"] / other["tokens_per_s"]


def run_part(
    record: Record, args: argparse.Namespace, kind: str, name: str, folder: str, left_s: float
) -> None:
    """A part within its time and what is left of all; what goes wrong is a row, too."""
    most_s = min(left_s, MOST_S[kind])
    if most_s < 1:
        return record.add({"model": name, "part": kind, "error": "no time was left for it"})
    command = [sys.executable, "-m", "tests.bench.bench_gpu", "--device", args.device]
    command += [*["--tiny"] * args.tiny, "--part", kind, name, folder]
    command += ["--limits", *map(str, asdict(record.limits).values())]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    is_late = threading.Event()
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=env,
            start_new_session=True,
        )

        def end() -> None:
            is_late.set()
            os.killpg(child.pid, signal.SIGKILL)  # with whatever it began, which may hold its output open

        timer = threading.Timer(most_s, end)
        timer.start()
        assert child.stdout is not None
        with child.stdout as rows:
            for line in rows:
                if line.startswith("ROW "):
                    record.add(json.loads(line[4:]))
        status = child.wait()
        timer.cancel()
        if status:
            wrong = (
                f"it took more than {most_s:.0f} s" if is_late.is_set() else f"it ended with status {status}"
            )
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or [""]
            record.add({"model": name, "part": kind, "error": f"{wrong}: {last[0][:600]}"})


def parts(plan: Plan, has_library: bool) -> list[tuple[str, str]]:
    """All parts, the most wanted first: transformers' own come last."""
    ours = [(kind, model) for model in plan.models for kind in ("make", "engine")]
    theirs = [("library", model) for model in plan.models if has_library]
    return [("device", ""), *ours, *theirs]


def main() -> int:
    args = arguments()
    plan = TINY if args.tiny else FULL
    if args.part:
        part(args, plan)
        return 0
    if args.device.startswith("cuda") and not _sees_cuda():
        print("no GPU: `make gpu` runs this on a machine that has one")
        return 0
    begin_s = time.monotonic()
    facts: dict[str, Any] = {"context": plan.num_context, "dtype": "bfloat16"}
    if args.tests is not None:
        from tests.gpu.outcomes import summed_up

        facts["tests"] = summed_up(args.tests)
    record = Record(args, facts)
    with tempfile.TemporaryDirectory(prefix="sundog-bench-", dir=gpu_parts.roomy()) as folder:
        for kind, model in parts(plan, not args.no_library):
            left_s = args.most_seconds - (time.monotonic() - begin_s)
            run_part(record, args, kind, model, str(Path(folder, model or "none")), left_s)
    record.facts["bench_s"] = round(time.monotonic() - begin_s, 1)
    record.write()
    print(f"written to {record.file}")
    return int(any("error" in row for row in record.rows))


def _sees_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
