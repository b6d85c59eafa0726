"""Building the kernels: once for all processes, and failures to build."""

import logging
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.native import build
from sundog.runtime.native import library as library_room
from sundog.runtime.native.library import Unavailable, choose, kernels, open_library
from tests.runtime.driver import Driver
from tests.runtime.models import build_model, generate, random_prompt
from tests.runtime.variants import RUNNABLE, needs_kernels

QUICK = tuple("-O0" if flag == "-O3" else flag for flag in build.COMMON)
"""A build is looked at here, not what it can."""
ALL_FLAGS = build.needs("amx")
STAND_IN = 'extern "C" int stands_in() { return 1; }'
"""For the sources, where a library is built and not opened."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing chosen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SUNDOG_NATIVE", raising=False)
    monkeypatch.setattr(build, "COMMON", QUICK)
    kernels.cache_clear()
    return tmp_path / "cache"


@needs_kernels
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
async def test_without_a_compiler_torch_answers_and_one_line_says_why(
    tmp_path: Path, compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers are the library's; two backends of a process say it once."""
    monkeypatch.setenv("CXX", compiler)
    model = build_model("llama", tmp_path)
    prompt = random_prompt(1, 12)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            backend = TorchBackend(
                tmp_path, dtype="float32", max_model_len=64, num_gpu_blocks=64, block_size=4
            )
            await backend.load()
            driver = Driver(backend, num_blocks=64)
            driver.submit("a", prompt)
            assert (await driver.run(5))["a"] == generate(model, prompt, 5)
    said = [r.getMessage() for r in caplog.records if "without compiled kernels" in r.getMessage()]
    assert len(said) == 1 and compiler in said[0]
    kernels.cache_clear()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one small source in the place of the kernels'."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "small.cpp").write_text(STAND_IN)
    monkeypatch.setattr(build, "HERE", folder)
    return folder


@needs_kernels
def test_a_library_is_built_once(cache: Path, sources: Path) -> None:
    """The second time it is found, whoever asks."""
    first = build.built(RUNNABLE[0])
    assert first.parent == cache / "sundog" / "native"
    written = first.stat().st_mtime_ns
    assert build.built(RUNNABLE[0]) == first and first.stat().st_mtime_ns == written
    assert [path.name for path in first.parent.iterdir()] == [build.library_name(RUNNABLE[0])]


@needs_kernels
def test_two_processes_build_at_once(cache: Path, sources: Path) -> None:
    """Both end well, and one library is there."""
    imports = "from pathlib import Path; from sundog.runtime.native import build"
    settings = f"build.HERE = Path({str(sources)!r}); build.COMMON = {QUICK}"
    code = f"{imports}; {settings}; build.built({RUNNABLE[0]!r})"
    root = Path(__file__).parents[2]
    both = [subprocess.Popen([sys.executable, "-c", code], cwd=root) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert [path.name for path in (cache / "sundog" / "native").iterdir()] == [
        build.library_name(RUNNABLE[0])
    ]


@pytest.mark.long(reason="compiles the kernels anew")
@needs_kernels
def test_a_cache_that_cannot_be_written_costs_a_build_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the folder would be")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert open_library(RUNNABLE[0]).sundog_has_team()
    assert not list(tmp_path.glob(build.TEMPORARY + "*"))


def test_a_changed_source_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.library_name("avx2")
    for source in build.HERE.glob("*.[ch]*"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.library_name("avx2") == before
    (tmp_path / "simd.h").write_text("// nothing")
    assert build.library_name("avx2") != before


def test_the_best_variant_that_the_cpu_can_run_is_chosen() -> None:
    """And what is asked for by name is refused by name."""
    avx2 = {"avx2", "fma", "f16c", "sse2"}
    avx512 = avx2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    assert choose(None, avx2) == "avx2"
    assert choose(None, avx512) == "avx512"
    bf16 = avx512 | {"avx512_bf16", "avx512_vnni"}
    assert choose("", bf16) == "avx512_bf16"
    amx = bf16 | {"amx_tile", "amx_bf16", "amx_int8"}
    assert choose("", amx) == "amx" and choose("", amx - {"amx_bf16"}) == "avx512_bf16"
    assert choose("avx2", avx512) == "avx2"
    for wanted, has, reason in (
        ("avx512", avx2, "this CPU has no avx512"),
        ("neon", avx512, "this CPU has no neon"),
        (None, set(), "this CPU has no AVX2 and no NEON"),
        (
            "sse",
            avx512,
            "use amx, avx512_bf16, avx512, avx2, neon_i8mm, neon_bf16, neon_dotprod, neon or off",
        ),
        ("off", avx512, "SUNDOG_NATIVE is off"),
    ):
        with pytest.raises(Unavailable, match=reason):
            choose(wanted, has)


CORES = {
    "neon": "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid",
    "neon_dotprod": "fp asimd evtstrm aes pmull sha1 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp ssbs",
    "neon_bf16": "fp asimd crc32 atomics fphp asimdhp asimdrdm asimddp sve bf16",
    "neon_i8mm": "fp asimd crc32 atomics fphp asimdhp cpuid asimdrdm jscvt asimddp sve i8mm bf16 dgh rng",
}
"""What Linux says of aarch64's cores, such as Cortex-A72, Neoverse N1 (Graviton2) and V1 (Graviton3)."""


@pytest.mark.parametrize("level", CORES)
def test_aarch64_cores_get_their_level_from_what_linux_says(level: str, tmp_path: Path) -> None:
    """The best, and every lower one by its name."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: {CORES[level]}\nCPU part\t: 0xd40\n")
    flags = build.cpu_flags(cpuinfo)
    assert choose(None, flags) == level
    lower = list(build.VARIANTS)[list(build.VARIANTS).index(level) :]
    assert build.variants_of(flags) == lower
    assert [choose(name, flags) for name in lower] == lower
    with pytest.raises(Unavailable, match="this CPU has no avx2"):
        choose("avx2", flags)


def test_apple_cores_get_their_level_from_sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An M1 has no bf16, an M2 has; a name that is missing is a feature that is."""
    common = "hw.optional.AdvSIMD: 1\nhw.optional.armv8_crc32: 1\nhw.optional.arm.FEAT_RDM: 1\n"
    common += "hw.optional.arm.FEAT_LSE: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.model: a: b\n"
    later = "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_I8MM: 1\n"
    sysctl = tmp_path / "sysctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for said, level in (
        (common, "neon_dotprod"),
        (common + later.replace("1", "0"), "neon_dotprod"),
        (common + later, "neon_i8mm"),
    ):
        sysctl.write_text(f"#!/bin/sh\ncat <<END\n{said}END\n")
        sysctl.chmod(0o755)
        assert choose(None, build.cpu_flags(tmp_path / "no-cpuinfo")) == level


@pytest.mark.parametrize("best", ["neon_i8mm", "neon_bf16"])
def test_an_aarch64_compiler_without_bf16_builds_the_next_best(
    best: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The line says what is missing, by which level is computed, and why."""
    stand_in = object()

    def opened(variant: str) -> object:
        if variant == best:
            raise build.BuildError("g++ failed: invalid feature modifier")
        assert variant == "neon_dotprod"
        return stand_in

    monkeypatch.setattr(library_room, "open_library", opened)
    monkeypatch.setattr(build, "cpu_flags", lambda: build.needs(best))
    found: object = kernels()
    assert found is stand_in
    (said,) = (record.getMessage() for record in caplog.records)
    assert "without bf16" in said and "by neon_dotprod: g++ failed: invalid feature modifier" in said
    kernels.cache_clear()


@pytest.mark.long(reason="compiles the kernels anew")
@needs_kernels
def test_a_compiler_without_tiles_builds_the_next_best_and_one_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asks for tiles by name is told that there are none."""
    old = tmp_path / "old-compiler"
    refusal = "*-mamx-tile*) echo error: no -mamx-tile >&2; exit 1"
    old.write_text(f'#!/bin/sh\ncase "$*" in {refusal};; esac\nexec g++ "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("CXX", shlex.quote(str(old)))
    monkeypatch.setattr(build, "cpu_flags", lambda: ALL_FLAGS)
    found = kernels()
    assert found is not None and not found.sundog_has_tiles()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "without tiles (AMX), by avx512_bf16" in said[0] and "no -mamx-tile" in said[0]
    kernels.cache_clear()
    monkeypatch.setenv("SUNDOG_NATIVE", "amx")
    assert kernels() is None
    assert "computing without compiled kernels" in caplog.text
    kernels.cache_clear()


@pytest.mark.long(reason="compiles the kernels anew")
@needs_kernels
def test_a_system_that_gives_no_tiles_gets_the_next_best(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As kernels before Linux 5.16 do, and some sandboxes."""
    opened = library_room.open_library

    def refused(variant: str) -> object:
        if variant == "amx":
            raise Unavailable("the system gives this process no tiles (AMX)")
        return opened("avx2")

    monkeypatch.setattr(library_room, "open_library", refused)
    monkeypatch.setattr(build, "cpu_flags", lambda: ALL_FLAGS)
    assert kernels() is not None
    assert [
        r.getMessage() for r in caplog.records if "the system gives this process no tiles" in r.getMessage()
    ]
    kernels.cache_clear()
