"""Engine core in the server's process against one in its own process: tokens, CPU seconds, gaps, recovery
time.

    python -m tests.bench processes [--rounds N]

Both serve the embedded model to 8 streams, in turns within one run; then prompts as long as its context come
beside them, and /health is asked meanwhile. CPU seconds are those of the server and all its processes: wall
times mean something only on a machine that does nothing else.
"""

import argparse
import statistics
import threading
import time
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # ships no types

from tests.live import Live, Stream, live

NUM_STREAMS, NUM_TOKENS = 8, 200
LONG_PROMPT = "word " * 1500
NUM_LONG = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw of one load: tokens a second, CPU seconds for a thousand tokens, gaps in s."""

    tokens_per_s: float
    cpu_s: float
    gaps_s: list[float]
    health_s: list[float]


def cpu_s(server: Live) -> float:
    """CPU seconds of a server and its processes so far."""
    process = psutil.Process(server.process.pid)
    return float(sum(sum(each.cpu_times()[:2]) for each in [process, *process.children(recursive=True)]))


def load(server: Live, num_long: int) -> Seen:
    """Streams, with long prompts beside them."""
    began_s, began_cpu_s = time.perf_counter(), cpu_s(server)
    streams = [
        Stream(server, prompt=f"{n} fox", max_tokens=NUM_TOKENS, ignore_eos=True) for n in range(NUM_STREAMS)
    ]
    streams[-1].begun.wait()
    is_over = threading.Event()
    health_s: list[float] = []
    asking = threading.Thread(target=ask_health, args=(server, is_over, health_s))
    asking.start()
    for number in range(num_long):
        server.complete(f"{number} {LONG_PROMPT}", max_tokens=1)
    for stream in streams:
        stream.whole()
    num_tokens = NUM_STREAMS * NUM_TOKENS
    is_over.set()
    asking.join()
    seconds = time.perf_counter() - began_s
    gaps_s = [b - a for each in streams for a, b in zip(each.times_s, each.times_s[1:], strict=False)]
    used_s = cpu_s(server) - began_cpu_s
    return Seen(num_tokens / seconds, used_s / num_tokens * 1000, gaps_s, health_s)


def ask_health(server: Live, is_over: threading.Event, seconds: list[float]) -> None:
    while not is_over.wait(0.02):
        began_s = time.perf_counter()
        server.health()
        seconds.append(time.perf_counter() - began_s)


def p99_ms(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] * 1e3


def back_s(server: Live) -> float:
    """Seconds from kill -9 of the engine process until /health is 200 again."""
    engine = server.below("sundog engine ")[0]
    engine.kill()
    return server.until_replaced([engine])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    serve = ("sundog", "serve", "--port", "0", "--no-enable-prefix-caching", "--disable-log-stats")
    modes = {"in process": ("--in-process",), "own process": ()}
    ready_s: dict[str, float] = {}
    seen: dict[tuple[str, int], list[Seen]] = {}
    for _ in range(rounds):
        for mode, options in modes.items():
            began_s = time.perf_counter()
            with live(*serve, *options) as server:
                ready_s[mode] = time.perf_counter() - began_s
                load(server, 0)
                for num_long in (0, NUM_LONG):
                    seen.setdefault((mode, num_long), []).append(load(server, num_long))
                if mode == "own process":
                    restarts = sorted(back_s(server) for _ in range(3))
    for (mode, num_long), all_seen in sorted(seen.items(), key=lambda item: item[0][1]):
        print(
            f"{mode:<12} {'with long prompts' if num_long else 'streams alone':<18}"
            f" {statistics.median(each.tokens_per_s for each in all_seen):7.0f} tokens/s,"
            f" {statistics.median(each.cpu_s for each in all_seen):.2f} CPU s per 1000 tokens,"
            f" gap p50 {statistics.median(statistics.median(each.gaps_s) for each in all_seen) * 1e3:.1f} ms,"
            f" p99 {statistics.median(p99_ms(each.gaps_s) for each in all_seen):.1f} ms,"
            f" /health p99 {statistics.median(p99_ms(each.health_s) for each in all_seen):.1f} ms"
        )
    print("ready after " + ", ".join(f"{seconds:.1f} s {mode}" for mode, seconds in ready_s.items()))
    print(f"back after kill -9: {', '.join(f'{each:.2f}' for each in restarts)} s")
