"""Accuracy of an emulated server against a replay of the same arrivals, and its highest token rate.

    python -m tests.bench emulated [--model llama-3.1-8b] [--seconds 30] [--streams 1000] [--tokens 300]
        [--time-scale 1]

TTFT, TPOT and E2E at light load and at 80 % of what the model says the GPU can do: measured, predicted, and
whether they agree within 3 % or 2 ms. Then many streams at once: tokens a second of the wall, what the steps
lost, and the server's processor time. Wants a quiet machine with a core for the server and one for clients;
on a busy one `--time-scale 0.1` gives both ten times as long, and still says whether they agree.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from sundog.builds.measuring import ClientLoad, as_answered, find, measure, predict
from sundog.builds.simulated import deploy
from sundog.child import serving
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions, TermsOptions
from sundog.sim.figures.distribution import Distribution
from sundog.sim.figures.metrics import Summary, summarize_client
from sundog.sim.record.client_record import ClientRecord
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.distributions import LogNormal, Poisson
from sundog.sim.workload.spec import Workload

GPU = "h100"
NUM_CLIENTS = 128
SHARES = {"light load": 0.15, "80 %": 0.8}
PART, SECONDS = 0.03, 0.002


def workload(rate_per_s: float, seconds: float) -> list[TraceRequest]:
    """Prompts of 600 tokens and answers of 120 on average."""
    prompt = LogNormal(mean=600, median=400, smallest=8, largest=4000)
    output = LogNormal(mean=120, median=90, smallest=4, largest=600)
    return Workload(seconds, Poisson(rate_per_s), prompt, output).requests(seed=1)


def agrees(measured_s: float, predicted_s: float) -> bool:
    """Within 3 % or 2 ms."""
    error_s = abs(measured_s - predicted_s)
    return error_s <= SECONDS or error_s <= PART * predicted_s


def compare(share: str, rate_per_s: float, scale: float, measured: Summary, predicted: Summary) -> None:
    print(f"\n{share}: {rate_per_s:.1f} requests/s, {measured.num_finished:,} of {measured.num_requests:,}")
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        ours, theirs = getattr(measured, name), getattr(predicted, name)
        assert isinstance(ours, Distribution) and isinstance(theirs, Distribution)
        cells = []
        for of in ("mean", "p50", "p99"):
            pair = getattr(ours, of) * scale, getattr(theirs, of)
            word = "" if agrees(*pair) else " FAR"
            cells.append(f"{of} {pair[0] * 1e3:8.2f} / {pair[1] * 1e3:8.2f} ms{word}")
        print(f"  {name.removesuffix('_s').upper():5s} measured / predicted: {'   '.join(cells)}")


def both(model: str, seconds: float, scale: float, scratch: Path) -> None:
    """Measured beside predicted at each share of what the GPU can do, in seconds of the server's clock."""
    simulated = deploy(EngineOptions(), TargetOptions(model=model, gpu=GPU))
    closed = ClientLoad("", num_clients=NUM_CLIENTS)
    at_once = [row._replace(arrival_s=0.0) for row in workload(50, 10.0)]
    limit_per_s = predict(closed, simulated, TermsOptions(), at_once).requests_per_s
    options = ("--gpu", GPU, "--no-log-requests", "--time-scale", f"{scale:g}")
    with serving(model, scratch, *options, command="emulate") as url:
        load = ClientLoad(url, timeout_s=300.0 / scale)
        server = find(load)
        for name, share in SHARES.items():
            rows = workload(share * limit_per_s, seconds)
            record = ClientRecord(server.model)
            measure(load, server, [row._replace(arrival_s=row.arrival_s / scale) for row in rows], record)
            late_s = as_sent(record)
            predicted = predict(
                load, simulated, TermsOptions(), as_answered(arrived(rows, record, scale), record)
            )
            compare(name, share * limit_per_s, scale, summarize_client(record), predicted)
            print(f"  the client sent {late_s * scale * 1e3:.2f} ms late on average, which is left out")
            print(f"  lag {json.dumps(httpx.get(f'{url}/load').json()['emulation'])}")


def as_sent(record: ClientRecord) -> float:
    """Have requests arrive when they were sent, not when they were due; the mean of the seconds between."""
    columns = record.columns
    late_s = [sent_s - due_s for sent_s, due_s in zip(columns.sent_s, columns.arrival_s, strict=True)]
    columns.arrival_s[:] = columns.sent_s
    return sum(late_s) / len(late_s)


def arrived(rows: list[TraceRequest], record: ClientRecord, scale: float) -> list[TraceRequest]:
    """The requests at the instants that the record has, on the server's clock."""
    at_s = dict(zip(record.columns.request_id, record.columns.arrival_s, strict=True))
    moved = [row._replace(arrival_s=at_s[row.request_id] * scale) for row in rows]
    return sorted(moved, key=lambda row: row.arrival_s)


def many(model: str, num_streams: int, num_tokens: int, scratch: Path) -> None:
    """All streams at once, on GPUs without limit but for their steps."""
    # Steps of 512 decodes are slower than 20,000 tokens/s for one GPU: replicas share the streams.
    options = ("--gpu", GPU, "--no-log-requests", "--max-num-seqs", "512", "--replicas", "4")
    with serving(model, scratch, *options, command="emulate") as url:
        load = ClientLoad(url, timeout_s=300.0)
        server = find(load)
        rows = [replace_lengths(row, num_tokens) for row in workload(num_streams, 4.0)[:num_streams]]
        (process,) = [each for each in psutil.Process().children() if "serve" in " ".join(each.cmdline())]
        before = process.cpu_times()
        record = ClientRecord(server.model)
        measure(load, server, rows, record)
        after, summary = process.cpu_times(), summarize_client(record)
        cpu_s = after.user + after.system - before.user - before.system
        tokens = summary.output_tokens
        lag = httpx.get(f"{url}/load").json()["emulation"]
        rate, us = summary.output_tokens_per_s, cpu_s / tokens * 1e6
        print(f"\n{len(rows):,} streams of {num_tokens}: {rate:,.0f} tokens/s of the wall")
        print(f"  {tokens / cpu_s:,.0f} tokens per second of its processor, {us:.1f} us a token")
        print(f"  lost {lag['lost_s']:.2f} s of {summary.duration_s:.1f}")


def replace_lengths(row: TraceRequest, num_tokens: int) -> TraceRequest:
    return row._replace(num_prompt_tokens=64, num_output_tokens=num_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description="An emulated server beside a replay.")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--time-scale", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=300)
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="sundog-") as scratch:
        both(asked.model, asked.seconds, asked.time_scale, Path(scratch))
        if asked.streams:
            many(asked.model, asked.streams, asked.tokens, Path(scratch))
