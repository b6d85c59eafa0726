"""Build the site: `python -m tools.site [FOLDER]`, by default into build/site.

The pages of `docs/` are read as files, too, and name each other by paths from the root of the repository,
as in `docs/policies.md`. Here such names become links. README.md becomes the first page; the references of
commands and of public Python names are made of the code. A page must be reachable: each start page lists, in
its side bar, the pages that its text names, and Sphinx warns of any that no list has. Warnings are errors.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

import sundog
from sundog.cli import cli

ROOT = Path(__file__).parents[2]
STARTS = ("start/operate", "start/research", "start/plan", "start/contribute")
REFERENCES = ("reference/commands", "reference/python")
NAMED = re.compile(r"(?<!\[)`docs/([\w/-]+\.md)`")
TARGET = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


def with_links(text: str, page: str, known: set[str]) -> str:
    """Return the text of a page with a link for each page that it names, and without links to other files.

    Args:
        text: Markdown.
        page: Its path below `docs/`.
        known: The paths of all pages and pictures below `docs/`.
    """
    here = posixpath.dirname(page)

    def linked(found: re.Match[str]) -> str:
        path = posixpath.relpath(found[1], here or ".")
        return f"[{found[0]}]({path})" if found[1] in known else found[0]

    def inside(found: re.Match[str]) -> str:
        return found[0] if posixpath.normpath(posixpath.join(here, found[1])) in known else "]"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(NAMED, linked, re.sub(TARGET, inside, part)) for part in parts[::2]]
    return "".join(parts)


def listed(text: str, page: str) -> str:
    """Return the table of contents of a start page: the pages to which its text has links, in their order."""
    here = posixpath.dirname(page)
    targets = re.findall(r"\]\(([^)#\s:]+\.(?:md|ipynb))\)", text)
    paths = dict.fromkeys(
        posixpath.splitext(posixpath.normpath(posixpath.join(here, each)))[0] for each in targets
    )
    return toctree([f"/{path}" for path in paths if path not in REFERENCES])


def toctree(paths: list[str]) -> str:
    lines = "\n".join(paths)
    return f"\n```{{toctree}}\n:hidden:\n\n{lines}\n```\n"


def commands() -> str:
    """Return the reference of all commands, with all options."""
    text = "# Commands\n\nEach as `sundog COMMAND --help-all` prints it.\n"
    outer = click.Context(cli, info_name="sundog")
    for name in cli.list_commands(outer):
        command: Any = cli.get_command(outer, name)
        context = click.Context(command, info_name=name, parent=outer, max_content_width=100)
        text += f"\n## sundog {name}\n\n```text\n{command.get_help(context).strip()}\n```\n"
    return text


def names() -> str:
    """Return the reference of the public names of `sundog`."""
    text = (
        "# Python\n\nEverything that `import sundog` gives; what lies deeper may change.\n\n```{eval-rst}\n"
    )
    for name in sundog.__all__:
        is_class = isinstance(getattr(sundog, name), type)
        text += f".. auto{'class' if is_class else 'function'}:: sundog.{name}\n"
        text += "   :members:\n\n" if is_class else "\n"
    return f"{text}```\n"


def write_pages(folder: Path) -> None:
    """Write the input of Sphinx: the pages of `docs/` with links, and the references made from the code."""
    hidden = shutil.ignore_patterns("__pycache__", "*.py", "*.toml")
    shutil.copytree(ROOT / "docs", folder, ignore=hidden)
    made = {
        "index.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "reference/commands.md": commands(),
        "reference/python.md": names(),
    }
    (folder / "reference").mkdir()
    for path, text in made.items():
        (folder / path).write_text(text, encoding="utf-8")
    known = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for file in sorted(folder.rglob("*.md")):
        page = str(file.relative_to(folder))
        text = with_links(file.read_text(encoding="utf-8"), page, known)
        if page.removesuffix(".md") in STARTS or page == "experiments/README.md":
            text += listed(text, page)
        if page == "index.md":
            text += toctree([*STARTS, *REFERENCES])
        file.write_text(text, encoding="utf-8")


def main() -> None:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site")
    source = site.with_name(f"{site.name}-pages")
    for folder in (site, source):
        shutil.rmtree(folder, ignore_errors=True)
    write_pages(source)
    settings = Path(__file__).parent
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    sys.exit(subprocess.run([*sphinx, "-c", settings, source, site]).returncode)


if __name__ == "__main__":
    main()
