"""Routers in front of conversations with shared beginnings: `python docs/experiments/routers.py`."""

from shown import HERE, bars, save, show

import sundog


def main() -> None:
    """Send the turns of conversations, which repeat what was said, to four replicas with small caches."""
    found = sundog.sweep(
        HERE / "routers.toml",
        vary={"router": ["round-robin", "least-requests", "session-affinity", "prefix-aware"]},
        metrics=["ttft_s.mean", "tpot_s.mean", "prefix_hit_rate", "imbalance"],
        replications=3,
        replicas=4,
        num_gpu_blocks=3000,
        max_model_len=32768,
    )
    show(found)
    save(bars(found, "ttft_s.mean", "prefix_hit_rate"))


if __name__ == "__main__":
    main()
