"""Compilation of this folder's C++ into one library per instruction set, and its cache.

A library's name holds a hash of the sources and flags, so that an existing library is the right one. It is
looked up beside the sources, where an installation puts it (setup.py), then in the user's cache, where the
first use puts it. Two processes may build at once: each writes a file of its own and moves it into place
whole.
"""

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
COMMON = ("-std=c++17", "-O3", "-fPIC", "-shared", "-w")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c")
AVX512_BF16 = (*AVX512, "-mavx512bf16", "-mavx512vnni")
VARIANTS = {
    "amx": (*AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "avx512_bf16": AVX512_BF16,
    "avx512": AVX512,
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "neon_i8mm": ("-march=armv8.2-a+dotprod+bf16+i8mm",),
    "neon_bf16": ("-march=armv8.2-a+dotprod+bf16",),
    "neon_dotprod": ("-march=armv8.2-a+dotprod",),
    "neon": ("-march=armv8-a",),
}
"""Compiler flags by instruction set, the best first: those of x86-64, then those of aarch64."""
CPU_NAMES = {
    "avx512bf16": "avx512_bf16",
    "avx512vnni": "avx512_vnni",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
}
"""Linux's names of the CPU features of x86 flags, if they differ from the flags."""
ARM_NEEDS = {
    "-march=armv8-a": ("asimd",),
    "-march=armv8.2-a": ("asimd", "asimdrdm", "atomics", "crc32"),
    "dotprod": ("asimddp",),
    "bf16": ("bf16",),
    "i8mm": ("i8mm",),
}
"""Linux's names of the CPU features of an aarch64 flag's parts."""
SYSCTL_NAMES = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_RDM": "asimdrdm",
    "hw.optional.arm.FEAT_LSE": "atomics",
    "hw.optional.armv8_crc32": "crc32",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
}
"""Linux's names of the features that macOS reports for an Apple CPU."""
WITH_TILES = "amx"
NEXT_BEST = {WITH_TILES: "avx512_bf16", "neon_i8mm": "neon_dotprod", "neon_bf16": "neon_dotprod"}
"""Variant to use if the compiler or the system does not support the CPU's best instructions."""
LACKING = {WITH_TILES: "tiles (AMX)", "neon_i8mm": "bf16 and i8mm", "neon_bf16": "bf16"}
"""What the compiler or the system does not support in that case, in words."""
_LOG = logging.getLogger("sundog.loading")
MOST_BUILD_S = 900
TEMPORARY = "sundog-native-"


class BuildError(Exception):
    """Raised if no library could be built; the message is the reason."""


def needs(variant: str) -> set[str]:
    """Return the CPU features that a variant needs, in Linux's names."""
    found: set[str] = set()
    for flag in VARIANTS[variant]:
        if flag.startswith("-march="):
            found.update(*(ARM_NEEDS[part] for part in flag.split("+")))
        else:
            found.add(CPU_NAMES.get(flag[2:], flag[2:]))
    return found


def variants_of(cpu_flags: set[str]) -> list[str]:
    """Return the variants for a CPU with these features (Linux's names), the best first."""
    return [variant for variant in VARIANTS if needs(variant) <= cpu_flags]


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the features of this CPU in Linux's names; empty if unknown."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return _apple_flags()
    return next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())


def _apple_flags() -> set[str]:
    try:
        done = subprocess.run(
            ["sysctl", "-a"], capture_output=True, text=True, check=False, timeout=10, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    return {ours for theirs, ours in SYSCTL_NAMES.items() if said.get(theirs, "").strip() == "1"}


def library_name(variant: str) -> str:
    """Return the file name of the library of these sources and flags."""
    digest = hashlib.sha256(" ".join((*COMMON, *VARIANTS[variant])).encode())
    for source in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"sundog-{variant}-{digest.hexdigest()[:16]}.so"


def cache_folder() -> Path:
    """Return the folder that keeps the user's libraries."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sundog" / "native"


def built(variant: str) -> Path:
    """Return the library of a variant, compiled in a few seconds if missing; BuildError has the reason of a
    failure.

    If the cache cannot be written, the library is in a temporary folder, which the caller removes.
    """
    name = library_name(variant)
    if (HERE / name).is_file():
        return HERE / name
    try:
        folder = cache_folder()
        if (folder / name).is_file():
            return folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return compile_into(folder, variant)
    except (OSError, RuntimeError):  # such as a user without a home
        return compile_into(Path(tempfile.mkdtemp(prefix=TEMPORARY)), variant)


def is_temporary(library: Path) -> bool:
    """Return whether the library is outside of installation and cache."""
    return library.parent.name.startswith(TEMPORARY)


def compile_into(folder: Path, variant: str) -> Path:
    """Compile a variant into a folder, all sources at once; OSError if the folder cannot be written."""
    target = folder / library_name(variant)
    _LOG.info("compiling kernels for this CPU (%s), once", variant)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        objects = {str(source): f"{scratch}/{source.stem}.o" for source in sorted(HERE.glob("*.cpp"))}
        part = Path(scratch) / target.name
        with ThreadPoolExecutor() as compilers:
            flags = (*COMMON, *VARIANTS[variant])
            list(
                compilers.map(lambda pair: _compile([*flags, "-c", pair[0], "-o", pair[1]]), objects.items())
            )
        _compile([*COMMON, *objects.values(), "-o", str(part), "-ldl"])
        part.replace(target)
    return target


def _compile(arguments: list[str]) -> None:
    compiler = shlex.split(os.environ.get("CXX", "")) or [
        next(filter(shutil.which, ("g++", "c++", "clang++")), "")
    ]
    if not shutil.which(compiler[0]):
        raise BuildError(f"there is no C++ compiler {compiler[0]}".rstrip() + " (install g++, or set CXX)")
    try:
        done = subprocess.run(
            [*compiler, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_BUILD_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{compiler[0]} took longer than {MOST_BUILD_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{compiler[0]} failed: {(lines or ['no message'])[0].strip()}")
