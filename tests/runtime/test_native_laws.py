"""Laws of the kernels on emulated CPUs: the levels of aarch64, under qemu-user.

A program of C++ alone (`native_laws.cpp`) compares every kernel with plain formulas in double, and rows among
many with the same rows alone, to the bit. It is checked itself on this CPU's own level.
"""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sundog.runtime.native import build
from tests.runtime.variants import RUNNABLE, needs_kernels

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
INSTALL = "apt-get install g++-aarch64-linux-gnu qemu-user"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
EMULATED = {
    "neon": ("cortex-a53", "NEON"),
    "neon_dotprod": ("cortex-a76", "NEON with dotprod"),
    "neon_bf16": ("max", "NEON with bf16"),
    "neon_i8mm": ("max", "NEON with bf16 and i8mm"),
}
"""The emulated core of each level, the least that has its instructions, and what the kernels say of it."""
QUICKER = "-O2"
MOST_S = 900


def compiled(compiler: str, variant: str, folder: Path) -> Path:
    """The program of one level with the kernels in it, as objects of a library are compiled."""
    flags = [QUICKER if flag == "-O3" else flag for flag in build.COMMON if flag != "-shared"]
    sources = [*build.HERE.glob("*.cpp"), Path(__file__).with_name("native_laws.cpp")]
    objects = [folder / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, target: Path) -> None:
        run(
            [
                compiler,
                *flags,
                *build.VARIANTS[variant],
                f"-I{build.HERE}",
                "-c",
                str(source),
                "-o",
                str(target),
            ]
        )

    with ThreadPoolExecutor(2) as compilers:
        list(compilers.map(compile_one, sources, objects))
    program = folder / "laws"
    # The threads that the kernels look for are torch's elsewhere.
    run([compiler, *map(str, objects), "-o", str(program), "-Wl,--no-as-needed", "-lgomp", "-ldl"])
    return program


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MOST_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def check(said: str, instructions: str) -> None:
    """The level is the one that was meant, threads were there, and every law was checked and holds."""
    first, *laws, last = said.splitlines()
    assert first.startswith(f"instructions: {instructions}; ") and first.endswith("threads: 1"), first
    assert len(laws) == 28 and all(line.startswith("holds ") for line in laws), said
    assert last.startswith("0 faults in "), last


@needs_kernels
@pytest.mark.long(
    rare=True, reason="test_native, test_native_panels and test_few_bits state these laws through Python"
)
def test_the_kernels_keep_their_laws_in_a_program_alone(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    said = run([str(compiled(compiler, RUNNABLE[0], tmp_path))])
    check(said, said.partition(": ")[2].partition(";")[0])


@pytest.mark.long(
    rare=True, reason="this CPU's own levels are tested through Python; an emulator takes a minute for one"
)
@pytest.mark.parametrize("variant", EMULATED)
def test_the_kernels_keep_their_laws_on_aarch64(variant: str, tmp_path: Path) -> None:
    """Float32, float16, bfloat16, 8 and 4 bits, attention and whole steps, in every level of NEON."""
    compiler, emulator = shutil.which(CROSS), shutil.which(EMULATOR)
    if compiler is None or emulator is None or not LIBRARIES.is_dir():
        pytest.skip(f"there is no {CROSS if compiler is None else EMULATOR}: {INSTALL}")
    if platform.machine() == "aarch64":
        pytest.skip("this CPU runs NEON itself")
    core, instructions = EMULATED[variant]
    program = compiled(compiler, variant, tmp_path)
    check(run([emulator, "-cpu", core, "-L", str(LIBRARIES), str(program)]), instructions)


def test_every_aarch64_level_is_emulated() -> None:
    assert list(EMULATED) == [name for name in reversed(build.VARIANTS) if name.startswith("neon")]
