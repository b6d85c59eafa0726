"""TTFT and TPOT of served pools: predicted from the measurement of a single engine, and seen by clients.

    python -m tests.bench pools [--cost PROFILE.toml] [--rates R,R] [--seconds X]

The embedded model is served by one engine, then by one that prefills and one that decodes, each on a core of
its own; both get the same loads at random. The simulation knows a profile of one engine (`sundog calibrate
sundog-tiny`, made first if not given), and of the transfers their bytes over their seconds in a load before.
"""

import argparse
import tempfile
from pathlib import Path

from sundog.builds.measuring import ClientLoad, Cores, as_answered, find, predict
from sundog.builds.simulated import deploy
from sundog.calibration.engine import from_engine
from sundog.calibration.served import seen
from sundog.child import counters
from sundog.options.engine import EngineOptions, MeasuringOptions
from sundog.options.simulation import TargetOptions, TermsOptions
from sundog.sim.figures.metrics import Summary
from sundog.sim.record.client_record import ClientRecord
from tests.bench.bench_recovery import requests
from tests.live import live

APART = ("--pool", "prefill=cpu:x1", "--pool", "decode=cpu:x1")
WARM_S = 3.0
HEAD = "served by         a second        TTFT, ms           TPOT, ms            E2E, ms  others"


def gb_per_s(url: str) -> float:
    """How fast one transfer of the server goes, in the mean."""
    found = counters(url)
    seconds = found["sundog:kv_transfer_seconds_total"]
    return found["sundog:kv_transfer_bytes_total"] / seconds / 1e9


def beside(said: Summary, was: Summary) -> str:
    """Means of latencies: predicted, measured, and their ratio."""
    found = []
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        ours, theirs = (getattr(each, name).mean * 1e3 for each in (said, was))
        found.append(f"{ours:>6.1f} {theirs:>6.1f} {ours / theirs:>5.2f}")
    return " ".join(found)


def loads(name: str, words: tuple[str, ...], profile: str, args: argparse.Namespace) -> None:
    """Serve, put every load on, and print what was predicted of it beside what was measured."""
    with live("sundog", "serve", "--port", "0", *words) as server:
        load, term = ClientLoad(server.url, timeout_s=60.0), TermsOptions()
        target, found = TargetOptions(cost=profile), find(load)
        seen(load, found, requests(args.rates[0], WARM_S, 0), ClientRecord())
        if words:
            pools = tuple(word.replace("=cpu:", f"={profile}:") for word in words[1::2])
            target = TargetOptions(pool=pools, kv_transfer_gb_per_s=gb_per_s(server.url))
            print(f"a transfer goes at {target.kv_transfer_gb_per_s:.2f} GB/s")
        for seed, rate in enumerate(args.rates, 1):
            rows, record, cores = requests(rate, args.seconds, seed), ClientRecord(), Cores()
            was, others = seen(load, found, rows, record), cores.others()
            said = predict(load, deploy(EngineOptions(), target), term, as_answered(rows, record))
            print(f"{name:<16} {rate:>9g} {beside(said, was)} {others:>6.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench pools")
    parser.add_argument("--cost", help="the profile of the embedded model's engine")
    parser.add_argument("--rates", type=lambda text: [float(n) for n in text.split(",")], default=[2, 6, 12])
    parser.add_argument("--seconds", type=float, default=12.0, help="how long each load comes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sundog-bench-") as folder:
        profile = args.cost or f"{folder}/profile.toml"
        if args.cost is None:
            from_engine("sundog-tiny", EngineOptions(), MeasuringOptions(), Path(profile))
        print(HEAD)
        loads("one engine", (), profile, args)
        loads("prefill + decode", APART, profile, args)


if __name__ == "__main__":
    main()
