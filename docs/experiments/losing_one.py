"""What the crash of one engine of eight costs, by the load: `python docs/experiments/losing_one.py`."""

import os.path

from shown import HERE, bars, save, show

import sundog

FAULTS = os.path.relpath(HERE / "losing_one_faults.toml")
RATE = "workload.arrivals.rate_per_s"


def main() -> None:
    """An engine dies for 20 seconds, at half, four fifths and nearly all of what eight can serve."""
    found = sundog.sweep(
        HERE / "losing_one.toml",
        vary={RATE: [65, 105, 124], "faults": ["none", FAULTS]},
        metrics=["slo_attainment", "ttft_s.mean", "ttft_s.p99", "finished_fraction"],
        by=RATE,
        slo="ttft=0.5",
        replications=3,
        replicas=8,
        router="least-requests",
        max_num_seqs=64,
        warmup_s=5,
    )
    show(found)
    save(bars(found, "slo_attainment", "ttft_s.p99"))


if __name__ == "__main__":
    main()
