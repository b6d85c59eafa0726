"""Report of sizes: lines by package and room, the longest files and functions. `make house` prints it.

There is no limit. Most files have 50 to 400 lines, most functions about 15: a longer one is a place to look.
"""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("actors", "runtime", "sim", "sundog")
LONGEST = 12
"""Number of files, and of functions, in the report."""


def sizes(root: Path = ROOT) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Return the lines of each room, file and function of the product below `root`."""
    rooms: Counter[str] = Counter()
    files: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
            files[name] = len(text.splitlines())
            rooms["/".join(name.split("/")[:2]) if name.count("/") > 1 else package] += files[name]
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                    functions[f"{name}:{node.name}"] = node.end_lineno - node.lineno + 1
    return rooms, files, functions


def main() -> None:
    """Print the report."""
    rooms, files, functions = sizes()
    for package in PACKAGES:
        inside = {room: lines for room, lines in rooms.items() if room.split("/")[0] == package}
        print(f"{package:<28}{sum(inside.values()):>7,} lines")
        for room, lines in sorted(inside.items()):
            print(f"  {room if room != package else package + '/*.py':<26}{lines:>7,}")
    for title, found in (("longest files", files), ("longest functions", functions)):
        print(f"\n{title}")
        for name, lines in found.most_common(LONGEST):
            print(f"  {lines:>5}  {name}")


if __name__ == "__main__":
    main()
