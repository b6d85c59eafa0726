"""How slow may an engine start for an autoscaler? `python docs/experiments/start_up.py`."""

from shown import HERE, bars, save, show

import sundog


def main() -> None:
    """A fleet of up to four follows a load that rises fivefold; its engines start ever more slowly."""
    found = sundog.sweep(
        HERE / "start_up.toml",
        vary={"scaler": ["keda:target=24", "keda:target=12"], "scale_start_s": [15, 30, 60]},
        metrics=["slo_attainment", "ttft_s.mean", "ttft_s.p99", "gpu_hours"],
        by="scaler",
        slo="ttft=0.5",
        replications=3,
        replicas=4,
        router="least-requests",
        max_num_seqs=48,
        scale_every_s=5,
        warmup_s=0,
    )
    show(found)
    save(bars(found, "slo_attainment", "gpu_hours"))


if __name__ == "__main__":
    main()
