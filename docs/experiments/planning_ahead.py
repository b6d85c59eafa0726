"""Planning a step while the last one runs, or after it: `python docs/experiments/planning_ahead.py`."""

from shown import HERE, save, show

import sundog


def main() -> None:
    """Vary when the scheduler plans, on a light and on a heavy load."""
    rate = "workload.arrivals.rate_per_s"
    found = sundog.sweep(
        HERE / "planning_ahead.toml",
        vary={rate: [10, 20, 30, 40], "async_scheduling": [True, False]},
        metrics=["tpot_s.mean", "ttft_s.mean", "output_tokens_per_s"],
        by=rate,
        replications=3,
    )
    show(found)
    save(found.plot.load_curve("tpot_s.mean"))


if __name__ == "__main__":
    main()
