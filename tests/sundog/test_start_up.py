"""Imports of a one-request replay: unneeded modules are not loaded."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAYS = (
    "import json, sys\n"
    "before = set(sys.modules)\n"  # a distribution's Python brings modules of its own, as `sitecustomize`
    "from sundog.cli import main\n"
    "sys.argv = ['sundog', 'replay', *sys.argv[1:], '--json', '--no-ranges']\n"
    "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    "print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)\n"
)
OURS = {"sundog"}
OTHERS = {
    "click",  # the command line
    "numpy",  # figures and cost models
    "trio",  # actors, with the five after it
    "attr",
    "attrs",
    "idna",
    "outcome",
    "sniffio",
    "sortedcontainers",
    "exceptiongroup",  # trio's, before Python 3.11
    "cbor2",  # keys of blocks, as vLLM makes them
    "xxhash",
    "mypy_extensions",
}
NOT_OURS = (
    "sundog.sim.emulation",
    "sundog.sim.explain",
    "sundog.sim.schedule",
    "sundog.sim.figures.sweep",
    "sundog.actors.api",
    "sundog.actors.http",
    "sundog.builds.server",
    "sundog.library",
    "sundog.planning",
    "sundog.runtime",
    "sundog.sim.figures.fit_",
    "sundog.sim.validation",
    "sundog.sim.show.html",
    "sundog.sweeps",
)
"""Rooms that a replay does not enter."""
MOST_OURS = 209
"""Most modules of ours that are imported; 208 are needed."""
MOST_OURS_OF_POOLS = 218
UNUSED = {
    "numpy.random",
    "numpy.ma",
    "numpy.fft",
    "numpy.polynomial",
    "multiprocessing",
    "asyncio",
    "difflib",
    "unittest",
}
"""Parts of libraries that it does not need, of 5 to 30 ms each."""


def has_standard_dataclasses(name: str) -> bool:
    """Whether a module takes the decorator of its records from the standard library."""
    path = (ROOT / name.replace(".", "/")).with_suffix(".py")
    if not path.exists() or name == "sundog.actors.core.records":
        return False
    imports = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
    return any(
        node.module == "dataclasses" and "dataclass" in {each.name for each in node.names} for node in imports
    )


@pytest.mark.parametrize(
    ("options", "most_ours"),
    [([], MOST_OURS), (["--pool", "prefill=h100:x1", "--pool", "decode=h100:x1"], MOST_OURS_OF_POOLS)],
    ids=["one engine", "pools"],
)
def test_a_replay_of_one_request_imports_nothing_that_it_does_not_need(
    tmp_path: Path, options: list[str], most_ours: int
) -> None:
    """Neither pydantic nor pyarrow, rich, torch or anything of HTTP."""
    trace = tmp_path / "one.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,64,8\n")
    ended = subprocess.run(
        [sys.executable, "-c", SAYS, str(trace), *options], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    names = json.loads(ended.stderr.splitlines()[-1])
    roots = {name.partition(".")[0] for name in names}
    further = {
        name for name in roots if not name.startswith(("_", "__")) and name not in sys.stdlib_module_names
    }
    assert not further - OURS - OTHERS - {"cython_runtime"}
    assert not [name for name in names if name.startswith(NOT_OURS)]
    assert not UNUSED & set(names)
    ours = [name for name in names if name.startswith("sundog")]
    assert len(ours) <= most_ours
    standard = [name for name in ours if has_standard_dataclasses(name)]
    assert not standard, "`sundog.actors.core.records` makes a record in a quarter of the time"
