"""Compiled kernels, called with plain pointers: a call costs about a microsecond, without torch headers.

Law: kernels only affect speed. If they are missing for any reason, torch computes everything, and one line of
the log gives the reason. `SUNDOG_NATIVE` chooses a variant (`amx`, `avx512_bf16`, `avx512`, `avx2`; on
aarch64 `neon_i8mm`, `neon_bf16`, `neon_dotprod`, `neon`) or none (`off`).
"""

import ctypes
import functools
import logging
import os
import shutil
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p

from sundog.runtime.native import build
from sundog.runtime.native.records import (
    DecoderRecord,
    LayerRecord,
    Linear,
    RowsRecord,
    SequencesRecord,
    StepRecord,
)

_LOG = logging.getLogger("sundog.native")


class Unavailable(Exception):
    """Raised if no kernels are available; the message is the reason."""


def open_library(variant: str) -> ctypes.CDLL:
    """Return a variant's library; raises BuildError or Unavailable."""
    path = build.built(variant)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded: {error}") from error
    finally:
        if build.is_temporary(path):
            shutil.rmtree(path.parent, ignore_errors=True)
    library.sundog_attend.argtypes = [
        POINTER(LayerRecord),
        POINTER(SequencesRecord),
        *[POINTER(RowsRecord)] * 4,
        c_int32,
    ]
    library.sundog_attend.restype = None
    library.sundog_decode.argtypes = [POINTER(DecoderRecord), POINTER(StepRecord), c_int32]
    library.sundog_decode.restype = None
    library.sundog_linear.argtypes = [POINTER(Linear), c_void_p, c_int64, c_void_p, c_int32, c_int32]
    library.sundog_linear.restype = None
    library.sundog_instructions.restype = c_char_p
    if not library.sundog_has_team():
        raise Unavailable("this torch brings no GNU OpenMP threads to share")
    if not library.sundog_is_allowed():
        raise Unavailable("the system gives this process no tiles (AMX)")
    return library


def choose(wanted: str | None, cpu_flags: set[str]) -> str:
    """Return the variant for this CPU, or the wanted one if the CPU supports it."""
    can = build.variants_of(cpu_flags)
    if wanted == "off":
        raise Unavailable("SUNDOG_NATIVE is off")
    if wanted and wanted not in build.VARIANTS:
        raise Unavailable(f"SUNDOG_NATIVE is {wanted!r}: use {', '.join(build.VARIANTS)} or off")
    if not can or (wanted and wanted not in can):
        raise Unavailable(f"this CPU has no {wanted or 'AVX2 and no NEON'}")
    return wanted or can[0]


def _opened(wanted: str | None, cpu_flags: set[str]) -> ctypes.CDLL:
    """Open the best library that compiler and system support; the log names a missing better one."""
    variant = choose(wanted, cpu_flags)
    if wanted or variant not in build.NEXT_BEST:
        return open_library(variant)
    try:
        return open_library(variant)
    except (build.BuildError, Unavailable) as error:
        without = build.NEXT_BEST[variant]
        library = open_library(without)
        _LOG.warning("computing without %s, by %s: %s", build.LACKING[variant], without, error)
        return library


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """Return the kernels of this process, or None, with the reason logged once."""
    try:
        return _opened(os.environ.get("SUNDOG_NATIVE"), build.cpu_flags())
    except (build.BuildError, Unavailable) as error:
        _LOG.warning("computing without compiled kernels, at about half the speed: %s", error)
        return None
