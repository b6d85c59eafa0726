"""`python -m tests.oracle.changes OLD NEW`: list what a version of vLLM changes in the parts that Sundog
follows.

    python -m tests.oracle.changes 0.32.0 0.33.0
    python -m tests.oracle.changes 0.33.0 0.34.0 --diff | less

For each file: the lines that came and went, the functions that they are in, and our files that decide the
same. With --diff the differences themselves follow. The sources are downloaded if they are not there yet
(`tests/oracle/environment.py`). The way to follow a version is in `docs/vllm.md`.
"""

import argparse
import ast
import difflib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.oracle.environment import cache_folder, vllm_sources

STEP: Final = "actors/core/step/"
BLOCKS: Final = "actors/core/blocks/"
FOLLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm/v1/core/sched/scheduler.py": (f"{STEP}plan.py", f"{STEP}update.py", f"{STEP}state.py"),
    "vllm/v1/core/sched/async_scheduler.py": (f"{STEP}commit.py", f"{STEP}update.py"),
    "vllm/v1/core/sched/request_queue.py": ("actors/core/queue/waiting.py", "actors/core/policies/orders.py"),
    "vllm/v1/core/sched/utils.py": (f"{STEP}update.py", "actors/core/params/stop_strings.py"),
    "vllm/v1/core/sched/output.py": ("actors/core/batch.py", f"{STEP}commit.py"),
    "vllm/v1/core/sched/interface.py": ("sundog/export/vllm_scheduler.py",),
    "vllm/v1/core/kv_cache_manager.py": (f"{BLOCKS}kv_cache.py", f"{STEP}demand.py"),
    "vllm/v1/core/kv_cache_coordinator.py": (f"{BLOCKS}kv_cache.py",),
    "vllm/v1/core/single_type_kv_cache_manager.py": (f"{BLOCKS}kv_cache.py",),
    "vllm/v1/core/block_pool.py": (f"{BLOCKS}block_pool.py", f"{BLOCKS}runs.py", f"{BLOCKS}kv_events.py"),
    "vllm/v1/core/kv_cache_utils.py": ("actors/block_hash.py", f"{BLOCKS}block_pool.py"),
    "vllm/v1/core/": (),
    "vllm/v1/request.py": ("actors/core/request.py",),
    "vllm/v1/engine/core.py": ("actors/engine/scheduler.py", "actors/engine/inbox.py"),
    "vllm/config/scheduler.py": ("actors/core/config.py", "sundog/options/engine.py"),
    "vllm/config/cache.py": ("actors/core/config.py", "sundog/options/engine.py"),
    "vllm/config/speculative.py": ("actors/config/speculative.py",),
    "vllm/v1/spec_decode/": ("actors/core/step/update.py", "runtime/engine/speculator.py"),
    "vllm/v1/kv_offload/": (f"{BLOCKS}host_tier.py", f"{STEP}demand.py"),
}
"""Our files that decide what a file of vLLM's does, or those in a folder; the first match counts."""
FUNCTIONS: Final[Mapping[str, str]] = {
    "Scheduler.schedule": f"{STEP}plan.py",
    "Scheduler._update_after_schedule": f"{STEP}commit.py",
    "Scheduler._preempt_request": f"{STEP}state.py (preempt)",
    "Scheduler.update_from_output": f"{STEP}update.py",
    "Scheduler._update_request_with_output": f"{STEP}update.py",
    "Scheduler.update_draft_token_ids": f"{STEP}update.py (_offer)",
    "Scheduler.finish_requests": f"{STEP}state.py (abort)",
    "Scheduler._free_request": f"{STEP}state.py (finish)",
    "Scheduler.reset_prefix_cache": f"{STEP}state.py (reset_prefix_cache)",
    "Scheduler._reserve_prefill_lookahead": "sundog/export/vllm_scheduler.py (quotas)",
    "KVCacheManager.allocate_slots": f"{BLOCKS}kv_cache.py (fits, admit, grow)",
    "KVCacheManager.get_computed_blocks": f"{BLOCKS}kv_cache.py (find_hit)",
    "BlockPool.cache_full_blocks": f"{BLOCKS}block_pool.py (register)",
    "BlockPool.get_new_blocks": f"{BLOCKS}block_pool.py (take)",
    "BlockPool.touch": f"{BLOCKS}block_pool.py (share)",
    "BlockPool.free_blocks": f"{BLOCKS}block_pool.py (release)",
    "BlockPool.reset_prefix_cache": f"{BLOCKS}block_pool.py (forget_all)",
}
"""Our place for a function that decides; it goes before that of its file."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs: the lines that came and went, and the functions they are in, in the new file."""

    name: str
    num_added: int
    num_removed: int
    functions: tuple[str, ...]
    diff: tuple[str, ...]

    @property
    def ours(self) -> tuple[str, ...]:
        """Our files that decide the same; empty where we have none."""
        return next((own for theirs, own in FOLLOWED.items() if _is_in(self.name, theirs)), ())

    def lines(self) -> Iterator[str]:
        """The report of the file."""
        yield f"{self.name}  +{self.num_added} -{self.num_removed}"
        yield f"    ours: {', '.join(self.ours) or 'none: look whether it decides anything'}"
        for name in self.functions:
            place = FUNCTIONS.get(name)
            yield f"    {name}" + (f"  ->  {place}" if place else "")


def changes(old: Path, new: Path) -> list[Change]:
    """Compare the followed files of two folders of sources, by name."""
    names = {
        path.relative_to(folder).as_posix() for folder in (old, new) for path in folder.glob("vllm/**/*.py")
    }
    followed = sorted(name for name in names if any(_is_in(name, theirs) for theirs in FOLLOWED))
    found = [_change(name, _text(old / name), _text(new / name)) for name in followed]
    return [change for change in found if change.num_added or change.num_removed]


def _change(name: str, old: str, new: str) -> Change:
    before, after = old.splitlines(), new.splitlines()
    touched, num_added, num_removed = set[int](), 0, 0
    for kind, first, last, start, end in difflib.SequenceMatcher(a=before, b=after).get_opcodes():
        if kind != "equal":
            num_removed += last - first
            num_added += end - start
            touched.update(range(start, max(end, start + 1)))
    diff = difflib.unified_diff(before, after, f"old/{name}", f"new/{name}", lineterm="")
    return Change(name, num_added, num_removed, tuple(_functions(new, touched)), tuple(diff))


def _functions(source: str, touched: set[int]) -> Iterator[str]:
    """The functions of a file, methods by their class, in which lines were touched; lines count from 0."""

    def walk(body: list[ast.stmt], inside: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{inside}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not touched.isdisjoint(
                range(node.lineno - 1, node.end_lineno or node.lineno)
            ):
                yield f"{inside}{node.name}"

    return walk(ast.parse(source).body, "")


def _is_in(name: str, theirs: str) -> bool:
    return name.startswith(theirs) if theirs.endswith("/") else name == theirs


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracle.changes",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("old", help="the version that is followed, as in 0.32.0")
    parser.add_argument("new", help="the next one")
    parser.add_argument("--diff", action="store_true", help="print the differences, too")
    options = parser.parse_args()
    old, new = (vllm_sources(version, cache_folder()) for version in (options.old, options.new))
    found = changes(old, new)
    for change in found:
        print("\n".join(change.lines()))
    if options.diff:
        for change in found:
            print("\n".join(change.diff))
    return 0


if __name__ == "__main__":
    sys.exit(main())
