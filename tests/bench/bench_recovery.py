"""Recovery after kill -9, predicted and measured: the same faults on a real server and in its simulation.

    python -m tests.bench recovery [--cost PROFILE.toml] [--kills N] [--rate R] [--seed N]

The embedded model is served twice under a load at random. Kills of the first server say how long a start
takes and how long nobody notices (`down_s` and `notice_s`, means). Those of the second are predicted with
them, by a replay of the same requests with the same file, and compared with what its clients saw: how long
after a kill the next first token came, how many requests failed, and the p95 TTFT of those that waited for
their first token and were answered. Nothing else is fitted but the profile, which is from `sundog calibrate
sundog-tiny --max-num-seqs 2`, and made first if not given; none of it is from the kills that are judged.
"""

import argparse
import math
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sundog.builds.measuring import ClientLoad, Cores, as_answered, find, measure
from sundog.builds.replayed import play
from sundog.builds.simulated import deploy
from sundog.calibration.engine import from_engine
from sundog.options.engine import EngineOptions, MeasuringOptions
from sundog.options.simulation import LoadOptions, TargetOptions
from sundog.sim.record.client_record import ClientRecord
from sundog.sim.record.client_record import Seen as Outcome
from sundog.sim.record.columns import Columns
from sundog.sim.trace.record import TraceRequest
from tests.live import live

FIRST_S, EVERY_S = 3.0, 3.0
"""When the first kill comes, and how long after each the next, up to two seconds more."""
ENGINE = EngineOptions(max_num_seqs=2)
"""So few requests at once that some wait when their engine is killed."""
NEAR = 0.2
ON_THE_WAY_S = 0.05
"""Tokens that come so soon after a kill were computed before it; no start is as short."""
FAULT = '[[fault]]\nkind = "dead-engine"\nat_s = {}\nreplica = 0\ndown_s = {}\nnotice_s = {}\n'
UP = re.compile(r"up again, (\S+) s after it was killed, which was noticed after (\S+) s")


class TimedRecord(ClientRecord):
    """A record that knows when its run began, by `time.monotonic`."""

    begin_s: float | None = None

    def due(self, row: TraceRequest, seen: Outcome) -> None:
        if self.begin_s is None:
            self.begin_s = time.monotonic() - seen.sent_s
        super().due(row, seen)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a kill cost; `ttfts_s` are those of requests that waited for their first token when it came."""

    first_s: float
    num_failed: int
    ttfts_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KilledServer:
    """A server whose engine was killed by a file, at instants that count from `begin_s` before its load."""

    file: Path
    kills_s: tuple[float, ...]
    start: tuple[float, float]
    """After how long the engine was up again and its end was noticed, by the server's log; means."""
    rows: tuple[TraceRequest, ...]
    columns: Columns
    begin_s: float


def requests(rate_per_s: float, seconds: float, seed: int) -> list[TraceRequest]:
    """Requests at random, of many lengths."""
    rng, found, now_s = random.Random(seed), list[TraceRequest](), 0.0
    while (now_s := now_s + rng.expovariate(rate_per_s)) < seconds:
        found.append(TraceRequest(f"r{len(found)}", now_s, rng.randint(16, 256), rng.randint(32, 192)))
    return found


def killed(
    folder: Path, num_kills: int, start: tuple[float, float], rate_per_s: float, seed: int
) -> KilledServer:
    """Serve, put the load on, and have the engine killed by a file."""
    rng, file = random.Random(f"kills {seed}"), folder / f"kills-{seed}.toml"
    kills_s = tuple(round(FIRST_S + EVERY_S * n + rng.uniform(0, 2), 3) for n in range(num_kills))
    file.write_text("\n".join(FAULT.format(at_s, *start) for at_s in kills_s))
    rows, record = requests(rate_per_s, kills_s[-1] + EVERY_S, seed), TimedRecord()
    options = ("--max-num-seqs", str(ENGINE.max_num_seqs), "--faults", str(file))
    with live("sundog", "serve", "--port", "0", *options) as server:
        load, cores = ClientLoad(server.url, timeout_s=60.0), Cores()
        measure(load, find(load), rows, record)
        others = cores.others()
    found = [(float(each[1]), float(each[2])) for line in server.said if (each := UP.search(line))]
    downs_s, notices_s = zip(*found, strict=True)
    first_kill_s = next(
        at_s for at_s, line in zip(server.said_s, server.said, strict=True) if "is killed" in line
    )
    assert record.begin_s is not None and len(downs_s) == num_kills, server.said
    print(
        f"  {len(rows)} requests; other processes had {others:.0%} of the cores; noticed after"
        f" {min(notices_s):.3f} to {max(notices_s):.3f} s, up again after {min(downs_s):.3f} to"
        f" {max(downs_s):.3f} s",
        flush=True,
    )
    record.columns.sort()
    begin_s = record.begin_s - (first_kill_s - kills_s[0])
    answered = tuple(as_answered(rows, record))
    means = statistics.mean(downs_s), statistics.mean(notices_s)
    return KilledServer(file, kills_s, means, answered, record.columns, begin_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw, or would have seen."""

    kills: tuple[Recovery, ...]
    e2e_s: float
    """Of all requests that were answered, in the mean; kills are the least of it."""


def seen(columns: Columns, kills_s: Sequence[float], begin_s: float, front_s: float) -> Seen:
    """What each kill cost requests whose times count from `begin_s`, and to whose tokens `front_s` come."""
    arrival_s, first_s, finish_s = (
        np.array(times) + offset_s
        for times, offset_s in (
            (columns.arrival_s, begin_s),
            (columns.first_token_s, begin_s + front_s),
            (columns.finish_s, begin_s + front_s),
        )
    )
    is_whole = np.array([reason in ("stop", "length") for reason in columns.reason])
    ended_s = np.where(np.isnan(finish_s), arrival_s, finish_s)  # refused at the door
    found = []
    for kill_s, next_s in zip(kills_s, (*kills_s[1:], math.inf), strict=True):
        comes_after = (first_s > kill_s + ON_THE_WAY_S) & (first_s < next_s)
        failed = ~is_whole & (ended_s >= kill_s) & (ended_s < next_s)
        waited = is_whole & comes_after & (arrival_s < kill_s)
        ttfts_s = tuple((first_s - arrival_s)[waited])
        found.append(Recovery(float(first_s[comes_after].min() - kill_s), int(failed.sum()), ttfts_s))
    return Seen(tuple(found), float((finish_s - arrival_s)[is_whole].mean()))


def predicted(kills: KilledServer, profile: str) -> Seen:
    """What a simulation says of the same requests and the same file."""
    simulated = deploy(ENGINE, TargetOptions(cost=profile, faults=str(kills.file)))
    rows = [row._replace(arrival_s=row.arrival_s + kills.begin_s) for row in kills.rows]
    recorder = play(simulated, rows, LoadOptions(), seed=0)
    return seen(recorder.columns, kills.kills_s, 0.0, simulated.front_end_s)


def p95(kills: Sequence[Recovery]) -> float:
    """The p95 TTFT of all that waited, NaN if none did."""
    ttfts_s = [one for each in kills for one in each.ttfts_s]
    return float(np.quantile(ttfts_s, 0.95)) if ttfts_s else math.nan


SUMS: dict[str, Callable[[Seen], float]] = {
    "mean recovery, s": lambda side: statistics.mean(each.first_s for each in side.kills),
    "failed requests": lambda side: sum(each.num_failed for each in side.kills),
    "requests that waited": lambda side: sum(len(each.ttfts_s) for each in side.kills),
    "p95 TTFT of those that waited, s": lambda side: p95(side.kills),
    "mean E2E of all that were answered, s": lambda side: side.e2e_s,
}
"""Figures of all kills together."""


def compare(said: Seen, was: Seen) -> None:
    """Print a row for each kill, predicted beside measured, and how the whole compares."""
    print("kill  next first token, s      failed  p95 TTFT of those that waited, s")
    for number, (ours, theirs) in enumerate(zip(said.kills, was.kills, strict=True), 1):
        late = [f"{p95([each]):.2f} of {len(each.ttfts_s)}" for each in (ours, theirs)]
        print(
            f"{number:>4} {ours.first_s:>6.2f} {theirs.first_s:>5.2f} {ours.first_s / theirs.first_s:>6.2f}"
            f" {ours.num_failed:>6} {theirs.num_failed:>4} {late[0]:>16} {late[1]:>14}"
        )
    ratios = [ours.first_s / theirs.first_s for ours, theirs in zip(said.kills, was.kills, strict=True)]
    is_near = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
    print(f"recovery within {NEAR:.0%}: {is_near} of {len(ratios)}; {min(ratios):.2f} to {max(ratios):.2f}")
    for name, figure in SUMS.items():
        ours_is, theirs_is = figure(said), figure(was)
        ratio = ours_is / theirs_is if theirs_is else math.nan
        print(f"{name}: predicted {ours_is:.3g}, measured {theirs_is:.3g}: {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench recovery")
    parser.add_argument("--cost", help="the profile of the embedded model's engine")
    parser.add_argument("--kills", type=int, default=20, help="to judge; half as many come before")
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sundog-bench-") as text:
        folder = Path(text)
        profile = args.cost or str(folder / "profile.toml")
        if args.cost is None:
            from_engine("sundog-tiny", ENGINE, MeasuringOptions(), Path(profile))
        print("kills that say how long a start takes:", flush=True)
        start = killed(folder, max(args.kills // 2, 1), (1.0, 0.0), args.rate, 2 * args.seed).start
        print("kills that are judged; down_s = {:.3f}, notice_s = {:.3f}:".format(*start), flush=True)
        kills = killed(folder, args.kills, start, args.rate, 2 * args.seed + 1)
        compare(predicted(kills, profile), seen(kills.columns, kills.kills_s, kills.begin_s, 0.0))


if __name__ == "__main__":
    main()
