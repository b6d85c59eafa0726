"""`make test-clients`: clients that need another version of openai, in an environment of their own.

It is made beside the suite's at the first call. Where it cannot be made, one line says why, and that is no
failure: it takes packages that nothing else here needs.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENV = ROOT / ".venv-clients"
LOCK = HERE / "requirements.lock"
WANTED = ("anthropic", "langchain-openai", "litellm", "mcp", "openai", "psutil", "pytest")


def main() -> int:
    python = VENV / "bin" / "python"
    made = VENV / "made"
    if not made.exists() or made.stat().st_mtime < LOCK.stat().st_mtime:
        if (reason := _make(python)) is not None:
            print(f"make test-clients: skipped: {reason}", file=sys.stderr)
            return 0
        made.touch()
    env = os.environ | {"SUNDOG_PYTHON": sys.executable, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    asked = ("-c", str(HERE / "pytest.ini"), "--confcutdir", str(HERE), str(HERE), *sys.argv[1:])
    return subprocess.run([python, "-m", "pytest", *asked], cwd=ROOT, env=env, check=False).returncode


def _make(python: Path) -> str | None:
    """Make the environment, or say why there is none."""
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", str(LOCK))
    for command in ([sys.executable, "-m", "venv", str(VENV)], [str(python), *pip, *WANTED]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return (lines or done.stderr.splitlines() or ["pip said nothing"])[-1]
    return None


if __name__ == "__main__":
    sys.exit(main())
