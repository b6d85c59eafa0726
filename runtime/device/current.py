"""The device that a thread computes on, which kernels of Triton and recordings take without being told."""

import torch


def make_current(device: torch.device) -> None:
    """Of this thread, as each has its own: GPU 0 until it is told otherwise."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
