"""A greedy tenant under three policies: `python docs/experiments/greedy_tenant.py`."""

from shown import HERE, bars, save, show

import sundog


def main() -> None:
    """Serve a steady tenant beside one that sends bursts, with few running slots."""
    found = sundog.sweep(
        HERE / "greedy_tenant.toml",
        vary={"policy": ["fcfs", "priority", "vtc"]},
        metrics=[
            "tenant.modest.ttft_s.mean",
            "tenant.greedy.ttft_s.mean",
            "tenant.modest.ttft_s.p99",
            "fairness",
        ],
        replications=5,
        max_num_seqs=10,
    )
    show(found)
    save(bars(found, "tenant.modest.ttft_s.mean", "tenant.greedy.ttft_s.mean"))


if __name__ == "__main__":
    main()
