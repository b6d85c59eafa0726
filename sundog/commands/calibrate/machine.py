"""What a measurement was made on and with, for people who read its file."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine(device: str) -> dict[str, object]:
    """The device, its threads, and versions. Imports torch."""
    import torch

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "sundog": _version("sundog"),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Its name where Linux says it, else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
