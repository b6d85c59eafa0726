"""Experiments: the same workloads under different settings, until the answer is precise enough."""
