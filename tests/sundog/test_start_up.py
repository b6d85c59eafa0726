"""What a replay of one request imports: what is not needed is not waited for."""

import json
import subprocess
import sys
from pathlib import Path

SAYS = (
    "import json, sys\n"
    "from sundog.cli import main\n"
    "sys.argv = ['sundog', 'replay', sys.argv[1], '--json', '--no-ranges']\n"
    "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
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
)
"""Rooms that a replay does not enter."""
UNUSED = {
    "numpy.random",
    "numpy.ma",
    "numpy.fft",
    "numpy.polynomial",
    "multiprocessing",
    "asyncio",
    "unittest",
}
"""Parts of libraries that it does not need, of 5 to 30 ms each."""


def test_a_replay_of_one_request_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """Neither pydantic nor pyarrow, rich, torch or anything of HTTP."""
    trace = tmp_path / "one.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,64,8\n")
    ended = subprocess.run(
        [sys.executable, "-c", SAYS, str(trace)], capture_output=True, text=True, check=False
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
