"""Instructions that multiply a model's numbers on this CPU, in words for the start line."""

import ctypes

import torch

INT8_IS_FASTER = {
    "AVX2": "for one or two requests at a time, by a half",
    "AVX-512 with bf16": "by three quarters",
    "AMX": "for one request at a time, by a half",
}
"""When and by how much `--quantization int8` is faster than bfloat16, as measured (docs/served.md)."""


def instructions(library: ctypes.CDLL | None, dtype: torch.dtype, *, has_whole: bool) -> str:
    """Return what multiplies numbers of this format; `has_whole` for weights of few bits."""
    if library is None:
        return f"torch's kernels for {torch.backends.cpu.get_cpu_capability()}"
    name = _name(library)
    if has_whole:
        return f"{name} in whole numbers"
    is_widened = dtype is torch.float16 or (dtype is torch.bfloat16 and not library.sundog_multiplies_bf16())
    return f"{name} as float32" if is_widened else name


def faster(library: ctypes.CDLL | None, dtype: torch.dtype, *, has_whole: bool) -> str | None:
    """Return the option that would speed up answers, if that was measured."""
    if library is None or has_whole or dtype is not torch.bfloat16:
        return None
    when = INT8_IS_FASTER.get(_name(library))
    return None if when is None else f"--quantization int8 is faster {when}"


def _name(library: ctypes.CDLL) -> str:
    found: bytes = library.sundog_instructions()
    return found.decode()
