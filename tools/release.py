"""A release: version, changelog and tag in one command, `make release VERSION=0.3.0`; dry unless `DO=1`.

By default it prints what it would change. With --do it writes `pyproject.toml` and `CHANGELOG.md`, commits
both, and tags the commit; nothing is pushed.
"""

import argparse
import datetime
import re
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "## Unreleased\n"


class Refused(Exception):
    """Raised for a release that cannot be made; the message is the reason."""


def main() -> None:
    """Print what a release changes; with `--do`, change it."""
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="the new version, such as 0.3.0")
    parser.add_argument("--do", action="store_true", help="write, commit and tag")
    parser.add_argument("--date", help="the day of the release; today if not given")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    asked = parser.parse_args()
    date = asked.date or datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        changed = release(asked.root, asked.version, date)
        for name, text in changed.items():
            old = (asked.root / name).read_text(encoding="utf-8")
            sys.stdout.writelines(unified_diff(old.splitlines(True), text.splitlines(True), name, name, n=1))
        if not asked.do:
            print(f"dry: nothing is changed; DO=1 writes this, commits it and tags it v{asked.version}")
            return
        check_clean(asked.root)
    except Refused as error:
        sys.exit(f"make release: {error}")
    for name, text in changed.items():
        (asked.root / name).write_text(text, encoding="utf-8")
    _git(asked.root, "add", *changed)
    _git(asked.root, "commit", "--quiet", "--message", f"release: {asked.version}")
    _git(asked.root, "tag", "--annotate", f"v{asked.version}", "--message", f"Sundog {asked.version}")
    print(f"v{asked.version} is tagged; `make wheels` builds it, and `git push --follow-tags` publishes it")


def release(root: Path, version: str, date: str) -> dict[str, str]:
    """Return the new texts of files by name; raises Refused if version or changelog is not ready."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Refused(f"{version} is no version: give three numbers, such as 0.3.0")
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(r'^version = "([\d.]+)"$', project, re.MULTILINE)
    if found is None:
        raise Refused("pyproject.toml has no version")
    if _numbers(version) <= _numbers(found[1]):
        raise Refused(f"{version} is not above {found[1]}, the version that is there")
    if f"v{version}" in _git(root, "tag", "--list").split():
        raise Refused(f"v{version} is tagged already")
    begin = changes.find(UNRELEASED)
    said = changes[begin + len(UNRELEASED) :].split("\n## ")[0].strip() if begin >= 0 else ""
    if not said:
        raise Refused("CHANGELOG.md has nothing under Unreleased")
    heading = f"{UNRELEASED}\n## {version} ({date})\n"
    return {
        "pyproject.toml": project.replace(found[0], f'version = "{version}"', 1),
        "CHANGELOG.md": changes.replace(UNRELEASED, heading, 1),
    }


def check_clean(root: Path) -> None:
    """Raise Refused if there are uncommitted changes, which would not be in the release."""
    if left := _git(root, "status", "--porcelain", "--untracked-files=no").strip():
        raise Refused(f"{left.splitlines()[0].split()[-1]} is changed and not committed")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
