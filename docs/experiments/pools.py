"""Prompts and answers on the same engines, or apart: `python docs/experiments/pools.py`."""

from shown import HERE, bars, save, show

import sundog

APART = [f"prefill=h100:x{number}+decode=h100:x{8 - number}" for number in (4, 5, 6)]


def main() -> None:
    """Eight H100 that do everything, or some of them prompts and the others answers."""
    found = sundog.sweep(
        HERE / "pools.toml",
        vary={"pool": ["both=h100:x8", "both=h100:x8:max_num_batched_tokens=1024", *APART]},
        metrics=["ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "tpot_s.p99", "slo_attainment"],
        slo="ttft=0.5,tpot=0.012",
        kv_transfer_gb_per_s=50,
        replications=4,
    )
    show(found)
    save(bars(found, "ttft_s.p99", "tpot_s.p99"))


if __name__ == "__main__":
    main()
