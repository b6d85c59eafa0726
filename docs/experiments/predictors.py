"""Shortest remaining first, by predictions good and bad: `python docs/experiments/predictors.py`."""

from shown import HERE, bars, save, show

import sundog


def main() -> None:
    """Give the policy the truth, the mean of its tenant, or the truth with an error."""
    found = sundog.sweep(
        HERE / "predictors.toml",
        vary={"policy": ["shortest-remaining", "fcfs"], "predictor": ["oracle", "noisy", "class-mean"]},
        metrics=["e2e_s.mean", "e2e_s.p99", "ttft_s.mean"],
        replications=16,
        max_num_seqs=10,
    )
    show(found)
    save(bars(found, "e2e_s.mean", "e2e_s.p99"))


if __name__ == "__main__":
    main()
