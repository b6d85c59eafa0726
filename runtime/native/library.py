"""The compiled kernels, called by plain pointers: a call costs about a microsecond and no torch headers.

Law: kernels are a matter of speed. Without them, for whatever reason, every answer is computed by torch, and
one line of the log says why. `SUNDOG_NATIVE` chooses a variant (`avx512_bf16`, `avx512`, `avx2`) or none
(`off`).
"""

import ctypes
import functools
import logging
import os
import shutil
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p

import torch

from runtime.native import build

_LOG = logging.getLogger("sundog.native")
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class Layer(Structure):
    """One attention layer and its keys and values; attention.h has the same record."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("format", c_int32),
        ("num_heads", c_int32),
        ("num_key_heads", c_int32),
        ("key_width", c_int32),
        ("value_width", c_int32),
        ("block_size", c_int32),
        ("scaling", c_float),
        ("softcap", c_float),
        ("window", c_int64),
        ("sinks", c_void_p),
    )


class Sequences(Structure):
    """The requests of a step; attention.h has the same record."""

    _fields_ = (
        ("num_sequences", c_int64),
        ("start", c_void_p),
        ("position", c_void_p),
        ("table", c_void_p),
        ("slot", c_void_p),
    )


class Rows(Structure):
    """Rows of heads, and how far they lie apart; attention.h has the same record."""

    _fields_ = (("at", c_void_p), ("row", c_int64), ("head", c_int64))


class Unavailable(Exception):
    """Why there are no kernels here."""


def open_library(variant: str) -> ctypes.CDLL:
    """A variant's library; raises BuildError or Unavailable."""
    path = build.built(variant)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded: {error}") from error
    finally:
        if build.is_temporary(path):
            shutil.rmtree(path.parent, ignore_errors=True)
    library.sundog_attend.argtypes = [POINTER(Layer), POINTER(Sequences), *[POINTER(Rows)] * 4, c_int32]
    library.sundog_attend.restype = None
    if not library.sundog_has_team():
        raise Unavailable("this torch brings no GNU OpenMP threads to share")
    return library


def choose(wanted: str | None, cpu_flags: set[str]) -> str:
    """The variant for this CPU, or the wanted one if the CPU can run it."""
    can = build.variants_of(cpu_flags)
    if wanted == "off":
        raise Unavailable("SUNDOG_NATIVE is off")
    if wanted and wanted not in build.VARIANTS:
        raise Unavailable(f"SUNDOG_NATIVE is {wanted!r}: use {', '.join(build.VARIANTS)} or off")
    if not can or (wanted and wanted not in can):
        raise Unavailable(f"this CPU has no {wanted or 'AVX2'}")
    return wanted or can[0]


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """The kernels of this process, or None, which the log explains once."""
    try:
        return open_library(choose(os.environ.get("SUNDOG_NATIVE"), build.cpu_flags()))
    except (build.BuildError, Unavailable) as error:
        _LOG.warning("computing without compiled kernels, at about half the speed: %s", error)
        return None
