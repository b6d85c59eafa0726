"""A fleet bought by mean lengths: `python docs/experiments/mean_lies.py`."""

from shown import HERE, bars, save, show

import sundog

TRAFFIC = HERE / "mean_lies.toml"
SLO = "p95(ttft)<1,p95(tpot)<0.04"


def main() -> None:
    """Plan for chats and long documents, and for their mean; then try fleets on what really comes."""
    bought = sundog.plan(TRAFFIC, slo=SLO, replications=3, judge_s=0, tune=False).figures
    for name in ("winner", "at_mean_lengths"):
        fleet = bought[name]
        ranks = fleet["settings"]["tensor_parallel_size"]
        print(f"{name}: {fleet['gpus']} GPUs, {fleet['replicas']} replicas of tensor parallelism {ranks}")
    found = sundog.sweep(
        TRAFFIC,
        vary={"tensor_parallel_size": [1, 2], "replicas": [1, 2, 3]},
        metrics=["tpot_s.p95", "ttft_s.p95", "slo_held"],
        replications=3,
        slo=SLO,
    )
    show(found)
    save(bars(found, "tpot_s.p95", "slo_held"))


if __name__ == "__main__":
    main()
