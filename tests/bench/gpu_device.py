"""Measured limits of a device: memory bandwidth, and the rate of multiplication."""

import time
from collections.abc import Callable

import torch

NUM_TIMED = 10


def is_cuda(device: str) -> bool:
    return device.startswith("cuda")


def wait(device: str) -> None:
    if is_cuda(device):
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str) -> float:
    """The median time of some work, after three times untimed."""
    taken = []
    for number in range(NUM_TIMED + 3):
        wait(device)
        begin_s = time.perf_counter()
        work()
        wait(device)
        if number >= 3:
            taken.append(time.perf_counter() - begin_s)
    return sorted(taken)[len(taken) // 2]


def bytes_per_s(device: str) -> float:
    """Of a large copy, bytes read and bytes written together."""
    size = 4 << 30 if is_cuda(device) else 1 << 26
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source), device)


def flops_per_s(device: str) -> float:
    """Of a large square product of random numbers in bf16."""
    size = 8192 if is_cuda(device) else 512
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device)


def described(device: str) -> dict[str, object]:
    """The device and the versions that every figure is of."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    def found(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    name = torch.cuda.get_device_name() if is_cuda(device) else platform.processor() or platform.machine()
    return {
        "device": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **{package: found(package) for package in ("transformers", "triton")},
    }
