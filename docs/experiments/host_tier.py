"""Agents whose blocks go to the host's memory while tools run: `python docs/experiments/host_tier.py`."""

from shown import HERE, bars, save, show

import sundog


def main() -> None:
    """Let agents think and call tools on one GPU, with more and more of the host's memory behind it."""
    found = sundog.sweep(
        HERE / "host_tier.toml",
        vary={"kv_offloading_size": [0, 8, 24, 96], "kv_offloading_gb_per_s": [50, 5]},
        metrics=["ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "prefix_hit_rate"],
        replications=3,
        num_gpu_blocks=6000,
        max_model_len=40960,
    )
    show(found)
    save(bars(found, "ttft_s.mean", "prefix_hit_rate"))


if __name__ == "__main__":
    main()
