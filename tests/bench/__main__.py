"""Run every benchmark, or those that are named: `python -m tests.bench [NAME ...] [OPTIONS of one]`.

`python -m tests.bench gate BASE` compares with a commit, and is not among those that run by default;
`gate --help` says how.
"""

import importlib
import pkgutil
import sys

from tests import bench

GATE = "gate"


def main(arguments: list[str]) -> int:
    if arguments[:1] == [GATE]:
        importlib.import_module("tests.bench.bench_gate").main(arguments[1:])
        return 0
    first_option = next((i for i, text in enumerate(arguments) if text.startswith("-")), len(arguments))
    wanted, options = arguments[:first_option], arguments[first_option:]
    names = sorted(
        module.name.removeprefix("bench_")
        for module in pkgutil.iter_modules(bench.__path__)
        if module.name.startswith("bench_")
    )
    names.remove(GATE)
    unknown = set(wanted) - set(names)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; known: {', '.join(names)}, and {GATE} BASE")
        return 2
    if options and len(wanted) != 1:
        print(f"{options[0]} is an option of one benchmark: name it first")
        return 2
    for name in wanted or names:
        print(f"\n== {name}", flush=True)
        sys.argv[1:] = options
        importlib.import_module(f"tests.bench.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
